//! A frozen linear layer by name.

use super::precision::narrow;
use crate::lora::Lora;
use crate::ops::{self, Frozen};
use burn::tensor::{DType, Tensor};

/// y = x·Wᵀ + bias, and the adapter's term when an adapter names this layer.
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    /// Module path, `model.layers.0.self_attn.q_proj`.
    name: String,
    /// W [out, in].
    weight: Frozen,
    /// [out]
    bias: Option<Tensor<1>>,
    adapter: AdapterTerm,
}

/// Where the adapter's term is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdapterTerm {
    /// Added to each product.
    Apart,
    /// In the weight.
    Merged,
}

impl Linear {
    pub(crate) fn new(name: String, weight: Frozen, bias: Option<Tensor<1>>) -> Self {
        Self {
            name,
            weight,
            bias,
            adapter: AdapterTerm::Apart,
        }
    }

    /// `x` [N, in] to [N, out], in the same numbers.
    pub(crate) fn forward(&self, x: Tensor<2>, lora: Option<&Lora>) -> Tensor<2> {
        let adapter = match self.adapter {
            AdapterTerm::Apart => self.adapter(lora),
            AdapterTerm::Merged => None,
        };
        let dtype = x.dtype();
        let x = match self.weight {
            // Weights of four bits are no reason for more digits than f32's.
            Frozen::Nf4(_) if dtype == DType::F64 => narrow(x, DType::F32),
            Frozen::Nf4(_) | Frozen::Dense(_) => x,
        };
        narrow(ops::linear(x, &self.weight, self.bias.as_ref(), adapter), dtype)
    }

    /// The same layer for rollouts with `lora`: its term in the weight where the weight can take it.
    pub(crate) fn merged(&self, lora: Option<&Lora>) -> Self {
        match self.weight.merged(self.adapter(lora)) {
            Some(weight) => Self {
                name: self.name.clone(),
                weight,
                bias: self.bias.clone(),
                adapter: AdapterTerm::Merged,
            },
            None => self.clone(),
        }
    }

    fn adapter<'a>(&self, lora: Option<&'a Lora>) -> Option<&'a ops::Adapter> {
        lora.and_then(|l| l.adapter(&self.name))
    }
}
