//! One tensor of the merged model, computed when it is written.

use crate::model::to_f32;
use crate::ops::Adapter;
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::{TensorView, View};
use std::borrow::Cow;

/// What an adapter adds to a tensor: alpha/r·B·A [out, in] from value `start` on.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) start: usize,
    pub(super) adapter: Adapter,
}

/// A tensor as it will be.
pub(super) struct Merged<'a> {
    dtype: Dtype,
    source: TensorView<'a>,
    changes: Vec<Change>,
}

impl<'a> Merged<'a> {
    pub(super) fn new(dtype: Dtype, source: TensorView<'a>, changes: Vec<Change>) -> Self {
        Self {
            dtype,
            source,
            changes,
        }
    }

    fn values(&self) -> Option<Vec<f32>> {
        let mut values = to_f32(self.source.dtype(), self.source.data())?;
        for change in &self.changes {
            let Adapter { a, b, scale } = change.adapter.clone();
            let product = b.matmul(a).mul_scalar(scale).into_data();
            for (value, delta) in values[change.start..].iter_mut().zip(product.iter::<f32>()) {
                *value += delta;
            }
        }
        Some(values)
    }
}

impl View for &Merged<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        self.source.shape()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        if self.changes.is_empty() && self.dtype == self.source.dtype() {
            return Cow::Borrowed(self.source.data());
        }
        match self.values() {
            Some(values) => Cow::Owned(encode(&values, self.dtype)),
            // A kind that is not read has no changes and keeps its kind (`plan::check`, `plan::kind`).
            None => Cow::Borrowed(self.source.data()),
        }
    }

    fn data_len(&self) -> usize {
        let count: usize = self.source.shape().iter().product();
        match self.dtype == self.source.dtype() {
            true => self.source.data().len(),
            false => count * self.dtype.bitsize() / 8,
        }
    }
}

/// Little-endian values, rounded to the nearest of their kind.
fn encode(values: &[f32], dtype: Dtype) -> Vec<u8> {
    // Only these kinds are written; the enumeration is open.
    #[allow(clippy::wildcard_enum_match_arm)]
    match dtype {
        Dtype::BF16 => values
            .iter()
            .flat_map(|v| bf16::from_f32(*v).to_le_bytes())
            .collect(),
        Dtype::F16 => values
            .iter()
            .flat_map(|v| f16::from_f32(*v).to_le_bytes())
            .collect(),
        _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}
