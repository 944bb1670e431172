//! What each layer remembers of the places already seen.

use super::delta_net::Memory;
use super::packed::Segment;
use crate::ops::AttentionShape;
use burn::tensor::{Device, Int, Tensor, TensorData};

/// The state of every layer for B sequences, filled up to one common length: an attention's keys and values
/// [B, kv heads, capacity, D], a delta-net's recurrent state and last inputs.
///
/// Rows are left-padded: row b's first `starts[b]` places are padding that no query may see.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<Option<LayerCache>>,
    capacity: usize,
    filled: usize,
    starts: Vec<usize>,
}

#[derive(Clone, Debug)]
enum LayerCache {
    Attention { keys: Tensor<4>, values: Tensor<4> },
    DeltaNet(Memory),
}

impl KvCache {
    /// An empty cache of `layers` layers with room for `capacity` places a row.
    #[must_use]
    pub fn new(layers: usize, capacity: usize) -> Self {
        Self {
            layers: (0..layers).map(|_| None).collect(),
            capacity,
            filled: 0,
            starts: Vec::new(),
        }
    }

    /// Places filled in every row, the padding before it included.
    #[must_use]
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Rows held.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.starts.len()
    }

    /// Position id of each row's next token.
    pub(crate) fn next_positions(&self) -> Vec<usize> {
        self.starts.iter().map(|s| self.filled - s).collect()
    }

    /// Padding before each row.
    pub(crate) fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// Keeps the rows named by `rows`, in that order; a row named twice is doubled (a group shares its prompt).
    pub fn select(&mut self, rows: &[usize], device: &Device) {
        let index: Vec<i64> = rows.iter().map(|r| *r as i64).collect();
        let index = Tensor::<1, Int>::from_data(TensorData::new(index, [rows.len()]), device);
        for layer in self.layers.iter_mut().flatten() {
            match layer {
                LayerCache::Attention { keys, values } => {
                    keys.inplace(|t| t.select(0, index.clone()));
                    values.inplace(|t| t.select(0, index.clone()));
                }
                LayerCache::DeltaNet(Memory { inputs, state }) => {
                    inputs.inplace(|t| t.select(0, index.clone()));
                    state.inplace(|t| t.select(0, index.clone()));
                }
            }
        }
        self.starts = rows.iter().map(|r| self.starts[*r]).collect();
    }

    /// Starts with one row a segment, none of which has a prefix.
    pub(crate) fn open(&mut self, layout: &[Segment]) {
        self.filled = layout.iter().map(|s| s.places.len()).max().unwrap_or(0);
        self.starts = layout.iter().map(|s| self.filled - s.places.len()).collect();
    }

    /// Writes a layer's keys and values of packed prompts [N, kv heads·D] into the rows opened for them.
    pub(crate) fn fill(
        &mut self,
        layer: usize,
        keys: &Tensor<2>,
        values: &Tensor<2>,
        layout: &[Segment],
        shape: &AttentionShape,
    ) {
        let device = keys.device();
        let (rows, width) = (layout.len(), self.filled);
        // Padding repeats token 0: finite, and never seen.
        let places: Vec<i64> = layout
            .iter()
            .zip(&self.starts)
            .flat_map(|(s, start)| std::iter::repeat_n(0, *start).chain(s.places.clone().map(|p| p as i64)))
            .collect();
        let index = Tensor::<1, Int>::from_data(TensorData::new(places, [rows * width]), &device);
        let full = [rows, shape.kv_heads, self.capacity.max(width), shape.head_dim];
        let laid = |t: &Tensor<2>| {
            let padded = t.clone().inner().select(0, index.clone());
            let by_head = padded
                .reshape([rows, width, shape.kv_heads, shape.head_dim])
                .swap_dims(1, 2);
            Tensor::zeros(full, (&device, t.dtype()))
                .slice_assign([0..rows, 0..shape.kv_heads, 0..width, 0..shape.head_dim], by_head)
        };
        self.layers[layer] = Some(LayerCache::Attention {
            keys: laid(keys),
            values: laid(values),
        });
    }

    /// Appends a layer's keys and values of one token a row, [B, kv heads·D], and returns all of them,
    /// [B, kv heads, capacity, D].
    pub(crate) fn append(
        &mut self,
        layer: usize,
        keys: Tensor<2>,
        values: Tensor<2>,
        shape: &AttentionShape,
    ) -> (Tensor<4>, Tensor<4>) {
        let (rows, at) = (self.starts.len(), self.filled);
        let full = [rows, shape.kv_heads, self.capacity.max(at + 1), shape.head_dim];
        let device = keys.device();
        // Taken out of its slot so that the tensors have one owner and are written in place.
        let (k, v) = match self.layers[layer].take() {
            Some(LayerCache::Attention { keys, values }) => (keys, values),
            Some(LayerCache::DeltaNet(_)) | None => {
                let empty = || Tensor::zeros(full, (&device, keys.dtype()));
                (empty(), empty())
            }
        };
        let one = |t: Tensor<2>| t.reshape([rows, shape.kv_heads, 1, shape.head_dim]);
        let place = [0..rows, 0..shape.kv_heads, at..at + 1, 0..shape.head_dim];
        let keys = k.slice_assign(place.clone(), one(keys));
        let values = v.slice_assign(place, one(values));
        self.layers[layer] = Some(LayerCache::Attention {
            keys: keys.clone(),
            values: values.clone(),
        });
        (keys, values)
    }

    /// A delta-net's memory, which is put back with [`Self::put_delta_net`]; `None` in a cache never filled.
    pub(crate) fn take_delta_net(&mut self, layer: usize) -> Option<Memory> {
        match self.layers[layer].take() {
            Some(LayerCache::DeltaNet(memory)) => Some(memory),
            Some(LayerCache::Attention { .. }) | None => None,
        }
    }

    /// A delta-net's memory after its newest token.
    pub(crate) fn put_delta_net(&mut self, layer: usize, memory: Memory) {
        self.layers[layer] = Some(LayerCache::DeltaNet(memory));
    }

    /// Counts an appended place, once every layer has it.
    pub(crate) fn advance(&mut self) {
        self.filled += 1;
    }
}
