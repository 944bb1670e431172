//! An attention layer: projections, norms on queries and keys where the family has them, rotation, mixing.

use super::linear::Linear;
use super::norm::RmsNorm;
use super::pass::{Pass, State};
use super::precision::{mixing_dtype, narrow, wide};
use crate::lora::Lora;
use crate::ops::{self, AttentionShape, CachedRows};
use burn::tensor::{Tensor, activation};

/// Grouped-query attention (Ainslie et al. 2023).
#[derive(Clone, Debug)]
pub(crate) struct Attention {
    pub(crate) q: Linear,
    pub(crate) k: Linear,
    pub(crate) v: Linear,
    pub(crate) o: Linear,
    /// Qwen3's norms over each head of the queries and keys.
    pub(crate) qk_norm: Option<(RmsNorm, RmsNorm)>,
    /// Whether the query projection gives, head by head, a gate for the output after the query (Qwen3-Next).
    pub(crate) gated: bool,
    pub(crate) shape: AttentionShape,
}

impl Attention {
    /// `x` and the result: [N, H].
    pub(crate) fn forward(
        &self,
        x: Tensor<2>,
        pass: &Pass,
        lora: Option<&Lora>,
        state: State<'_>,
    ) -> Tensor<2> {
        let dtype = x.dtype();
        let mixing = mixing_dtype(&x);
        let (q, gate) = self.queries(x.clone(), lora);
        let k = self.k.forward(x.clone(), lora);
        let v = narrow(self.v.forward(x, lora), mixing);
        let (q_norm, k_norm) = self.qk_norm.as_ref().map(|(q, k)| (q, k)).unzip();
        let q = narrow(self.placed(wide(q), q_norm, pass), mixing);
        let k = narrow(self.placed(wide(k), k_norm, pass), mixing);
        let mixed = match state {
            State::None => ops::attention(q, k, v, &pass.layout, &self.shape),
            State::Prefill { cache, layer } => {
                cache.fill(layer, &k, &v, &pass.layout, &self.shape);
                ops::attention(q, k, v, &pass.layout, &self.shape)
            }
            State::Decode { cache, layer } => {
                let (keys, values) = cache.append(layer, k, v, &self.shape);
                let rows = CachedRows {
                    starts: cache.starts(),
                    filled: cache.filled() + 1,
                };
                ops::attend_cached(q, &keys, &values, rows, &self.shape)
            }
        };
        let mixed = match gate {
            Some(gate) => wide(mixed) * activation::sigmoid(wide(gate)),
            None => mixed,
        };
        self.o.forward(narrow(mixed, dtype), lora)
    }

    /// See [`Linear::merged`].
    pub(crate) fn merged(&self, lora: Option<&Lora>) -> Self {
        Self {
            q: self.q.merged(lora),
            k: self.k.merged(lora),
            v: self.v.merged(lora),
            o: self.o.merged(lora),
            ..self.clone()
        }
    }

    /// Queries, and the output's gate, [N, heads·D] both.
    fn queries(&self, x: Tensor<2>, lora: Option<&Lora>) -> (Tensor<2>, Option<Tensor<2>>) {
        let q = self.q.forward(x, lora);
        if !self.gated {
            return (q, None);
        }
        let AttentionShape { heads, head_dim, .. } = self.shape;
        let tokens = q.dims()[0];
        let both = q.reshape([tokens, heads, 2 * head_dim]);
        let half = |start| {
            both.clone()
                .narrow(2, start, head_dim)
                .reshape([tokens, heads * head_dim])
        };
        (half(0), Some(half(head_dim)))
    }

    /// Queries or keys [N, heads·D] normed and rotated.
    fn placed(&self, x: Tensor<2>, norm: Option<&RmsNorm>, pass: &Pass) -> Tensor<2> {
        ops::place(x, self.shape.head_dim, norm.map(RmsNorm::by_head), &pass.rotation)
    }
}
