//! Named f32 tensors in bytewise name order: what an adapter, a momentum and a delta are made of.

use std::collections::BTreeMap;

/// One dense f32 tensor, row-major.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct F32Tensor {
    /// Extent of each dimension.
    pub shape: Vec<u64>,
    /// `shape.iter().product()` values.
    pub data: Vec<f32>,
}

/// Tensors by name. `BTreeMap<String, _>` iterates bytewise ascending, the order of delta files and of the flat vector.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct TensorSet(pub BTreeMap<String, F32Tensor>);

/// Why a flat vector does not fit a layout.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the flat vector has {got} elements where the layout of {tensors} tensors needs {want}")]
pub struct LayoutError {
    /// Elements given.
    pub got: usize,
    /// Elements the layout holds.
    pub want: usize,
    /// Tensors in the layout.
    pub tensors: usize,
}

impl TensorSet {
    /// Elements of all tensors: L, the length of the flat vector.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.0.values().map(|t| t.data.len()).sum()
    }

    /// All values in name order: the flat vector of PROTOCOL section 6.
    #[must_use]
    pub fn flatten(&self) -> Vec<f32> {
        let mut flat = Vec::with_capacity(self.elements());
        for tensor in self.0.values() {
            flat.extend_from_slice(&tensor.data);
        }
        flat
    }

    /// The same names and shapes with the values of `flat`.
    ///
    /// # Errors
    /// When the lengths differ.
    pub fn with_flat(&self, flat: &[f32]) -> Result<Self, LayoutError> {
        if flat.len() != self.elements() {
            return Err(LayoutError {
                got: flat.len(),
                want: self.elements(),
                tensors: self.0.len(),
            });
        }
        let mut rest = flat;
        let mut out = BTreeMap::new();
        for (name, tensor) in &self.0 {
            let (data, tail) = rest.split_at(tensor.data.len());
            rest = tail;
            out.insert(
                name.clone(),
                F32Tensor {
                    shape: tensor.shape.clone(),
                    data: data.to_vec(),
                },
            );
        }
        Ok(Self(out))
    }

    /// The same names and shapes.
    #[must_use]
    pub fn same_layout(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
            && self
                .0
                .iter()
                .zip(&other.0)
                .all(|((a, s), (b, t))| a == b && s.shape == t.shape)
    }

    /// The first value that is NaN or infinite: tensor and index in it.
    #[must_use]
    pub fn first_non_finite(&self) -> Option<(&str, usize)> {
        self.0.iter().find_map(|(name, t)| {
            t.data
                .iter()
                .position(|v| !v.is_finite())
                .map(|i| (name.as_str(), i))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set() -> TensorSet {
        let t = |shape: &[u64], data: &[f32]| F32Tensor {
            shape: shape.to_vec(),
            data: data.to_vec(),
        };
        TensorSet(BTreeMap::from([
            ("b".into(), t(&[2], &[3., 4.])),
            ("a".into(), t(&[1, 2], &[1., 2.])),
        ]))
    }

    #[test]
    fn flat_is_in_name_order_and_back() {
        let s = set();
        assert_eq!(s.flatten(), [1., 2., 3., 4.]);
        assert_eq!(s.with_flat(&s.flatten()).unwrap(), s);
        assert_eq!(s.with_flat(&[1.]).unwrap_err().want, 4);
    }
}
