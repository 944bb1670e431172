//! One matrix in NF4 on the host.

use super::{dynamic, nf4};

/// A matrix [out, in] held as 4-bit codes that run row-major over it, and scales.
#[derive(Clone, PartialEq)]
pub struct Nf4Matrix {
    shape: [usize; 2],
    /// Two codes a byte, the first in the high nibble.
    codes: Vec<u8>,
    scales: Scales,
}

/// The largest magnitude of each block of 64.
#[derive(Clone, PartialEq)]
pub enum Scales {
    /// As they are.
    Plain(Vec<f32>),
    /// In 8 bits ("double quantisation"): `code[codes[b]]·nested[b / 256] + offset`.
    Double {
        /// One a block, in the dynamic code.
        codes: Vec<u8>,
        /// One for 256 blocks.
        nested: Vec<f32>,
        /// The mean of the scales.
        offset: f32,
    },
}

/// Why values cannot be held in NF4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantError {
    /// A NaN or an infinity.
    #[error("value {index} is not finite and has no 4-bit code; fetch the model again")]
    NonFinite {
        /// Where, row-major.
        index: usize,
    },
    /// Not one value (or code, or scale) for each place.
    #[error("a matrix of shape {shape:?} has {got} {what}")]
    Count {
        /// Extent.
        shape: [usize; 2],
        /// Values, bytes of codes, or scales.
        what: &'static str,
        /// How many there are.
        got: usize,
    },
}

impl Nf4Matrix {
    /// Quantises `values` [out, in], scales in 8 bits.
    ///
    /// # Errors
    /// A value that is not finite; another number of values than `shape` says.
    pub fn quantise(shape: [usize; 2], values: &[f32]) -> Result<Self, QuantError> {
        if let Some(index) = values.iter().position(|v| !v.is_finite()) {
            return Err(QuantError::NonFinite { index });
        }
        if shape[0].checked_mul(shape[1]) != Some(values.len()) {
            return Err(count(shape, "values", values.len()));
        }
        let (codes, absmax) = nf4::quantise(values);
        Ok(Self {
            shape,
            codes,
            scales: Scales::double(absmax),
        })
    }

    /// From codes and scales made elsewhere.
    ///
    /// # Errors
    /// Another number of them than `shape` says.
    pub fn from_parts(shape: [usize; 2], codes: Vec<u8>, scales: Scales) -> Result<Self, QuantError> {
        let values = shape[0].saturating_mul(shape[1]);
        let blocks = values.div_ceil(nf4::BLOCK);
        if codes.len() != values.div_ceil(2) {
            return Err(count(shape, "bytes of codes", codes.len()));
        }
        if scales.blocks() != blocks {
            return Err(count(shape, "scales", scales.blocks()));
        }
        if let Scales::Double { nested, .. } = &scales
            && nested.len() != blocks.div_ceil(dynamic::BLOCK)
        {
            return Err(count(shape, "scales of scales", nested.len()));
        }
        Ok(Self { shape, codes, scales })
    }

    /// From parts that are known to fit.
    pub(super) fn unchecked(shape: [usize; 2], codes: Vec<u8>, scales: Scales) -> Self {
        Self { shape, codes, scales }
    }

    pub(super) fn into_parts(self) -> ([usize; 2], Vec<u8>, Scales) {
        (self.shape, self.codes, self.scales)
    }

    /// [out, in].
    #[must_use]
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Packed codes, two a byte, the first in the high nibble.
    #[must_use]
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// Scales.
    #[must_use]
    pub fn scales(&self) -> &Scales {
        &self.scales
    }

    /// Bytes on the heap that hold the matrix.
    #[must_use]
    pub fn resident_bytes(&self) -> usize {
        self.codes.capacity() + self.scales.resident_bytes()
    }

    /// Rows `first..` of the matrix as f32, as many as `out` holds of `in` values each.
    pub fn dequantise_rows(&self, first: usize, out: &mut [f32]) {
        let scales = &self.scales;
        nf4::dequantise(&self.codes, |block| scales.of(block), first * self.shape[1], out);
    }

    /// The whole matrix as f32, row-major: for tests and for saving.
    #[must_use]
    pub fn dequantise(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.shape[0] * self.shape[1]];
        self.dequantise_rows(0, &mut out);
        out
    }
}

impl std::fmt::Debug for Nf4Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nf4Matrix({:?}, {} bytes)", self.shape, self.resident_bytes())
    }
}

impl Scales {
    /// Holds `absmax` in 8 bits around its mean.
    #[must_use]
    pub fn double(mut absmax: Vec<f32>) -> Self {
        let sum: f64 = absmax.iter().map(|v| f64::from(*v)).sum();
        let offset = (sum / absmax.len().max(1) as f64) as f32;
        for scale in &mut absmax {
            *scale -= offset;
        }
        let (codes, nested) = dynamic::quantise(&absmax);
        Self::Double {
            codes,
            nested,
            offset,
        }
    }

    /// The scale of a block.
    #[must_use]
    pub fn of(&self, block: usize) -> f32 {
        match self {
            Self::Plain(absmax) => absmax[block],
            Self::Double {
                codes,
                nested,
                offset,
            } => dynamic::code()[usize::from(codes[block])] * nested[block / dynamic::BLOCK] + offset,
        }
    }

    fn blocks(&self) -> usize {
        match self {
            Self::Plain(absmax) => absmax.len(),
            Self::Double { codes, .. } => codes.len(),
        }
    }

    fn resident_bytes(&self) -> usize {
        match self {
            Self::Plain(absmax) => 4 * absmax.capacity(),
            Self::Double { codes, nested, .. } => codes.capacity() + 4 * nested.capacity() + 4,
        }
    }
}

impl std::fmt::Debug for Scales {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self {
            Self::Plain(_) => "plain",
            Self::Double { .. } => "double",
        };
        write!(f, "Scales({kind}, {} blocks)", self.blocks())
    }
}

fn count(shape: [usize; 2], what: &'static str, got: usize) -> QuantError {
    QuantError::Count { shape, what, got }
}
