//! The same from burn's own operations.

use super::{AttentionShape, CachedRows};
use crate::model::{narrow, wide};
use burn::tensor::{Device, Tensor, TensorData, activation};

pub(super) fn attend_cached(
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
    let dtype = q.dtype();
    let q = q.reshape([batch, kv_heads, heads / kv_heads, head_dim]);
    let keys = keys.clone().narrow(2, 0, rows.filled);
    let scores = wide(q.matmul(keys.swap_dims(2, 3)));
    let mut scores = scores.mul_scalar(1.0 / (head_dim as f64).sqrt());
    if let Some(bias) = bias(rows, shape.window, &scores.device()) {
        scores = scores + bias;
    }
    let values = values.clone().narrow(2, 0, rows.filled);
    narrow(activation::softmax(scores, 3), dtype)
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
