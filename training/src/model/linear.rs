//! A frozen linear layer with its adapter.

use crate::lora::Lora;
use burn::tensor::Tensor;

/// y = x·Wᵀ + (alpha/r)·(x·Aᵀ)·Bᵀ; the second term when an adapter names this layer.
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    /// Module path, `model.layers.0.self_attn.q_proj`.
    name: String,
    /// W [out, in].
    weight: Tensor<2>,
}

impl Linear {
    pub(crate) fn new(name: String, weight: Tensor<2>) -> Self {
        Self { name, weight }
    }

    /// `x` [N, in] to [N, out].
    pub(crate) fn forward(&self, x: Tensor<2>, lora: Option<&Lora>) -> Tensor<2> {
        let base = x.clone().matmul(self.weight.clone().transpose());
        match lora.and_then(|l| l.pair(&self.name)) {
            Some(pair) => base + pair.forward(x),
            None => base,
        }
    }
}
