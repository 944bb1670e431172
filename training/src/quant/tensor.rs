//! One matrix in NF4 on a device.

use super::matrix::{Nf4Matrix, Scales};
use super::{dynamic, nf4};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

/// A frozen matrix [out, in] in NF4 as tensors of a device: codes and scales, never its values.
///
/// A clone is cheap: tensors are shared.
#[derive(Clone)]
pub struct Nf4Tensor {
    shape: [usize; 2],
    /// Two codes a byte (U8), the first in the high nibble.
    codes: Tensor<1, Int>,
    /// The 8-bit code of each block's scale (U8).
    scales: Tensor<1, Int>,
    /// The scale of `group` scales (F32).
    nested: Tensor<1>,
    group: usize,
    offset: f32,
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
        Self {
            shape,
            codes: bytes(codes),
            scales: bytes(scales),
            nested: Tensor::from_data(TensorData::new(nested, [count]), (&device, DType::F32)),
            group,
            offset,
        }
    }

    /// [out, in].
    #[must_use]
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Copies codes and scales to the host.
    #[must_use]
    pub fn to_host(&self) -> Nf4Matrix {
        let bytes = |t: &Tensor<1, Int>| t.to_data().iter::<u8>().collect::<Vec<u8>>();
        let nested = self.nested.to_data().iter::<f32>().collect();
        let scales = if self.group == 1 {
            Scales::Plain(nested)
        } else {
            Scales::Double {
                codes: bytes(&self.scales),
                nested,
                offset: self.offset,
            }
        };
        Nf4Matrix::unchecked(self.shape, bytes(&self.codes), scales)
    }

    /// Bytes of the device that hold the matrix.
    #[must_use]
    pub fn resident_bytes(&self) -> usize {
        let size = |dtype: DType, dims: [usize; 1]| dtype.size() * dims[0];
        size(self.codes.dtype(), self.codes.dims())
            + size(self.scales.dtype(), self.scales.dims())
            + size(self.nested.dtype(), self.nested.dims())
    }

    /// Its tensors and numbers, for the operation that multiplies with it.
    pub(crate) fn parts(&self) -> Parts {
        Parts {
            shape: self.shape,
            codes: self.codes.clone(),
            scales: self.scales.clone(),
            nested: self.nested.clone(),
            group: self.group,
            offset: self.offset,
        }
    }
}

/// What [`Nf4Tensor`] is made of.
pub(crate) struct Parts {
    pub(crate) shape: [usize; 2],
    pub(crate) codes: Tensor<1, Int>,
    pub(crate) scales: Tensor<1, Int>,
    pub(crate) nested: Tensor<1>,
    pub(crate) group: usize,
    pub(crate) offset: f32,
}

impl std::fmt::Debug for Nf4Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nf4Tensor({:?}, {} bytes)", self.shape, self.resident_bytes())
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
