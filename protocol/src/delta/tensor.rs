//! Tensors of any dtype as raw little-endian bytes, and the check of their values.

use super::error::ValueError;
use super::format::{DType, MAX_NAME, MAX_RANK, Part, Q4_BLOCK, elements};
use crate::quant::BLOCK;
use crate::tensor::{F32Tensor, TensorSet};
use half::{bf16, f16};
use std::borrow::Cow;
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

/// A tensor to be written, borrowed where it lies.
#[derive(Clone, Debug)]
pub struct TensorView<'a> {
    /// Its name, 1 to 1024 bytes.
    pub name: &'a str,
    /// What its elements are.
    pub dtype: DType,
    /// Extent of each dimension, row-major; at most 8.
    pub shape: &'a [u64],
    /// Exactly [`DType::byte_len`] of its elements, little-endian.
    pub data: Cow<'a, [u8]>,
}

impl RawTensor {
    fn as_f32(&self, name: &str) -> Result<F32Tensor, DTypeError> {
        if self.dtype != DType::F32 {
            return Err(DTypeError {
                tensor: name.to_owned(),
                found: self.dtype,
            });
        }
        Ok(F32Tensor {
            shape: self.shape.clone(),
            data: chunks(&self.data).map(f32::from_le_bytes).collect(),
        })
    }

    /// This tensor under a name.
    #[must_use]
    pub fn view<'a>(&'a self, name: &'a str) -> TensorView<'a> {
        TensorView {
            name,
            dtype: self.dtype,
            shape: &self.shape,
            data: Cow::Borrowed(&self.data),
        }
    }
}

impl<'a> TensorView<'a> {
    /// An f32 tensor under a name; its values are not copied where the machine is little-endian.
    #[must_use]
    pub fn f32(name: &'a str, tensor: &'a F32Tensor) -> Self {
        let data = if cfg!(target_endian = "little") {
            Cow::Borrowed(bytemuck::cast_slice(&tensor.data))
        } else {
            Cow::Owned(tensor.data.iter().flat_map(|v| v.to_le_bytes()).collect())
        };
        Self {
            name,
            dtype: DType::F32,
            shape: &tensor.shape,
            data,
        }
    }

    /// Checks what every tensor in a file must have: name length, rank, data length, finite floats, canonical q8 and q4.
    pub(super) fn check(&self) -> Result<(), ValueError> {
        self.check_form()?;
        self.check_values(elements(self.shape).ok_or(ValueError::Shape)?)
    }

    /// All of [`Self::check`] but the values; the runs of elements in the data.
    pub(super) fn check_form(&self) -> Result<[Part; 2], ValueError> {
        let length = self.name.len();
        if length == 0 || length > MAX_NAME {
            return Err(ValueError::Name { length });
        }
        let rank = self.shape.len();
        if rank > MAX_RANK {
            return Err(ValueError::Rank { rank });
        }
        let parts = elements(self.shape).and_then(|n| self.dtype.parts(n));
        let parts = parts.ok_or(ValueError::Shape)?;
        let (got, want) = (self.data.len(), parts[0].len() + parts[1].len());
        if got != want {
            return Err(ValueError::Length { got, want });
        }
        Ok(parts)
    }

    fn check_values(&self, n: usize) -> Result<(), ValueError> {
        let d = &self.data;
        match self.dtype {
            DType::F32 => finite(d, |b| f32::from_le_bytes(b).is_finite()),
            DType::F16 => finite(d, |b| f16::from_le_bytes(b).is_finite()),
            DType::Bf16 => finite(d, |b| bf16::from_le_bytes(b).is_finite()),
            DType::F64 => finite(d, |b| f64::from_le_bytes(b).is_finite()),
            DType::Q8 => check_q8(d, n),
            DType::Q4 => check_q4(d, n),
            DType::I8 | DType::U8 | DType::I32 | DType::I64 => Ok(()),
        }
    }
}

/// The f32 tensors of a file, which must hold no others.
pub(super) fn to_set(tensors: &RawTensors) -> Result<TensorSet, DTypeError> {
    let tensors = tensors
        .iter()
        .map(|(name, raw)| Ok((name.clone(), raw.as_f32(name)?)));
    tensors.collect::<Result<_, _>>().map(TensorSet)
}

/// As [`to_set`], freeing each tensor when it has been converted.
pub(super) fn into_set(tensors: RawTensors) -> Result<TensorSet, DTypeError> {
    let convert = |(name, raw): (String, RawTensor)| {
        let tensor = raw.as_f32(&name)?;
        Ok((name, tensor))
    };
    tensors
        .into_iter()
        .map(convert)
        .collect::<Result<_, _>>()
        .map(TensorSet)
}

#[cfg(test)]
pub(super) fn from_set(set: &TensorSet) -> RawTensors {
    let tensors = set.0.iter();
    tensors
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

/// Elements looked at together: whole runs are fast, and only a bad one is searched.
const RUN: usize = 1024;

fn finite<const N: usize>(data: &[u8], is_finite: impl Fn([u8; N]) -> bool) -> Result<(), ValueError> {
    for (r, run) in data.as_chunks::<N>().0.chunks(RUN).enumerate() {
        if run.iter().fold(true, |all, &b| all & is_finite(b)) {
            continue;
        }
        if let Some(i) = run.iter().position(|&b| !is_finite(b)) {
            return Err(ValueError::NotFinite { index: r * RUN + i });
        }
    }
    Ok(())
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
