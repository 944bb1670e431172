//! SwiGLU (Shazeer 2020).

use super::linear::Linear;
use super::precision::{narrow, wide};
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
        let dtype = x.dtype();
        let gate = wide(self.gate.forward(x.clone(), lora));
        let up = wide(self.up.forward(x, lora));
        self.down.forward(narrow(ops::swiglu(gate, up), dtype), lora)
    }

    /// See [`Linear::merged`].
    pub(crate) fn merged(&self, lora: Option<&Lora>) -> Self {
        Self {
            gate: self.gate.merged(lora),
            up: self.up.merged(lora),
            down: self.down.merged(lora),
        }
    }
}
