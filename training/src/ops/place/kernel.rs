//! Heads over slices.

use crate::ops::host::{Values, by_rows, sum_over_rows, wide};
use crate::ops::norm::kernel::{add_by_weight, backward_row, forward_row};
use burn::backend::flex::FlexTensor;

/// Heads of width D with every token's angles.
pub(super) struct Heads<'a> {
    cos: Values<'a>,
    sin: Values<'a>,
    width: usize,
}

impl<'a> Heads<'a> {
    pub(super) fn new(cos: &'a FlexTensor, sin: &'a FlexTensor, width: usize) -> Self {
        Self {
            cos: Values::of(cos),
            sin: Values::of(sin),
            width,
        }
    }

    /// `norm`: weight and ε.
    pub(super) fn forward(&self, x: &Values<'_>, norm: Option<(Values<'_>, f32)>) -> Vec<f32> {
        let columns = x.columns();
        let mut out = vec![0.0; x.slice().len()];
        by_rows(&mut out, columns, |first, out| {
            wide(
                #[inline(always)]
                || {
                    let rows = x.rows_from(first).zip(out.chunks_exact_mut(columns));
                    for (token, (x, out)) in (first..).zip(rows) {
                        let heads = x.chunks_exact(self.width).zip(out.chunks_exact_mut(self.width));
                        for (x, out) in heads {
                            match &norm {
                                Some((weight, eps)) => forward_row(out, x, weight.slice(), *eps),
                                None => out.copy_from_slice(x),
                            }
                            turn(out, self.cos.row(token), self.sin.row(token));
                        }
                    }
                },
            );
        });
        out
    }

    /// ∂L/∂x. `norm`: x, weight and ε.
    pub(super) fn backward(
        &self,
        gradient: &Values<'_>,
        norm: Option<(Values<'_>, Values<'_>, f32)>,
    ) -> Vec<f32> {
        let columns = gradient.columns();
        let mut out = vec![0.0; gradient.slice().len()];
        by_rows(&mut out, columns, |first, out| {
            let mut turned = vec![0.0; self.width];
            wide(
                #[inline(always)]
                || {
                    let rows = gradient.rows_from(first).zip(out.chunks_exact_mut(columns));
                    for (token, (gradient, out)) in (first..).zip(rows) {
                        let heads = gradient
                            .chunks_exact(self.width)
                            .zip(out.chunks_exact_mut(self.width));
                        for (head, (gradient, out)) in heads.enumerate() {
                            turned.copy_from_slice(gradient);
                            turn_back(&mut turned, self.cos.row(token), self.sin.row(token));
                            match &norm {
                                Some((x, weight, eps)) => {
                                    let x = &x.row(token)[head * self.width..(head + 1) * self.width];
                                    backward_row(out, x, weight.slice(), &turned, *eps);
                                }
                                None => out.copy_from_slice(&turned),
                            }
                        }
                    }
                },
            );
        });
        out
    }

    /// ∂L/∂w.
    pub(super) fn by_weight(&self, gradient: &Values<'_>, x: &Values<'_>, eps: f32) -> Vec<f32> {
        sum_over_rows(x.rows(), x.columns(), self.width, |tokens| {
            let mut sum = vec![0.0; self.width];
            let mut turned = vec![0.0; self.width];
            wide(
                #[inline(always)]
                || {
                    for token in tokens {
                        let heads = gradient.row(token).chunks_exact(self.width);
                        for (gradient, x) in heads.zip(x.row(token).chunks_exact(self.width)) {
                            turned.copy_from_slice(gradient);
                            turn_back(&mut turned, self.cos.row(token), self.sin.row(token));
                            add_by_weight(&mut sum, x, &turned, eps);
                        }
                    }
                },
            );
            sum
        })
    }
}

#[inline(always)]
fn turn(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, rest) = head.split_at_mut(cos.len());
    for (((a, b), c), s) in first.iter_mut().zip(rest).zip(cos).zip(sin) {
        (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
    }
}

#[inline(always)]
fn turn_back(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, rest) = head.split_at_mut(cos.len());
    for (((a, b), c), s) in first.iter_mut().zip(rest).zip(cos).zip(sin) {
        (*a, *b) = (*a * c + *b * s, *b * c - *a * s);
    }
}
