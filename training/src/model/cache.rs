//! Keys and values of the places already seen.

use burn::tensor::{Device, Int, Tensor, TensorData};

/// Keys and values of every layer, [B, kv heads, capacity, D] each, filled up to one common length.
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
struct LayerCache {
    keys: Tensor<4>,
    values: Tensor<4>,
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

    /// Places filled in every row.
    #[must_use]
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Rows held.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.starts.len()
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
            layer.keys.inplace(|t| t.select(0, index.clone()));
            layer.values.inplace(|t| t.select(0, index.clone()));
        }
        self.starts = rows.iter().map(|r| self.starts[*r]).collect();
    }

    /// Starts with rows of these paddings.
    pub(crate) fn open(&mut self, starts: Vec<usize>) {
        self.starts = starts;
    }

    /// Appends a layer's keys and values [B, kv heads, T, D] and returns all filled ones.
    pub(crate) fn append(
        &mut self,
        layer: usize,
        keys: Tensor<4>,
        values: Tensor<4>,
    ) -> (Tensor<4>, Tensor<4>) {
        let [rows, heads, width, dim] = keys.dims();
        let end = self.filled + width;
        let shape = [rows, heads, self.capacity.max(end), dim];
        let device = keys.device();
        // Taken out of its slot so that the tensors have one owner and are written in place.
        let LayerCache { keys: k, values: v } = self.layers[layer].take().unwrap_or_else(|| LayerCache {
            keys: Tensor::zeros(shape, &device),
            values: Tensor::zeros(shape, &device),
        });
        let place = [0..rows, 0..heads, self.filled..end, 0..dim];
        let k = k.slice_assign(place.clone(), keys);
        let v = v.slice_assign(place, values);
        let all = (k.clone().narrow(2, 0, end), v.clone().narrow(2, 0, end));
        self.layers[layer] = Some(LayerCache { keys: k, values: v });
        all
    }

    /// Counts `width` appended places, once every layer has them.
    pub(crate) fn advance(&mut self, width: usize) {
        self.filled += width;
    }
}
