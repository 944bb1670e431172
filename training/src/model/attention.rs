//! An attention layer: projections, norms on queries and keys where the family has them, rotation, mixing.

use super::linear::Linear;
use super::norm::RmsNorm;
use super::pass::{Pass, State};
use crate::lora::Lora;
use crate::ops::{self, AttentionShape, CachedRows};
use burn::tensor::Tensor;

/// Grouped-query attention (Ainslie et al. 2023).
#[derive(Clone, Debug)]
pub(crate) struct Attention {
    pub(crate) q: Linear,
    pub(crate) k: Linear,
    pub(crate) v: Linear,
    pub(crate) o: Linear,
    /// Qwen3's norms over each head of the queries and keys.
    pub(crate) qk_norm: Option<(RmsNorm, RmsNorm)>,
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
        let (q, k) = (self.q.forward(x.clone(), lora), self.k.forward(x.clone(), lora));
        let v = self.v.forward(x, lora);
        let (q_norm, k_norm) = self.qk_norm.as_ref().map(|(q, k)| (q, k)).unzip();
        let q = self.placed(q, self.shape.heads, q_norm, pass);
        let k = self.placed(k, self.shape.kv_heads, k_norm, pass);
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
        self.o.forward(mixed, lora)
    }

    /// Queries or keys [N, heads·D] normed and rotated.
    fn placed(&self, x: Tensor<2>, heads: usize, norm: Option<&RmsNorm>, pass: &Pass) -> Tensor<2> {
        let [tokens, width] = x.dims();
        let mut x = x.reshape([tokens, heads, self.shape.head_dim]);
        if let Some(norm) = norm {
            x = norm.forward(x);
        }
        ops::rotate(x, &pass.rotation).reshape([tokens, width])
    }
}
