//! RMSNorm (Zhang and Sennrich 2019).

use burn::tensor::Tensor;

/// y = w · x / √(mean(x²) + ε), over the last dimension.
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
        let mean_square = x.clone().square().mean_dim(D - 1);
        let scale = mean_square.add_scalar(self.eps).sqrt().recip();
        x * scale * self.weight.clone().unsqueeze::<D>()
    }
}
