//! The norm over rows of slices.

use crate::ops::host::{Values, by_rows, dot, sum_of_squares, sum_over_rows, wide};

pub(super) fn forward(x: &Values<'_>, weight: &Values<'_>, eps: f32) -> Vec<f32> {
    let width = x.columns();
    let mut out = vec![0.0; x.slice().len()];
    by_rows(&mut out, width, |first, out| {
        wide(
            #[inline(always)]
            || {
                for (row, out) in x.rows_from(first).zip(out.chunks_exact_mut(width)) {
                    forward_row(out, row, weight.slice(), eps);
                }
            },
        );
    });
    out
}

pub(super) fn by_input(x: &Values<'_>, weight: &Values<'_>, gradient: &Values<'_>, eps: f32) -> Vec<f32> {
    let width = x.columns();
    let mut out = vec![0.0; x.slice().len()];
    by_rows(&mut out, width, |first, out| {
        wide(
            #[inline(always)]
            || {
                let rows = x.rows_from(first).zip(gradient.rows_from(first));
                for ((x, g), out) in rows.zip(out.chunks_exact_mut(width)) {
                    backward_row(out, x, weight.slice(), g, eps);
                }
            },
        );
    });
    out
}

pub(super) fn by_weight(x: &Values<'_>, gradient: &Values<'_>, eps: f32) -> Vec<f32> {
    sum_over_rows(x.rows(), x.columns(), x.columns(), |rows| {
        let mut sum = vec![0.0; x.columns()];
        wide(
            #[inline(always)]
            || {
                for row in rows {
                    add_by_weight(&mut sum, x.row(row), gradient.row(row), eps);
                }
            },
        );
        sum
    })
}

/// out ← w·x·r.
#[inline(always)]
pub(in crate::ops) fn forward_row(out: &mut [f32], x: &[f32], weight: &[f32], eps: f32) {
    let r = inverse_root(x, eps);
    for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
        *out = x * r * w;
    }
}

/// out ← r·(w·g − x·r²/H·Σ w·g·x).
#[inline(always)]
pub(in crate::ops) fn backward_row(out: &mut [f32], x: &[f32], weight: &[f32], gradient: &[f32], eps: f32) {
    let r = inverse_root(x, eps);
    for ((out, g), w) in out.iter_mut().zip(gradient).zip(weight) {
        *out = g * w;
    }
    let along = dot(out, x) * r * r / x.len() as f32;
    for (out, x) in out.iter_mut().zip(x) {
        *out = r * x.mul_add(-along, *out);
    }
}

/// sum ← sum + g·x·r.
#[inline(always)]
pub(in crate::ops) fn add_by_weight(sum: &mut [f32], x: &[f32], gradient: &[f32], eps: f32) {
    let r = inverse_root(x, eps);
    for ((sum, x), g) in sum.iter_mut().zip(x).zip(gradient) {
        *sum = (x * r).mul_add(*g, *sum);
    }
}

/// r, from a sum in f64: its error is in every feature at once, and deep models amplify it.
#[inline(always)]
fn inverse_root(x: &[f32], eps: f32) -> f32 {
    (1.0 / (sum_of_squares(x) / x.len() as f64 + f64::from(eps)).sqrt()) as f32
}
