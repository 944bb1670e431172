//! A frozen linear layer by name.

use crate::lora::Lora;
use crate::ops::{self, Frozen};
use burn::tensor::Tensor;

/// y = x·Wᵀ + bias, and the adapter's term when an adapter names this layer.
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    /// Module path, `model.layers.0.self_attn.q_proj`.
    name: String,
    /// W [out, in].
    weight: Frozen,
    /// [out]
    bias: Option<Tensor<1>>,
}

impl Linear {
    pub(crate) fn new(name: String, weight: Frozen, bias: Option<Tensor<1>>) -> Self {
        Self { name, weight, bias }
    }

    /// `x` [N, in] to [N, out].
    pub(crate) fn forward(&self, x: Tensor<2>, lora: Option<&Lora>) -> Tensor<2> {
        let adapter = lora.and_then(|l| l.adapter(&self.name));
        ops::linear(x, &self.weight, self.bias.as_ref(), adapter)
    }
}
