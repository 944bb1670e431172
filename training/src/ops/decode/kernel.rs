//! Decoding attention over slices.

use super::{AttentionShape, CachedRows};
use crate::ops::host::{Values, by_rows, dot, exp, largest, sum, wide};
use burn::backend::flex::FlexTensor;
use std::ops::Range;

/// One layer's keys or values, [B, kv heads, capacity, D].
pub(super) struct Cache<'a> {
    values: Values<'a>,
    kv_heads: usize,
    capacity: usize,
}

impl<'a> Cache<'a> {
    pub(super) fn of(cache: &'a FlexTensor, shape: &AttentionShape) -> Self {
        Self {
            values: Values::of(cache),
            kv_heads: shape.kv_heads,
            capacity: cache.layout().shape()[2],
        }
    }

    /// Features at some places of one head of one row, [places, D].
    #[inline(always)]
    fn places(&self, row: usize, head: usize, places: &Range<usize>) -> &[f32] {
        let first = (row * self.kv_heads + head) * self.capacity;
        self.values.rows_between(first + places.start..first + places.end)
    }
}

pub(super) fn attend(
    q: &Values<'_>,
    keys: &Cache<'_>,
    values: &Cache<'_>,
    rows: CachedRows<'_>,
    shape: &AttentionShape,
) -> Vec<f32> {
    let (columns, width) = (q.columns(), shape.head_dim);
    let group = shape.heads / shape.kv_heads;
    let scale = 1.0 / (width as f32).sqrt();
    let oldest = shape.window.map_or(0, |w| rows.filled.saturating_sub(w));
    let mut out = vec![0.0; q.slice().len()];
    by_rows(&mut out, columns, |first, out| {
        let mut scores = vec![0.0; rows.filled];
        wide(
            #[inline(always)]
            || {
                for (row, out) in (first..).zip(out.chunks_exact_mut(columns)) {
                    let places = oldest.max(rows.starts[row])..rows.filled;
                    let heads = q.row(row).chunks_exact(width).zip(out.chunks_exact_mut(width));
                    for (head, (q, out)) in heads.enumerate() {
                        let keys = keys.places(row, head / group, &places);
                        let values = values.places(row, head / group, &places);
                        mix(out, q, keys, values, scale, &mut scores[..places.len()]);
                    }
                }
            },
        );
    });
    out
}

/// out ← softmax(scale·q·keysᵀ)·values for one head; `scores` is room for one number a place.
#[inline(always)]
fn mix(out: &mut [f32], q: &[f32], keys: &[f32], values: &[f32], scale: f32, scores: &mut [f32]) {
    for (score, key) in scores.iter_mut().zip(keys.chunks_exact(q.len())) {
        *score = dot(q, key) * scale;
    }
    let top = largest(scores);
    for score in scores.iter_mut() {
        *score = exp(*score - top);
    }
    let inverse = 1.0 / sum(scores);
    for (weight, value) in scores.iter().zip(values.chunks_exact(q.len())) {
        for (out, v) in out.iter_mut().zip(value) {
            *out = weight.mul_add(*v, *out);
        }
    }
    for out in out {
        *out *= inverse;
    }
}
