//! SwiGLU over slices.

use crate::ops::host::{Values, by_rows, by_rows_of_two, sigmoid, wide};

pub(super) fn forward(gate: &Values<'_>, up: &Values<'_>) -> Vec<f32> {
    let width = gate.columns();
    let mut out = vec![0.0; gate.slice().len()];
    by_rows(&mut out, width, |first, out| {
        let from = first * width;
        let (gate, up) = (&gate.slice()[from..], &up.slice()[from..]);
        wide(
            #[inline(always)]
            || {
                for ((y, g), u) in out.iter_mut().zip(gate).zip(up) {
                    *y = g * sigmoid(*g) * u;
                }
            },
        );
    });
    out
}

/// By gate and by up.
pub(super) fn backward(gate: &Values<'_>, up: &Values<'_>, gradient: &Values<'_>) -> [Vec<f32>; 2] {
    let (width, count) = (gate.columns(), gate.slice().len());
    let (mut by_gate, mut by_up) = (vec![0.0; count], vec![0.0; count]);
    by_rows_of_two((&mut by_gate, &mut by_up), width, |first, by_gate, by_up| {
        let from = first * width;
        let (gate, up, gradient) = (
            &gate.slice()[from..],
            &up.slice()[from..],
            &gradient.slice()[from..],
        );
        wide(
            #[inline(always)]
            || {
                let out = by_gate.iter_mut().zip(by_up);
                for (((by_gate, by_up), (g, u)), d) in out.zip(gate.iter().zip(up)).zip(gradient) {
                    let s = sigmoid(*g);
                    *by_up = d * g * s;
                    *by_gate = d * u * s * (1.0 + g * (1.0 - s));
                }
            },
        );
    });
    [by_gate, by_up]
}
