//! What can be wrong with a delta file: what, where (offset, tensor), and what to do.

use super::format::{DType, elements};
use super::metadata::TimestampError;
use crate::cbor::CborError;

/// What is wrong with one tensor, wherever it came from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Empty or over 1024 bytes.
    #[error("its name has {length} bytes; 1 to 1024 are allowed")]
    Name {
        /// Bytes of the name.
        length: usize,
    },
    /// Over 8 dimensions.
    #[error("it has {rank} dimensions; at most 8 are allowed")]
    Rank {
        /// Dimensions.
        rank: usize,
    },
    /// More elements than can be addressed.
    #[error("the product of its dimensions overflows")]
    Shape,
    /// Not after the name before it, bytewise.
    #[error("it does not come after {previous:?}: names ascend bytewise")]
    Order {
        /// The name before it.
        previous: String,
    },
    /// Data that does not fit the shape.
    #[error("it has {got} bytes of data where its shape needs {want}")]
    Length {
        /// Bytes there are.
        got: usize,
        /// Bytes its shape and dtype need.
        want: usize,
    },
    /// NaN or infinity.
    #[error("element {index} is NaN or infinite")]
    NotFinite {
        /// The first such element.
        index: usize,
    },
    /// A q8 or q4 scale that is NaN, infinite or negative.
    #[error("the scale of block {block} is not a finite number of 0 or more")]
    Scale {
        /// The block.
        block: usize,
    },
    /// A q8 or q4 integer out of range, not 0 under a zero scale, or padding that is not 0.
    #[error("integer {index} is out of range, or not zero under a zero scale")]
    Integer {
        /// Its element.
        index: usize,
    },
}

impl ValueError {
    /// Where in a tensor's uncompressed data it is wrong, in bytes.
    pub(super) fn position(&self, dtype: DType, shape: &[u64]) -> usize {
        let parts = elements(shape).and_then(|n| dtype.parts(n));
        let [first, second] = parts.map_or([(0, 0); 2], |parts| parts.map(|part| (part.len(), part.size)));
        match *self {
            Self::NotFinite { index } => index * first.1,
            Self::Integer { index } if dtype == DType::Q4 => index / 2,
            Self::Integer { index } => index,
            Self::Scale { block } => first.0 + block * second.1,
            Self::Name { .. }
            | Self::Rank { .. }
            | Self::Shape
            | Self::Order { .. }
            | Self::Length { .. } => 0,
        }
    }
}

/// Why a delta file cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum DeltaEncodeError {
    /// A tensor that no file may hold.
    #[error("cannot write tensor {tensor:?}: {source}")]
    Tensor {
        /// Its name.
        tensor: String,
        /// What is wrong.
        source: ValueError,
    },
    /// The stream that is written to failed.
    #[error("cannot write {what}: {source}")]
    Write {
        /// The header, a tensor, a block.
        what: String,
        /// The stream's word.
        source: std::io::Error,
    },
    /// Metadata or auth out of bounds.
    #[error("cannot write the {block} block: {source}")]
    Block {
        /// `metadata` or `auth`.
        block: &'static str,
        /// What is wrong.
        source: CborError,
    },
    /// Text to text beyond its bounds.
    #[error("metadata.extra has {count} entries; at most 32 are allowed")]
    Extra {
        /// Entries.
        count: usize,
    },
}

