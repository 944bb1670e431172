//! The layer from any backend's own operations.

use super::{Weight, nf4};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::FloatDType;

pub(super) fn linear<B: Backend>(x: FloatTensor<B>, weight: Weight<B>) -> FloatTensor<B> {
    let values = dense::<B>(weight, &x);
    B::float_matmul(x, B::float_transpose(values))
}

pub(super) fn lora_parts<B: Backend>(
    x: FloatTensor<B>,
    weight: Weight<B>,
    a: FloatTensor<B>,
    b: FloatTensor<B>,
    scale: f64,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let h = product::<B>(x.clone(), B::float_transpose(a));
    let adapted = scaled_product::<B>(h.clone(), B::float_transpose(b), scale);
    (sum::<B>(linear::<B>(x, weight), adapted), h)
}

pub(super) fn linear_by_input<B: Backend>(gradient: FloatTensor<B>, weight: Weight<B>) -> FloatTensor<B> {
    let values = dense::<B>(weight, &gradient);
    B::float_matmul(gradient, values)
}

pub(super) fn lora_by_input<B: Backend>(
    gradient: FloatTensor<B>,
    weight: Weight<B>,
    u: FloatTensor<B>,
    a: FloatTensor<B>,
) -> FloatTensor<B> {
    sum::<B>(linear_by_input::<B>(gradient, weight), product::<B>(u, a))
}

pub(super) fn scaled_product<B: Backend>(a: FloatTensor<B>, b: FloatTensor<B>, scale: f64) -> FloatTensor<B> {
    let product = product::<B>(a, b);
    if scale == 1.0 {
        product
    } else {
        B::float_mul_scalar(product, scale.into())
    }
}

pub(super) fn scaled_product_over_rows<B: Backend>(
    a: FloatTensor<B>,
    b: FloatTensor<B>,
    scale: f64,
) -> FloatTensor<B> {
    scaled_product::<B>(B::float_transpose(a), b, scale)
}

/// a·b, in f32 where one of them is: activations in bf16 with an adapter in f32.
fn product<B: Backend>(a: FloatTensor<B>, b: FloatTensor<B>) -> FloatTensor<B> {
    if a.dtype() == b.dtype() {
        return B::float_matmul(a, b);
    }
    let wide = |t| B::float_cast(t, FloatDType::F32);
    B::float_matmul(wide(a), wide(b))
}

/// a + b as `a` is held, rounded once.
fn sum<B: Backend>(a: FloatTensor<B>, b: FloatTensor<B>) -> FloatTensor<B> {
    let dtype = a.dtype();
    if dtype == b.dtype() {
        return B::float_add(a, b);
    }
    let wide = |t| B::float_cast(t, FloatDType::F32);
    B::float_cast(B::float_add(wide(a), wide(b)), FloatDType::from(dtype))
}

/// The values of W for one product with `by`; a weight held otherwise is unpacked here, and dropped after it.
fn dense<B: Backend>(weight: Weight<B>, by: &FloatTensor<B>) -> FloatTensor<B> {
    match weight {
        Weight::Dense(values) => values,
        Weight::Nf4 {
            codes,
            scales,
            nested,
            shape,
            group,
            offset,
        } => {
            let scales = nf4::scales::<B>(scales, nested, group, offset);
            let values = nf4::values::<B>(codes, scales, shape);
            B::float_cast(values, FloatDType::from(by.dtype()))
        }
    }
}
