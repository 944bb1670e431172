//! Attention of one new token a row over its cached keys and values.

use super::AttentionShape;
use burn::tensor::{Device, Tensor, TensorData, activation};

/// Which cached places each row may see: `starts[b]..filled`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedRows<'a> {
    /// Padding before each row.
    pub(crate) starts: &'a [usize],
    /// Places filled, the new token's included.
    pub(crate) filled: usize,
}

/// softmax(q·kᵀ/√D)·v by heads, without gradients. `q`: [B, heads·D]; `keys`, `values`: [B, kv heads, capacity, D];
/// the result: [B, heads·D].
pub(crate) fn attend_cached(
    q: Tensor<2>,
    keys: &Tensor<4>,
    values: &Tensor<4>,
    rows: CachedRows<'_>,
    shape: &AttentionShape,
) -> Tensor<2> {
    let AttentionShape {
        heads,
        kv_heads,
        head_dim,
        ..
    } = *shape;
    let batch = rows.starts.len();
    let q =
        q.mul_scalar(1.0 / (head_dim as f64).sqrt())
            .reshape([batch, kv_heads, heads / kv_heads, head_dim]);
    let keys = keys.clone().narrow(2, 0, rows.filled);
    let mut scores = q.matmul(keys.swap_dims(2, 3));
    if let Some(bias) = bias(rows, shape.window, &scores.device()) {
        scores = scores + bias;
    }
    let values = values.clone().narrow(2, 0, rows.filled);
    activation::softmax(scores, 3)
        .matmul(values)
        .reshape([batch, heads * head_dim])
}

/// 0 where a row may look, −1e30 where not: [B, 1, 1, filled]. `None` when all is visible.
fn bias(rows: CachedRows<'_>, window: Option<usize>, device: &Device) -> Option<Tensor<4>> {
    let first = window.map_or(0, |w| rows.filled.saturating_sub(w));
    if first == 0 && rows.starts.iter().all(|s| *s == 0) {
        return None;
    }
    let mut values = vec![0f32; rows.starts.len() * rows.filled];
    for (line, start) in values.chunks_exact_mut(rows.filled).zip(rows.starts) {
        line[..first.max(*start)].fill(-1e30);
    }
    let data = TensorData::new(values, [rows.starts.len(), 1, 1, rows.filled]);
    Some(Tensor::from_data(data, device))
}
