//! The layer on the CPU backend: no pass over memory beside the products.

use super::{LinearOps, Weight, compose};
use crate::ops::host::{Into, Matrix, Values, is_f32, product, product_within, tensor, with_matrix};
use crate::quant::Nf4Slices;
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

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
        if !(is_f32(&a) && is_f32(&b)) {
            return compose::scaled_product::<Self>(a, b, scale);
        }
        let (a, b) = (Values::of(&a), Values::of(&b));
        let mut out = vec![0.0; a.rows() * b.columns()];
        product(&mut out, Into::Set, scale as f32, a.matrix(), b.matrix());
        tensor(out, [a.rows(), b.columns()])
    }

    fn scaled_product_over_rows(a: FlexTensor, b: FlexTensor, scale: f64) -> FlexTensor {
        if !(is_f32(&a) && is_f32(&b)) {
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
            with_matrix(w, |w| product(out, Into::Set, 1.0, x.matrix(), w.transposed()));
        }
        Weight::Nf4 { shape, .. } => {
            for_tiles(weight, |first, tile| {
                let (rows, wide) = (tile.len() / shape[1], shape[0]);
                let tile = Matrix::new(tile, rows, shape[1]).transposed();
                if x.rows() > 0 {
                    product_within(&mut out[first..], wide, Into::Set, 1.0, x.matrix(), tile);
                }
            });
        }
    }
}

/// out ← g·W.
fn times(out: &mut [f32], gradient: &Values<'_>, weight: &Weight<Flex>) {
    match weight {
        Weight::Dense(w) => with_matrix(w, |w| product(out, Into::Set, 1.0, gradient.matrix(), w)),
        Weight::Nf4 { shape, .. } => {
            let mut into = Into::Set;
            for_tiles(weight, |first, tile| {
                let rows = tile.len() / shape[1];
                let tile = Matrix::new(tile, rows, shape[1]);
                product(out, into, 1.0, gradient.matrix().columns(first, rows), tile);
                into = Into::Add;
            });
        }
    }
}

/// Values of one tile of an unpacked weight: 1 MiB, which stays in a core's cache.
const TILE: usize = 1 << 18;

/// Rows that one thread unpacks at a time.
const ROWS_A_TASK: usize = 8;

/// Unpacks an NF4 weight in tiles of whole rows, giving `f` the first row's index and the tile's values. No other
/// memory is taken than the tile's. Nothing is done for a dense weight.
fn for_tiles(weight: &Weight<Flex>, mut f: impl FnMut(usize, &[f32])) {
    let Weight::Nf4 {
        codes,
        scales,
        nested,
        shape: [output, input],
        group,
        offset,
    } = weight
    else {
        return;
    };
    let packed = Nf4Slices {
        codes: codes.storage(),
        scales: scales.storage(),
        nested: nested.storage(),
        group: *group,
        offset: *offset,
    };
    let rows = (TILE / (*input).max(1)).clamp(ROWS_A_TASK, (*output).max(ROWS_A_TASK));
    let mut tile = vec![0.0; rows.min(*output) * input];
    for first in (0..*output).step_by(rows) {
        let tile = &mut tile[..rows.min(output - first) * input];
        let tasks = tile.par_chunks_mut((ROWS_A_TASK * input).max(1)).enumerate();
        tasks.for_each(|(task, out)| packed.dequantise((first + task * ROWS_A_TASK) * input, out));
        f(first, tile);
    }
}
