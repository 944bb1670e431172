//! The layer on the CPU backend: no pass over memory beside the products.

use super::{LinearOps, Weight, compose};
use crate::ops::host::{Into, Values, is_f32, product, tensor};
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;

impl LinearOps for Flex {
    fn plain_linear(x: FlexTensor, weight: Weight<Self>) -> FlexTensor {
        if !is_f32(&x) {
            return compose::linear::<Self>(x, weight);
        }
        let x = Values::of(&x);
        let (rows, output) = (x.rows(), weight.output());
        let mut y = vec![0.0; rows * output];
        times_transposed(&mut y, &x, &weight);
        tensor(y, [rows, output])
    }

    fn lora_parts(
        x: FlexTensor,
        weight: Weight<Self>,
        a: FlexTensor,
        b: FlexTensor,
        scale: f64,
    ) -> (FlexTensor, FlexTensor) {
        if !is_f32(&x) {
            return compose::lora_parts::<Self>(x, weight, a, b, scale);
        }
        let (x, a, b) = (Values::of(&x), Values::of(&a), Values::of(&b));
        let (rows, output, rank) = (x.rows(), weight.output(), a.rows());
        let mut h = vec![0.0; rows * rank];
        product(&mut h, Into::Set, 1.0, x.matrix(), a.matrix().transposed());
        let mut y = vec![0.0; rows * output];
        times_transposed(&mut y, &x, &weight);
        let h = Values::new(h, [rows, rank]);
        product(
            &mut y,
            Into::Add,
            scale as f32,
            h.matrix(),
            b.matrix().transposed(),
        );
        (tensor(y, [rows, output]), h.into_tensor())
    }

    fn linear_by_input(gradient: FlexTensor, weight: Weight<Self>) -> FlexTensor {
        if !is_f32(&gradient) {
            return compose::linear_by_input::<Self>(gradient, weight);
        }
        let gradient = Values::of(&gradient);
        let (rows, input) = (gradient.rows(), weight.input());
        let mut by_input = vec![0.0; rows * input];
        times(&mut by_input, &gradient, &weight);
        tensor(by_input, [rows, input])
    }

    fn lora_by_input(gradient: FlexTensor, weight: Weight<Self>, u: FlexTensor, a: FlexTensor) -> FlexTensor {
        if !is_f32(&gradient) {
            return compose::lora_by_input::<Self>(gradient, weight, u, a);
        }
        let (gradient, u, a) = (Values::of(&gradient), Values::of(&u), Values::of(&a));
        let (rows, input) = (gradient.rows(), weight.input());
        let mut by_input = vec![0.0; rows * input];
        times(&mut by_input, &gradient, &weight);
        product(&mut by_input, Into::Add, 1.0, u.matrix(), a.matrix());
        tensor(by_input, [rows, input])
    }

    fn scaled_product(a: FlexTensor, b: FlexTensor, scale: f64) -> FlexTensor {
        if !is_f32(&a) {
            return compose::scaled_product::<Self>(a, b, scale);
        }
        let (a, b) = (Values::of(&a), Values::of(&b));
        let mut out = vec![0.0; a.rows() * b.columns()];
        product(&mut out, Into::Set, scale as f32, a.matrix(), b.matrix());
        tensor(out, [a.rows(), b.columns()])
    }

    fn scaled_product_over_rows(a: FlexTensor, b: FlexTensor, scale: f64) -> FlexTensor {
        if !is_f32(&a) {
            return compose::scaled_product_over_rows::<Self>(a, b, scale);
        }
        let (a, b) = (Values::of(&a), Values::of(&b));
        let mut out = vec![0.0; a.columns() * b.columns()];
        product(
            &mut out,
            Into::Set,
            scale as f32,
            a.matrix().transposed(),
            b.matrix(),
        );
        tensor(out, [a.columns(), b.columns()])
    }
}

/// out ← x·Wᵀ.
fn times_transposed(out: &mut [f32], x: &Values<'_>, weight: &Weight<Flex>) {
    match weight {
        Weight::Dense(w) => {
            product(
                out,
                Into::Set,
                1.0,
                x.matrix(),
                Values::of(w).matrix().transposed(),
            );
        }
    }
}

/// out ← g·W.
fn times(out: &mut [f32], gradient: &Values<'_>, weight: &Weight<Flex>) {
    match weight {
        Weight::Dense(w) => product(out, Into::Set, 1.0, gradient.matrix(), Values::of(w).matrix()),
    }
}
