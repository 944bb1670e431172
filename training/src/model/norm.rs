//! RMSNorm with its weight.

use super::config::NormKind;
use crate::ops;
use burn::tensor::{DType, Tensor};

/// See [`ops::rms_norm`].
#[derive(Clone, Debug)]
pub(crate) struct RmsNorm {
    weight: Tensor<1>,
    eps: f64,
    kind: NormKind,
}

impl RmsNorm {
    pub(crate) fn new(weight: Tensor<1>, eps: f64, kind: NormKind) -> Self {
        Self { weight, eps, kind }
    }

    /// `x` and the result: [.., H], in f32 or f64.
    pub(crate) fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let factor = self.factor(x.dtype());
        ops::rms_norm(x, factor, self.eps)
    }

    /// The same over each head, for [`ops::place`].
    pub(crate) fn by_head(&self) -> ops::HeadNorm {
        ops::HeadNorm {
            weight: self.factor(DType::F32),
            eps: self.eps,
        }
    }

    /// What the normed values are multiplied by, in numbers of `dtype`.
    fn factor(&self, dtype: DType) -> Tensor<1> {
        let weight = self.weight.clone().cast(dtype);
        match self.kind {
            NormKind::Plain => weight,
            // Added here and not once for all: the weight may be a leaf of a graph that each pass makes anew.
            NormKind::ZeroCentred => weight.add_scalar(1.0),
        }
    }
}
