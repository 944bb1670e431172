//! The layer from any backend's own operations.

use super::{Weight, nf4};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType, FloatDType};

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

/// a·b in the wider of their numbers: an adapter in f32 with activations in bf16, or in f64.
fn product<B: Backend>(a: FloatTensor<B>, b: FloatTensor<B>) -> FloatTensor<B> {
    let [a, b] = alike::<B>(a, b);
    B::float_matmul(a, b)
}

/// a + b as `a` is held, rounded once.
fn sum<B: Backend>(a: FloatTensor<B>, b: FloatTensor<B>) -> FloatTensor<B> {
    let dtype = a.dtype();
    let [a, b] = alike::<B>(a, b);
    as_held::<B>(B::float_add(a, b), dtype)
}

/// Both in f64 where one is, in f32 where they differ otherwise.
fn alike<B: Backend>(a: FloatTensor<B>, b: FloatTensor<B>) -> [FloatTensor<B>; 2] {
    let both = [a.dtype(), b.dtype()];
    let dtype = match both {
        [one, other] if one == other => one,
        _ if both.contains(&DType::F64) => DType::F64,
        _ => DType::F32,
    };
    [a, b].map(|t| as_held::<B>(t, dtype))
}

/// `t` in numbers of `dtype`.
pub(super) fn as_held<B: Backend>(t: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    if t.dtype() == dtype {
        return t;
    }
    B::float_cast(t, FloatDType::from(dtype))
}

/// The values of W for one product with `by`; a weight held otherwise is unpacked here, and dropped after it.
fn dense<B: Backend>(weight: Weight<B>, by: &FloatTensor<B>) -> FloatTensor<B> {
    match weight {
        // Wider than it is held only beside f64; the copy lasts as long as the product.
        Weight::Dense(values) if by.dtype() == DType::F64 => as_held::<B>(values, DType::F64),
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
            as_held::<B>(values, by.dtype())
        }
    }
}
