//! RMSNorm with its weight.

use crate::ops;
use burn::tensor::Tensor;

/// See [`ops::rms_norm`].
#[derive(Clone, Debug)]
pub(crate) struct RmsNorm {
    weight: Tensor<1>,
    eps: f64,
}

impl RmsNorm {
    pub(crate) fn new(weight: Tensor<1>, eps: f64) -> Self {
        Self { weight, eps }
    }

    /// `x` and the result: [.., H].
    pub(crate) fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        ops::rms_norm(x, self.weight.clone(), self.eps)
    }
}
