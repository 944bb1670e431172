//! SwiGLU (Shazeer 2020): an operation of its own, which keeps its inputs alone.
//!
//! y = g·σ(g)·u. With d = ∂L/∂y: ∂L/∂u = d·g·σ(g) and ∂L/∂g = d·u·σ(g)·(1 + g·(1 − σ(g))).

mod autodiff;
mod kernel;
#[cfg(test)]
mod tests;

use super::graph::{Backend, Dispatch, Flex, FloatTensor, backend_extension, on_host};
use super::host::{Values, tensor};
use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Tensor, activation};

/// silu(gate) · up, all [N, F].
pub(crate) fn swiglu(gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
    // The kernel is f32's.
    if on_host(&gate) && gate.dtype() != DType::F64 {
        return Tensor::from_dispatch(Dispatch::gated(gate.into_dispatch(), up.into_dispatch()));
    }
    composed(gate, up)
}

/// The same from burn's own operations.
fn composed(gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
    activation::silu(gate) * up
}

/// SwiGLU on the CPU backend.
#[backend_extension(Flex, Autodiff)]
pub(crate) trait SwigluOps: Backend {
    /// y.
    fn gated(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// Its backward pass there.
pub(crate) trait SwigluGradients: SwigluOps {
    /// ∂L/∂g and ∂L/∂u.
    fn gated_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 2];
}

impl SwigluOps for Flex {
    fn gated(gate: FlexTensor, up: FlexTensor) -> FlexTensor {
        tensor(
            kernel::forward(&Values::of(&gate), &Values::of(&up)),
            gate.shape(),
        )
    }
}

impl SwigluGradients for Flex {
    fn gated_backward(gate: FlexTensor, up: FlexTensor, gradient: FlexTensor) -> [FlexTensor; 2] {
        kernel::backward(&Values::of(&gate), &Values::of(&up), &Values::of(&gradient))
            .map(|values| tensor(values, gate.shape()))
    }
}
