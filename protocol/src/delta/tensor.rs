//! Tensors of any dtype as raw little-endian bytes, and the check of their values.

use super::error::ValueError;
use super::format::{DType, MAX_NAME, MAX_RANK, Q4_BLOCK, elements};
use crate::quant::BLOCK;
use crate::tensor::{F32Tensor, TensorSet};
use half::{bf16, f16};
use std::collections::BTreeMap;

/// Tensors by name, bytewise ascending.
pub type RawTensors = BTreeMap<String, RawTensor>;

/// A tensor as the file holds it, uncompressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawTensor {
    /// What its elements are.
    pub dtype: DType,
    /// Extent of each dimension, row-major; at most 8.
    pub shape: Vec<u64>,
    /// Exactly [`DType::byte_len`] of its elements.
    pub data: Vec<u8>,
}

/// A tensor that is no f32 where f32 is needed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tensor {tensor} is {found:?} where f32 is needed")]
pub struct DTypeError {
    /// Its name.
    pub tensor: String,
    /// Its dtype.
    pub found: DType,
}

impl RawTensor {
    /// Checks what every tensor in a file must have: name length, rank, data length, finite floats, canonical q8 and q4.
    pub(super) fn check(&self, name: &str) -> Result<(), ValueError> {
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(ValueError::Name { length: name.len() });
        }
        if self.shape.len() > MAX_RANK {
            return Err(ValueError::Rank {
                rank: self.shape.len(),
            });
        }
        let n = elements(&self.shape).ok_or(ValueError::Shape)?;
        let want = self.dtype.byte_len(n).ok_or(ValueError::Shape)?;
        if self.data.len() != want {
            return Err(ValueError::Length {
                got: self.data.len(),
                want,
            });
        }
        self.check_values(n)
    }

    fn check_values(&self, n: usize) -> Result<(), ValueError> {
        let d = &self.data;
        match self.dtype {
            DType::F32 => finite(chunks(d).map(f32::from_le_bytes).map(f32::is_finite)),
            DType::F16 => finite(chunks(d).map(f16::from_le_bytes).map(f16::is_finite)),
            DType::Bf16 => finite(chunks(d).map(bf16::from_le_bytes).map(bf16::is_finite)),
            DType::F64 => finite(chunks(d).map(f64::from_le_bytes).map(f64::is_finite)),
            DType::Q8 => check_q8(d, n),
            DType::Q4 => check_q4(d, n),
            DType::I8 | DType::U8 | DType::I32 | DType::I64 => Ok(()),
        }
    }
}

/// The f32 tensors of a file, which must hold no others.
pub(super) fn to_set(tensors: &RawTensors) -> Result<TensorSet, DTypeError> {
    let mut set = BTreeMap::new();
    for (name, raw) in tensors {
        if raw.dtype != DType::F32 {
            return Err(DTypeError {
                tensor: name.clone(),
                found: raw.dtype,
            });
        }
        let data = chunks(&raw.data).map(f32::from_le_bytes).collect();
        set.insert(
            name.clone(),
            F32Tensor {
                shape: raw.shape.clone(),
                data,
            },
        );
    }
    Ok(TensorSet(set))
}

/// A set of f32 tensors as a file holds it.
pub(super) fn from_set(set: &TensorSet) -> RawTensors {
    set.0
        .iter()
        .map(|(name, tensor)| (name.clone(), RawTensor::from(tensor)))
        .collect()
}

impl From<&F32Tensor> for RawTensor {
    fn from(tensor: &F32Tensor) -> Self {
        let data = tensor.data.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self {
            dtype: DType::F32,
            shape: tensor.shape.clone(),
            data,
        }
    }
}

/// The little-endian elements of `N` bytes each.
pub(super) fn chunks<const N: usize>(data: &[u8]) -> impl ExactSizeIterator<Item = [u8; N]> + '_ {
    data.as_chunks::<N>().0.iter().copied()
}

fn finite(mut values: impl Iterator<Item = bool>) -> Result<(), ValueError> {
    match values.position(|finite| !finite) {
        Some(index) => Err(ValueError::NotFinite { index }),
        None => Ok(()),
    }
}

fn check_q8(data: &[u8], n: usize) -> Result<(), ValueError> {
    let (integers, scales) = data.split_at(n);
    for (b, (block, scale)) in integers
        .chunks(BLOCK)
        .zip(chunks(scales).map(f32::from_le_bytes))
        .enumerate()
    {
        if !scale.is_finite() || scale.is_sign_negative() {
            return Err(ValueError::Scale { block: b });
        }
        let bad = |byte: u8| byte == 0x80 || (scale == 0.0 && byte != 0);
        if let Some(i) = block.iter().position(|&byte| bad(byte)) {
            return Err(ValueError::Integer { index: b * BLOCK + i });
        }
    }
    Ok(())
}

fn check_q4(data: &[u8], n: usize) -> Result<(), ValueError> {
    let (nibbles, scales) = data.split_at(n.div_ceil(2));
    for (b, scale) in chunks(scales).map(f16::from_le_bytes).enumerate() {
        if !scale.is_finite() || scale.is_sign_negative() {
            return Err(ValueError::Scale { block: b });
        }
        let zero = scale == f16::ZERO;
        let mut block = b * Q4_BLOCK..((b + 1) * Q4_BLOCK).min(n);
        let bad = |&i: &usize| match nibble(nibbles, i) {
            -8 => true,
            integer => zero && integer != 0,
        };
        if let Some(index) = block.find(bad) {
            return Err(ValueError::Integer { index });
        }
    }
    if n % 2 == 1 && nibbles[n / 2] >> 4 != 0 {
        return Err(ValueError::Integer { index: n });
    }
    Ok(())
}

/// Element `i` of q4 data: two's complement, low nibble first.
pub(super) fn nibble(nibbles: &[u8], i: usize) -> i8 {
    let byte = nibbles[i / 2];
    let low = if i.is_multiple_of(2) {
        byte << 4
    } else {
        byte & 0xf0
    };
    (low as i8) >> 4
}
