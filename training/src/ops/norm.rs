//! RMSNorm (Zhang and Sennrich 2019).

use burn::tensor::Tensor;

/// y = w · x / √(mean(x²) + ε) over the last dimension. `x` and the result: [.., H]; `weight`: [H].
pub(crate) fn rms_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, eps: f64) -> Tensor<D> {
    let mean_square = x.clone().square().mean_dim(D - 1);
    let scale = mean_square.add_scalar(eps).sqrt().recip();
    x * scale * weight.unsqueeze::<D>()
}
