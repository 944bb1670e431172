//! q8: n int8, then ⌈n/256⌉ f32 scales; value = integer × scale (PROTOCOL sections 3 and 6).

use super::{BLOCK, Levels, Q8_MAX, block_absmax, blocks, quantise, scales};

/// Integers and their block scales.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Q8 {
    /// One integer an element, −127 to 127.
    pub integers: Vec<i8>,
    /// One scale a block of 256 elements, finite and not negative.
    pub scales: Vec<f32>,
}

/// Why bytes are no q8 data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Q8Error {
    /// Too few or too many bytes.
    #[error("{got} bytes where {elements} elements of q8 take {want}")]
    Length {
        /// Bytes given.
        got: usize,
        /// Bytes needed.
        want: usize,
        /// Elements expected.
        elements: usize,
    },
    /// NaN, infinite or negative.
    #[error("scale of block {block} is not a finite number of 0 or more")]
    Scale {
        /// The block.
        block: usize,
    },
    /// −128 stands for nothing, and a zero scale stands for zeros.
    #[error("integer {value} of element {element} is outside what its block's scale allows")]
    Integer {
        /// The element.
        element: usize,
        /// Its integer.
        value: i8,
    },
}

impl Q8 {
    /// Encodes: scale = absmax/127 of each block, integers rounded half to even.
    #[must_use]
    pub fn encode(values: &[f32]) -> Self {
        let scales = scales(&block_absmax(values, 1.0), Levels::Q8);
        Self {
            integers: quantise(values, 1.0, &scales, Levels::Q8),
            scales,
        }
    }

    /// The values: integer × scale.
    #[must_use]
    pub fn decode(&self) -> Vec<f32> {
        let mut values = Vec::with_capacity(self.integers.len());
        for (block, &scale) in self.integers.chunks(BLOCK).zip(&self.scales) {
            values.extend(block.iter().map(|&q| f32::from(q) * scale));
        }
        values
    }

    /// Bytes that `n` elements take.
    #[must_use]
    pub fn byte_len(n: usize) -> usize {
        n + 4 * blocks(n)
    }

    /// Integers, then scales.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::byte_len(self.integers.len()));
        bytes.extend(self.integers.iter().map(|&q| q as u8));
        bytes.extend(scales_to_bytes(&self.scales));
        bytes
    }

    /// Reads `n` elements from exactly their bytes.
    ///
    /// # Errors
    /// Wrong length, a scale that is no finite number ≥ 0, an integer outside ±127 or not 0 under a zero scale.
    pub fn from_bytes(bytes: &[u8], n: usize) -> Result<Self, Q8Error> {
        let want = Self::byte_len(n);
        if bytes.len() != want {
            return Err(Q8Error::Length {
                got: bytes.len(),
                want,
                elements: n,
            });
        }
        let (integers, scales) = bytes.split_at(n);
        let q8 = Self {
            integers: integers.iter().map(|&b| b as i8).collect(),
            scales: scales_from_bytes(scales, blocks(n))?,
        };
        q8.check_integers()?;
        Ok(q8)
    }

    fn check_integers(&self) -> Result<(), Q8Error> {
        for (b, (block, &scale)) in self.integers.chunks(BLOCK).zip(&self.scales).enumerate() {
            let bad = |q: i8| i32::from(q) < -Q8_MAX || (scale == 0.0 && q != 0);
            if let Some(i) = block.iter().position(|&q| bad(q)) {
                return Err(Q8Error::Integer {
                    element: b * BLOCK + i,
                    value: block[i],
                });
            }
        }
        Ok(())
    }
}

/// Scales, or block maxima, as little-endian f32: a segment of the scale ring.
#[must_use]
pub fn scales_to_bytes(scales: &[f32]) -> Vec<u8> {
    scales.iter().flat_map(|s| s.to_le_bytes()).collect()
}

/// Reads exactly `blocks` scales or block maxima.
///
/// # Errors
/// Wrong length, or a number that is NaN, infinite or has its sign bit set.
pub fn scales_from_bytes(bytes: &[u8], blocks: usize) -> Result<Vec<f32>, Q8Error> {
    if bytes.len() != blocks * 4 {
        return Err(Q8Error::Length {
            got: bytes.len(),
            want: blocks * 4,
            elements: blocks,
        });
    }
    let scales: Vec<f32> = bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect();
    match scales.iter().position(|s| !s.is_finite() || s.is_sign_negative()) {
        Some(block) => Err(Q8Error::Scale { block }),
        None => Ok(scales),
    }
}
