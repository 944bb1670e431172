//! The same from burn's own operations: padded rows, all scores at once.

use super::{AttentionShape, prefix};
use crate::model::{Segment, narrow, wide};
use burn::tensor::{Device, Int, Tensor, TensorData, activation};

pub(super) fn attention(
    q: Tensor<2>,
    k: Tensor<2>,
    v: Tensor<2>,
    layout: &[Segment],
    shape: &AttentionShape,
) -> Tensor<2> {
    let AttentionShape {
        heads,
        kv_heads,
        head_dim,
        ..
    } = *shape;
    let grid = Grid::new(layout);
    let device = q.device();
    let (rows, width, keys, group) = (layout.len(), grid.width, grid.keys, heads / kv_heads);
    let q = q
        .select(0, indices(grid.queries, &device))
        .reshape([rows, width, kv_heads, group, head_dim])
        .permute([0, 2, 3, 1, 4])
        .reshape([rows, kv_heads, group * width, head_dim]);
    let index = indices(grid.visible, &device);
    let by_head = |t: Tensor<2>| {
        t.select(0, index.clone())
            .reshape([rows, keys, kv_heads, head_dim])
            .swap_dims(1, 2)
    };
    let bias = bias(layout, width, keys, shape.window, &device);
    // Products as the activations are held; scores, scale and softmax in f32.
    let dtype = q.dtype();
    let scores = wide(q.matmul(by_head(k).swap_dims(2, 3)))
        .mul_scalar(1.0 / (head_dim as f64).sqrt())
        .reshape([rows, kv_heads, group, width, keys])
        + bias;
    let weights = activation::softmax(scores.reshape([rows, kv_heads, group * width, keys]), 3);
    narrow(weights, dtype)
        .matmul(by_head(v))
        .reshape([rows, kv_heads, group, width, head_dim])
        .permute([0, 3, 1, 2, 4])
        .reshape([rows * width, heads * head_dim])
        .select(0, indices(grid.places, &device))
}

/// Packed tokens as padded rows, and back.
struct Grid {
    /// Longest segment.
    width: usize,
    /// Longest segment with its prefix.
    keys: usize,
    /// Token of each padded query, [segments·width].
    queries: Vec<i64>,
    /// Token of each padded key, prefix first, [segments·keys].
    visible: Vec<i64>,
    /// Padded place of each token, [N].
    places: Vec<i64>,
}

impl Grid {
    fn new(layout: &[Segment]) -> Self {
        let width = layout.iter().map(|s| s.places.len()).max().unwrap_or(0);
        let keys = layout
            .iter()
            .map(|s| prefix(layout, s).len() + s.places.len())
            .max()
            .unwrap_or(0);
        // Padding repeats token 0: finite, and hidden by the bias or dropped on the way back.
        let padded = |tokens: &mut dyn Iterator<Item = usize>, width| {
            let mut line: Vec<i64> = tokens.map(|t| t as i64).collect();
            line.resize(width, 0);
            line
        };
        let mut grid = Self {
            width,
            keys,
            queries: Vec::new(),
            visible: Vec::new(),
            places: Vec::new(),
        };
        for (row, segment) in layout.iter().enumerate() {
            grid.queries.extend(padded(&mut segment.places.clone(), width));
            grid.visible.extend(padded(
                &mut prefix(layout, segment).chain(segment.places.clone()),
                keys,
            ));
            grid.places
                .extend((0..segment.places.len()).map(|i| (row * width + i) as i64));
        }
        grid
    }
}

/// 0 where a query may look, −1e30 where not: [segments, 1, 1, width, keys].
fn bias(layout: &[Segment], width: usize, keys: usize, window: Option<usize>, device: &Device) -> Tensor<5> {
    /// Far below every score, yet finite: a wholly hidden row gives a uniform softmax and not NaN.
    const HIDDEN: f32 = -1e30;
    let mut values = vec![HIDDEN; layout.len() * width * keys];
    for (row, segment) in layout.iter().enumerate() {
        let before = prefix(layout, segment).len();
        for query in 0..segment.places.len() {
            let last = before + query;
            let first = window.map_or(0, |w| (last + 1).saturating_sub(w));
            let line = (row * width + query) * keys;
            values[line + first..=line + last].fill(0.0);
        }
    }
    Tensor::from_data(TensorData::new(values, [layout.len(), 1, 1, width, keys]), device)
}

fn indices(values: Vec<i64>, device: &Device) -> Tensor<1, Int> {
    let count = values.len();
    Tensor::from_data(TensorData::new(values, [count]), device)
}
