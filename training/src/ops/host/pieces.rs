//! Rows cut into pieces for one thread each.

use rayon::prelude::*;

/// About this many numbers are one piece.
const PIECE: usize = 1 << 14;
/// Fewer numbers than this stay on one thread.
const PARALLEL: usize = 1 << 17;

/// Runs `f` compiled for the widest vectors that this machine has. `f` and what it calls must be inlined into it.
#[inline(always)]
pub(in crate::ops) fn wide<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        use pulp::x86::{V3, V4};
        if let Some(simd) = V4::try_new() {
            return simd.vectorize(f);
        }
        if let Some(simd) = V3::try_new() {
            return simd.vectorize(f);
        }
    }
    pulp::Arch::new().dispatch(f)
}

/// Whether work on so many numbers is worth handing out.
pub(in crate::ops) fn is_large(numbers: usize) -> bool {
    numbers >= PARALLEL && rayon::current_num_threads() > 1
}

/// Calls `f` with a first row and the rows of `out` from there on, until all are done.
pub(in crate::ops) fn by_rows(out: &mut [f32], columns: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    let rows = rows_in_piece(columns);
    let large = is_large(out.len());
    let size = rows * columns.max(1);
    if large {
        let pieces = out.par_chunks_mut(size).enumerate();
        pieces.for_each(|(i, piece)| f(i * rows, piece));
    } else {
        let pieces = out.chunks_mut(size).enumerate();
        pieces.for_each(|(i, piece)| f(i * rows, piece));
    }
}

/// The same with two results of the same shape.
pub(in crate::ops) fn by_rows_of_two(
    (first, second): (&mut [f32], &mut [f32]),
    columns: usize,
    f: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
) {
    let rows = rows_in_piece(columns);
    let size = rows * columns.max(1);
    if is_large(first.len()) {
        let pieces = first.par_chunks_mut(size).zip(second.par_chunks_mut(size));
        pieces.enumerate().for_each(|(i, (a, b))| f(i * rows, a, b));
    } else {
        let pieces = first.chunks_mut(size).zip(second.chunks_mut(size));
        pieces.enumerate().for_each(|(i, (a, b))| f(i * rows, a, b));
    }
}

/// Σ over pieces of `f(rows of the piece)`, summed in order; each sum has `width` numbers. Pieces are cut for rows of
/// `columns` numbers.
pub(in crate::ops) fn sum_over_rows(
    rows: usize,
    columns: usize,
    width: usize,
    f: impl Fn(std::ops::Range<usize>) -> Vec<f32> + Sync,
) -> Vec<f32> {
    let size = rows_in_piece(columns);
    let piece = |i: usize| f(i * size..((i + 1) * size).min(rows));
    let count = rows.div_ceil(size);
    let parts: Vec<Vec<f32>> = if is_large(rows * columns) {
        (0..count).into_par_iter().map(piece).collect()
    } else {
        (0..count).map(piece).collect()
    };
    let mut total = vec![0.0; width];
    for part in parts {
        for (sum, x) in total.iter_mut().zip(part) {
            *sum += x;
        }
    }
    total
}

fn rows_in_piece(columns: usize) -> usize {
    (PIECE / columns.max(1)).max(1)
}