/// Why a delta file is refused. Offsets count bytes from the file's start.
#[derive(Debug, thiserror::Error)]
pub enum DeltaDecodeError {
    /// More bytes than the caller wants.
    #[error("the file is too long: the reader's limit is {limit} bytes")]
    FileTooLong {
        /// The caller's limit.
        limit: usize,
    },
    /// The stream failed.
    #[error("cannot read on at offset {offset}: {source}")]
    Read {
        /// Bytes read before.
        offset: usize,
        /// The stream's word.
        source: std::io::Error,
    },
    /// It ends too early.
    #[error("truncated at offset {offset}: {need} bytes of {what} are missing")]
    Truncated {
        /// Where the missing bytes would begin to be read.
        offset: usize,
        /// How many there should be more.
        need: usize,
        /// Of what.
        what: &'static str,
    },
    /// The first five bytes.
    #[error("no delta file: it begins with \"{}\" instead of \"DELTA\"", found.escape_ascii())]
    Magic {
        /// What it begins with.
        found: [u8; 5],
    },
    /// A version this program does not know.
    #[error("delta version {found} at offset 5 is not known; this program reads version 1")]
    Version {
        /// The version.
        found: u8,
    },
    /// A compression this program does not know.
    #[error("compression {found} at offset 6 is not known; 0, 1 and 2 are")]
    Compression {
        /// The number.
        found: u8,
    },
    /// A flag without meaning.
    #[error("flags {found:#010b} at offset 7: only bits 0 (metadata) and 1 (auth) may be set")]
    Flags {
        /// The flags.
        found: u8,
    },
    /// More tensors than the caller wants.
    #[error("more than {limit} tensors, the reader's limit, at offset {offset}")]
    TooManyTensors {
        /// Where the next one begins.
        offset: usize,
        /// The caller's limit.
        limit: usize,
    },
    /// Name length 0 or over 1024.
    #[error("tensor name of {length} bytes at offset {offset}; 1 to 1024 are allowed")]
    NameLength {
        /// Where the length stands.
        offset: usize,
        /// The length.
        length: u32,
    },
    /// Not UTF-8.
    #[error("the tensor name at offset {offset} is not UTF-8")]
    NameUtf8 {
        /// Where the name begins.
        offset: usize,
    },
    /// Not ascending, or twice.
    #[error("tensor {tensor:?} at offset {offset} does not come after {previous:?}: names ascend bytewise")]
    NameOrder {
        /// Where it begins.
        offset: usize,
        /// Its name.
        tensor: String,
        /// The name before it.
        previous: String,
    },
    /// A dtype this program does not know.
    #[error("tensor {tensor:?}: dtype {found} at offset {offset} is not known")]
    DType {
        /// Where the dtype stands.
        offset: usize,
        /// The tensor.
        tensor: String,
        /// The number.
        found: u8,
    },
    /// Over 8 dimensions.
    #[error("tensor {tensor:?}: rank {found} at offset {offset}; at most 8 is allowed")]
    Rank {
        /// Where the rank stands.
        offset: usize,
        /// The tensor.
        tensor: String,
        /// The rank.
        found: u8,
    },
    /// More elements than can be addressed.
    #[error("tensor {tensor:?}: the shape {shape:?} at offset {offset} overflows")]
    ShapeOverflow {
        /// Where the shape begins.
        offset: usize,
        /// The tensor.
        tensor: String,
        /// The shape.
        shape: Vec<u64>,
    },
    /// More data than the caller wants.
    #[error(
        "tensor {tensor:?} at offset {offset} needs {need} more bytes of memory; {left} are left of the reader's limit"
    )]
    TooLarge {
        /// Where its data begins.
        offset: usize,
        /// The tensor.
        tensor: String,
        /// Bytes it needs uncompressed.
        need: usize,
        /// Bytes left of the caller's limit.
        left: usize,
    },
    /// Not the one LZ4 frame that the shape needs.
    #[error("tensor {tensor:?}: bad LZ4 frame at offset {offset}: {reason}")]
    Lz4 {
        /// Where the frame begins, or where it goes wrong.
        offset: usize,
        /// The tensor.
        tensor: String,
        /// What is wrong.
        reason: String,
    },
    /// A block of metadata or auth longer than allowed.
    #[error("{block} block of {length} bytes at offset {offset}; at most {limit} are allowed")]
    BlockLength {
        /// `metadata` or `auth`.
        block: &'static str,
        /// Where its length stands.
        offset: usize,
        /// Its length.
        length: usize,
        /// What is allowed.
        limit: usize,
    },
    /// Bytes after the end.
    #[error("{count} trailing bytes at offset {offset}")]
    Trailing {
        /// Where they begin.
        offset: usize,
        /// How many.
        count: usize,
    },
    /// The content is not what the header says: damaged, or written wrongly. Fetch it again.
    #[error(
        "checksum at offset 8 is {stated}, the content's is {actual}: the file is damaged, fetch it again"
    )]
    Checksum {
        /// In the header, hexadecimal.
        stated: String,
        /// Of the content, hexadecimal.
        actual: String,
    },
    /// A value that no file may hold.
    #[error("tensor {tensor:?} at offset {offset}: {source}")]
    Value {
        /// Where the value stands; where the tensor's data begins when they are compressed.
        offset: usize,
        /// The tensor.
        tensor: String,
        /// What is wrong.
        source: ValueError,
    },
    /// Metadata or auth that does not decode.
    #[error("{block} block at offset {offset}: {source}")]
    Block {
        /// `metadata` or `auth`.
        block: &'static str,
        /// Where its bytes begin.
        offset: usize,
        /// What is wrong.
        source: CborError,
    },
    /// Text to text beyond its bounds.
    #[error("metadata block at offset {offset}: extra has {count} entries; at most 32 are allowed")]
    Extra {
        /// Where the block's bytes begin.
        offset: usize,
        /// Entries.
        count: usize,
    },
    /// A time that is none.
    #[error("{block} block at offset {offset}: timestamp: {source}")]
    Timestamp {
        /// Where the block's bytes begin.
        offset: usize,
        /// `metadata` or `auth`.
        block: &'static str,
        /// What is wrong.
        source: TimestampError,
    },
}
