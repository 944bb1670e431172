//! RMSNorm with its weight.

use super::config::NormKind;
use crate::ops;
use burn::tensor::Tensor;

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

    /// `x` and the result: [.., H].
    pub(crate) fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        ops::rms_norm(x, self.factor(), self.eps)
    }

    /// The same over each head, for [`ops::place`].
    pub(crate) fn by_head(&self) -> ops::HeadNorm {
        ops::HeadNorm {
            weight: self.factor(),
            eps: self.eps,
        }
    }

    /// What the normed values are multiplied by.
    fn factor(&self) -> Tensor<1> {
        match self.kind {
            NormKind::Plain => self.weight.clone(),
            // Added here and not once for all: the weight may be a leaf of a graph that each pass makes anew.
            NormKind::ZeroCentred => self.weight.clone().add_scalar(1.0),
        }
    }
}
