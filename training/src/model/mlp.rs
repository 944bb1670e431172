//! SwiGLU (Shazeer 2020).

use super::linear::Linear;
use crate::lora::Lora;
use crate::ops;
use burn::tensor::Tensor;

/// down(silu(gate(x)) · up(x)).
#[derive(Clone, Debug)]
pub(crate) struct Mlp {
    pub(crate) gate: Linear,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}

impl Mlp {
    /// `x` and the result: [N, H].
    pub(crate) fn forward(&self, x: Tensor<2>, lora: Option<&Lora>) -> Tensor<2> {
        let gate = self.gate.forward(x.clone(), lora);
        let up = self.up.forward(x, lora);
        self.down.forward(ops::swiglu(gate, up), lora)
    }
}
