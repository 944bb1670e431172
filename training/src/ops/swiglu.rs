//! SwiGLU (Shazeer 2020).

use burn::tensor::{Tensor, activation};

/// silu(gate) · up, all [N, F].
pub(crate) fn swiglu(gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
    activation::silu(gate) * up
}
