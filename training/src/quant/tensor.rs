//! One matrix in NF4 on a device.

use super::matrix::{Nf4Matrix, Scales};
use super::{dynamic, nf4};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use std::sync::Arc;

/// A frozen matrix [out, in] in NF4 as tensors of a device: codes and scales, never its values.
///
/// A clone is cheap: tensors are shared.
#[derive(Clone)]
pub struct Nf4Tensor(Arc<Parts>);

/// What it is made of.
pub(crate) struct Parts {
    /// [out, in]
    pub(crate) shape: [usize; 2],
    /// Two codes a byte (U8), the first in the high nibble.
    pub(crate) codes: Tensor<1, Int>,
    /// The 8-bit code of each block's scale (U8).
    pub(crate) scales: Tensor<1, Int>,
    /// The scale of `group` scales (F32).
    pub(crate) nested: Tensor<1>,
    pub(crate) group: usize,
    pub(crate) offset: f32,
}

impl Nf4Tensor {
    /// Puts a matrix on `device`.
    #[must_use]
    pub fn new(matrix: Nf4Matrix, device: &Device) -> Self {
        let device = device.clone().inner();
        let (shape, codes, scales) = matrix.into_parts();
        let (scales, nested, group, offset) = match scales {
            Scales::Double {
                codes,
                nested,
                offset,
            } => (codes, nested, dynamic::BLOCK, offset),
            // The code's last value is 1, so that a scale of its own for each block is that block's.
            Scales::Plain(absmax) => (vec![u8::MAX; absmax.len()], absmax, 1, 0.0),
        };
        let bytes = |values: Vec<u8>| {
            let count = values.len();
            Tensor::from_data(TensorData::new(values, [count]), (&device, DType::U8))
        };
        let count = nested.len();
        Self(Arc::new(Parts {
            shape,
            codes: bytes(codes),
            scales: bytes(scales),
            nested: Tensor::from_data(TensorData::new(nested, [count]), (&device, DType::F32)),
            group,
            offset,
        }))
    }

    /// [out, in].
    #[must_use]
    pub fn shape(&self) -> [usize; 2] {
        self.0.shape
    }

    /// Copies codes and scales to the host.
    #[must_use]
    pub fn to_host(&self) -> Nf4Matrix {
        let bytes = |t: &Tensor<1, Int>| t.to_data().iter::<u8>().collect::<Vec<u8>>();
        let nested = self.0.nested.to_data().iter::<f32>().collect();
        let scales = if self.0.group == 1 {
            Scales::Plain(nested)
        } else {
            Scales::Double {
                codes: bytes(&self.0.scales),
                nested,
                offset: self.0.offset,
            }
        };
        Nf4Matrix::unchecked(self.0.shape, bytes(&self.0.codes), scales)
    }

    /// Bytes of the device that hold the matrix.
    #[must_use]
    pub fn resident_bytes(&self) -> usize {
        let size = |dtype: DType, dims: [usize; 1]| dtype.size() * dims[0];
        size(self.0.codes.dtype(), self.0.codes.dims())
            + size(self.0.scales.dtype(), self.0.scales.dims())
            + size(self.0.nested.dtype(), self.0.nested.dims())
    }

    /// Its tensors and numbers, for the operation that multiplies with it.
    pub(crate) fn parts(&self) -> &Parts {
        &self.0
    }
}

impl std::fmt::Debug for Nf4Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Nf4Tensor({:?}, {} bytes)",
            self.0.shape,
            self.resident_bytes()
        )
    }
}

/// Codes and scales as slices: what a kernel unpacks rows from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nf4Slices<'a> {
    pub(crate) codes: &'a [u8],
    pub(crate) scales: &'a [u8],
    pub(crate) nested: &'a [f32],
    pub(crate) group: usize,
    pub(crate) offset: f32,
}

impl Nf4Slices<'_> {
    /// Values `start..start + out.len()`, row-major.
    pub(crate) fn dequantise(&self, start: usize, out: &mut [f32]) {
        let code = dynamic::code();
        let scale = |block: usize| {
            code[usize::from(self.scales[block])] * self.nested[block / self.group] + self.offset
        };
        nf4::dequantise(self.codes, scale, start, out);
    }
}
