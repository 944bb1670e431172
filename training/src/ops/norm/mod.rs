//! RMSNorm (Zhang and Sennrich 2019): an operation of its own, which keeps its input alone.
//!
//! y = w·x·r, r = 1/√(mean(x²) + ε). With g = ∂L/∂y and H features: ∂L/∂x = r·(w·g − x·r²/H·Σ w·g·x) and
//! ∂L/∂w = Σ over rows of g·x·r.

mod autodiff;
pub(super) mod kernel;
#[cfg(test)]
mod tests;

use super::graph::{Backend, Dispatch, Flex, FloatTensor, backend_extension, on_host};
use super::host::{Values, tensor};
use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Tensor};

/// y = w · x / √(mean(x²) + ε) over the last dimension. `x` and the result: [.., H]; `weight`: [H].
pub(crate) fn rms_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, eps: f64) -> Tensor<D> {
    // The kernel is f32's.
    if on_host(&x) && x.dtype() != DType::F64 {
        let y = Dispatch::root_mean_square(x.into_dispatch(), weight.into_dispatch(), eps);
        return Tensor::from_dispatch(y);
    }
    composed(x, weight, eps)
}

/// The same from burn's own operations.
pub(super) fn composed<const D: usize>(x: Tensor<D>, weight: Tensor<1>, eps: f64) -> Tensor<D> {
    let mean_square = x.clone().square().mean_dim(D - 1);
    let scale = mean_square.add_scalar(eps).sqrt().recip();
    x * scale * weight.unsqueeze::<D>()
}

/// The norm on the CPU backend.
#[backend_extension(Flex, Autodiff)]
pub(crate) trait NormOps: Backend {
    /// y.
    fn root_mean_square(x: FloatTensor<Self>, weight: FloatTensor<Self>, eps: f64) -> FloatTensor<Self>;
}

/// Its backward pass there.
pub(crate) trait NormGradients: NormOps {
    /// ∂L/∂x.
    fn root_mean_square_by_input(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        eps: f64,
    ) -> FloatTensor<Self>;

    /// ∂L/∂w.
    fn root_mean_square_by_weight(
        x: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        eps: f64,
    ) -> FloatTensor<Self>;
}

impl NormOps for Flex {
    fn root_mean_square(x: FlexTensor, weight: FlexTensor, eps: f64) -> FlexTensor {
        let y = kernel::forward(&Values::of(&x), &Values::of(&weight), eps as f32);
        tensor(y, x.shape())
    }
}

impl NormGradients for Flex {
    fn root_mean_square_by_input(
        x: FlexTensor,
        weight: FlexTensor,
        gradient: FlexTensor,
        eps: f64,
    ) -> FlexTensor {
        let (values, gradient) = (Values::of(&x), Values::of(&gradient));
        let by_input = kernel::by_input(&values, &Values::of(&weight), &gradient, eps as f32);
        tensor(by_input, x.shape())
    }

    fn root_mean_square_by_weight(x: FlexTensor, gradient: FlexTensor, eps: f64) -> FlexTensor {
        let by_weight = kernel::by_weight(&Values::of(&x), &Values::of(&gradient), eps as f32);
        let width = by_weight.len();
        tensor(by_weight, [width])
    }
}
