//! Constants and small pieces of the delta file's layout (PROTOCOL section 3).

use sha3::{Digest, Sha3_256};

/// The first five bytes of every delta file: "DELTA".
pub const MAGIC: [u8; 5] = *b"DELTA";
/// The one version of the format.
pub const VERSION: u8 = 1;
/// Bytes before the first tensor.
pub const HEADER_LEN: usize = 24;
/// Bytes of `content_hash` kept in the header.
pub const CHECKSUM_LEN: usize = 16;
/// Longest tensor name, in bytes.
pub const MAX_NAME: usize = 1024;
/// Most dimensions of a tensor.
pub const MAX_RANK: usize = 8;
/// Flag: a metadata block follows the tensors.
pub const FLAG_METADATA: u8 = 1;
/// Flag: an auth block follows.
pub const FLAG_AUTH: u8 = 2;

/// How tensor data is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Raw bytes.
    None,
    /// One LZ4 frame a tensor.
    Lz4,
    /// The bytes of the elements transposed, then one LZ4 frame a tensor.
    ShuffleLz4,
}

impl Compression {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::None, Self::Lz4, Self::ShuffleLz4];

    /// The number in the header.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Lz4 => 1,
            Self::ShuffleLz4 => 2,
        }
    }

    /// The compression of a number.
    #[must_use]
    pub fn from_number(n: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.number() == n)
    }
}

/// What a tensor's elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE 754 binary64.
    F64,
    /// Signed byte.
    I8,
    /// Unsigned byte.
    U8,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// n int8, then ⌈n/256⌉ f32 scales.
    Q8,
    /// ⌈n/2⌉ bytes of two nibbles, low first, then ⌈n/64⌉ f16 scales.
    Q4,
}

/// Elements under one q4 scale.
pub const Q4_BLOCK: usize = 64;

impl DType {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::F64,
        Self::I8,
        Self::U8,
        Self::I32,
        Self::I64,
        Self::Q8,
        Self::Q4,
    ];

    /// The number in the file.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Bf16 => 2,
            Self::F64 => 3,
            Self::I8 => 4,
            Self::U8 => 5,
            Self::I32 => 6,
            Self::I64 => 7,
            Self::Q8 => 16,
            Self::Q4 => 17,
        }
    }

    /// The dtype of a number.
    #[must_use]
    pub fn from_number(n: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|d| d.number() == n)
    }

    /// Bytes that `n` elements take, integers and scales apart: (count, bytes each) twice. `None` on overflow.
    pub(super) fn parts(self, n: usize) -> Option<[Part; 2]> {
        let plain = |size| [Part { count: n, size }, Part { count: 0, size: 1 }];
        let parts = match self {
            Self::I8 | Self::U8 => plain(1),
            Self::F16 | Self::Bf16 => plain(2),
            Self::F32 | Self::I32 => plain(4),
            Self::F64 | Self::I64 => plain(8),
            Self::Q8 => [
                Part { count: n, size: 1 },
                Part {
                    count: n.div_ceil(crate::quant::BLOCK),
                    size: 4,
                },
            ],
            Self::Q4 => [
                Part {
                    count: n.div_ceil(2),
                    size: 1,
                },
                Part {
                    count: n.div_ceil(Q4_BLOCK),
                    size: 2,
                },
            ],
        };
        let total = parts[0].checked_len()?.checked_add(parts[1].checked_len()?)?;
        (total <= isize::MAX as usize).then_some(parts)
    }

    /// Bytes that `n` elements take; `None` when they do not fit the address space.
    #[must_use]
    pub fn byte_len(self, n: usize) -> Option<usize> {
        self.parts(n).map(|[a, b]| a.len() + b.len())
    }
}

/// A run of equal-sized elements in a tensor's data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) count: usize,
    pub(super) size: usize,
}

impl Part {
    fn checked_len(self) -> Option<usize> {
        self.count.checked_mul(self.size)
    }

    pub(super) fn len(self) -> usize {
        self.count * self.size
    }
}

/// Elements of a shape; `None` on overflow.
#[must_use]
pub fn elements(shape: &[u64]) -> Option<usize> {
    // Zero extents first: [0, 2^40, 2^40] is empty, not an overflow.
    if shape.contains(&0) {
        return Some(0);
    }
    let n = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d))?;
    usize::try_from(n).ok()
}

/// Everything of a tensor before its data: name length and name, dtype, rank, shape.
pub(crate) fn tensor_head(name: &str, dtype: DType, shape: &[u64]) -> Vec<u8> {
    let mut head = Vec::with_capacity(name.len() + 6 + 8 * shape.len());
    head.extend_from_slice(&(name.len() as u32).to_le_bytes());
    head.extend_from_slice(name.as_bytes());
    head.push(dtype.number());
    head.push(shape.len() as u8);
    for extent in shape {
        head.extend_from_slice(&extent.to_le_bytes());
    }
    head
}

/// A block after the tensors: u32 length, then its bytes.
pub(super) fn block(bytes: &[u8]) -> Vec<u8> {
    let mut block = (bytes.len() as u32).to_le_bytes().to_vec();
    block.extend_from_slice(bytes);
    block
}

/// Hashes f32 values as little-endian bytes without holding them all.
pub(crate) fn hash_f32(hasher: &mut Sha3_256, values: &[f32]) {
    let mut buffer = Vec::with_capacity(4 * 1024);
    for run in values.chunks(1024) {
        buffer.clear();
        buffer.extend(run.iter().flat_map(|v| v.to_le_bytes()));
        hasher.update(&buffer);
    }
}
