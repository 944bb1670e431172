//! Unpacking NF4 with any backend's own operations.

use crate::quant::{BLOCK, CODE, scale_code};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{IntDType, Shape, Slice, TensorData};

/// The scale of each block, [blocks], f32: code[scales]·nested + offset.
pub(super) fn scales<B: Backend>(
    scales: IntTensor<B>,
    nested: FloatTensor<B>,
    group: usize,
    offset: f32,
) -> FloatTensor<B> {
    let (device, blocks) = (nested.device(), scales.shape().num_elements());
    let code = B::float_from_data(TensorData::from(*scale_code()), &device);
    let scaled = B::float_select(code, 0, B::int_cast(scales, IntDType::I32));
    let block = B::int_arange(0..blocks as i64, &device, IntDType::I32);
    let nested = B::float_select(nested, 0, B::int_div_scalar(block, (group as i64).into()));
    B::float_add_scalar(B::float_mul(scaled, nested), offset.into())
}

/// The matrix's values [out, in], f32.
pub(super) fn values<B: Backend>(
    codes: IntTensor<B>,
    scales: FloatTensor<B>,
    shape: [usize; 2],
) -> FloatTensor<B> {
    let (device, count) = (scales.device(), shape[0] * shape[1]);
    let (bytes, blocks) = (codes.shape().num_elements(), scales.shape().num_elements());
    let codes = B::int_reshape(B::int_cast(codes, IntDType::I32), Shape::new([bytes, 1]));
    let high = B::bitwise_right_shift_scalar(codes.clone(), 4.into());
    let low = B::bitwise_and_scalar(codes, 15.into());
    let codes = B::int_reshape(B::int_cat(vec![high, low], 1), Shape::new([2 * bytes]));
    let code = B::float_from_data(TensorData::from(CODE), &device);
    let values = B::float_select(code, 0, codes);
    if count == blocks * BLOCK {
        let values = B::float_reshape(values, Shape::new([blocks, BLOCK]));
        let scales = B::float_reshape(scales, Shape::new([blocks, 1]));
        return B::float_reshape(B::float_mul(values, scales), Shape::from(shape));
    }
    // The last block ends short, and the last byte may hold one code.
    let values = B::float_slice(values, &[Slice::from(0..count)]);
    let place = B::int_arange(0..count as i64, &device, IntDType::I32);
    let scales = B::float_select(scales, 0, B::int_div_scalar(place, (BLOCK as i64).into()));
    B::float_reshape(B::float_mul(values, scales), Shape::from(shape))
}
