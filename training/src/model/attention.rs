//! Grouped-query attention (Ainslie et al. 2023) with Qwen3's norms on queries and keys.

use super::cache::KvCache;
use super::linear::Linear;
use super::norm::RmsNorm;
use super::rope::Rotation;
use crate::lora::Lora;
use burn::tensor::{Device, Tensor, TensorData, activation};

/// softmax(q·kᵀ/√D + bias)·v by heads, each key head serving a group of query heads.
#[derive(Clone, Debug)]
pub(crate) struct Attention {
    pub(crate) q: Linear,
    pub(crate) k: Linear,
    pub(crate) v: Linear,
    pub(crate) o: Linear,
    pub(crate) q_norm: RmsNorm,
    pub(crate) k_norm: RmsNorm,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
}

/// What a forward pass shares between its layers.
#[derive(Debug)]
pub(crate) struct Geometry {
    pub(crate) rows: usize,
    pub(crate) width: usize,
    pub(crate) rotation: Rotation,
    /// 0 where a query may look, −1e30 where not: [B or 1, 1, 1, T, keys]. `None` when all is visible.
    pub(crate) bias: Option<Tensor<5>>,
}

/// A cache and the layer it is used for.
pub(crate) struct Slot<'a> {
    pub(crate) cache: &'a mut KvCache,
    pub(crate) layer: usize,
}

impl Attention {
    /// `x` and the result: [B·T, H].
    pub(crate) fn forward(
        &self,
        x: Tensor<2>,
        geometry: &Geometry,
        lora: Option<&Lora>,
        slot: Option<Slot<'_>>,
    ) -> Tensor<2> {
        let split = |t: Tensor<2>, heads| t.reshape([geometry.rows, geometry.width, heads, self.head_dim]);
        let q = self
            .q_norm
            .forward(split(self.q.forward(x.clone(), lora), self.heads));
        let k = self
            .k_norm
            .forward(split(self.k.forward(x.clone(), lora), self.kv_heads));
        let v = split(self.v.forward(x, lora), self.kv_heads).swap_dims(1, 2);
        let q = geometry.rotation.apply(q);
        let k = geometry.rotation.apply(k).swap_dims(1, 2);
        let (k, v) = match slot {
            Some(slot) => slot.cache.append(slot.layer, k, v),
            None => (k, v),
        };
        self.o.forward(self.mix(q, k, v, geometry), lora)
    }

    /// q [B, T, heads, D], k and v [B, kv heads, keys, D] to [B·T, heads·D].
    fn mix(&self, q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, geometry: &Geometry) -> Tensor<2> {
        let (rows, width, group) = (geometry.rows, geometry.width, self.heads / self.kv_heads);
        let keys = k.dims()[2];
        // A key head's queries lie under one another, so that one product serves the whole group.
        let q = q
            .mul_scalar(1.0 / (self.head_dim as f64).sqrt())
            .reshape([rows, width, self.kv_heads, group, self.head_dim])
            .permute([0, 2, 3, 1, 4])
            .reshape([rows, self.kv_heads, group * width, self.head_dim]);
        let mut scores = q.matmul(k.swap_dims(2, 3));
        if let Some(bias) = &geometry.bias {
            let by_group = scores.reshape([rows, self.kv_heads, group, width, keys]) + bias.clone();
            scores = by_group.reshape([rows, self.kv_heads, group * width, keys]);
        }
        activation::softmax(scores, 3)
            .matmul(v)
            .reshape([rows, self.kv_heads, group, width, self.head_dim])
            .permute([0, 3, 1, 2, 4])
            .reshape([rows * width, self.heads * self.head_dim])
    }
}

/// The visibility of `seen + width` keys to `width` queries under causality and left padding.
///
/// `starts[b]` places of padding precede row b. A query in the padding sees everything before it, so that its
/// softmax is finite; nobody reads it.
pub(crate) fn bias(starts: &[usize], width: usize, seen: usize, device: &Device) -> Option<Tensor<5>> {
    /// Far below every score, yet finite: a wholly hidden row gives a uniform softmax and not NaN.
    const HIDDEN: f32 = -1e30;
    let padded = starts.iter().any(|s| *s > 0);
    if !padded && width == 1 {
        return None;
    }
    let rows: &[usize] = if padded { starts } else { &[0] };
    let keys = seen + width;
    let mut values = vec![0f32; rows.len() * width * keys];
    for (line, place) in values.chunks_exact_mut(keys).enumerate().map(|(i, l)| (l, i)) {
        let (start, query) = (rows[place / width], seen + place % width);
        for (key, value) in line.iter_mut().enumerate() {
            if key > query || key < start {
                *value = HIDDEN;
            }
        }
    }
    Some(Tensor::from_data(
        TensorData::new(values, [rows.len(), 1, 1, width, keys]),
        device,
    ))
}
