//! Slices of the CPU backend's tensors.

use super::Matrix;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Shape, TensorData};
use std::borrow::Cow;

/// Whether a tensor holds f32.
pub(in crate::ops) fn is_f32(tensor: &FlexTensor) -> bool {
    tensor.dtype() == DType::F32
}

/// A tensor of `values` in row order.
pub(in crate::ops) fn tensor(values: Vec<f32>, shape: impl std::convert::Into<Shape>) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape.into()))
}

/// Gives `f` an f32 matrix as it lies: a transposed view is not copied.
pub(in crate::ops) fn with_matrix<R>(tensor: &FlexTensor, f: impl FnOnce(Matrix<'_>) -> R) -> R {
    let layout = tensor.layout();
    let strides: Vec<usize> = layout
        .strides()
        .iter()
        .filter_map(|s| usize::try_from(*s).ok())
        .collect();
    match (layout.shape().as_slice(), strides.as_slice()) {
        (&[rows, columns], &[row, column]) => {
            let data = &tensor.storage::<f32>()[layout.start_offset()..];
            f(Matrix::strided(data, [rows, columns], [row, column]))
        }
        _ => f(Values::of(tensor).matrix()),
    }
}

/// The values of an f32 tensor as rows: its last dimension's.
#[derive(Clone, Debug)]
pub(in crate::ops) struct Values<'a> {
    data: Cow<'a, [f32]>,
    rows: usize,
    columns: usize,
}

impl<'a> Values<'a> {
    /// Borrows them where they lie in row order, copies them elsewhere.
    ///
    /// # Panics
    /// When the tensor holds no f32.
    pub(in crate::ops) fn of(tensor: &'a FlexTensor) -> Self {
        let shape = tensor.layout().shape();
        let columns = shape.as_slice().last().copied().unwrap_or(1);
        let count = tensor.layout().num_elements();
        let data = match tensor.layout().contiguous_offsets() {
            Some((start, end)) => Cow::Borrowed(&tensor.storage::<f32>()[start..end]),
            None => Cow::Owned(tensor.to_contiguous().storage::<f32>().to_vec()),
        };
        Self {
            data,
            rows: count / columns.max(1),
            columns,
        }
    }

    pub(in crate::ops) fn new(data: Vec<f32>, [rows, columns]: [usize; 2]) -> Self {
        Self {
            data: Cow::Owned(data),
            rows,
            columns,
        }
    }

    pub(in crate::ops) fn rows(&self) -> usize {
        self.rows
    }

    pub(in crate::ops) fn columns(&self) -> usize {
        self.columns
    }

    pub(in crate::ops) fn slice(&self) -> &[f32] {
        &self.data
    }

    pub(in crate::ops) fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.columns..(row + 1) * self.columns]
    }

    pub(in crate::ops) fn rows_between(&self, rows: std::ops::Range<usize>) -> &[f32] {
        &self.data[rows.start * self.columns..rows.end * self.columns]
    }

    /// Rows `first`, `first` + 1, …
    pub(in crate::ops) fn rows_from(&self, first: usize) -> std::slice::ChunksExact<'_, f32> {
        self.data[first * self.columns..].chunks_exact(self.columns.max(1))
    }

    pub(in crate::ops) fn matrix(&self) -> Matrix<'_> {
        Matrix::new(&self.data, self.rows, self.columns)
    }

    pub(in crate::ops) fn into_tensor(self) -> FlexTensor {
        tensor(self.data.into_owned(), [self.rows, self.columns])
    }
}
