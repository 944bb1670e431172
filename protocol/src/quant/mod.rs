//! Numbers of the ring (PROTOCOL section 6): chunks, segments, blocks, shared-scale integers, q8, f32 arithmetic.
//!
//! Everything is scalar f32 in the order written here, without fused multiply-add, so that anyone who replays it gets
//! the same bits. Slices that belong together have one length, and one scale for each block begun: the callers' own.

mod form;
mod q8;
mod theory;

pub use form::{Float, Form, Levels};
pub use q8::{Q8, Q8Error, scales_from_bytes, scales_to_bytes};
pub use theory::{ring_payload_bytes, ring_payload_bytes_floats, ring_payload_bytes_integers};

use crate::ids::ChunkIndex;
use std::ops::Range;

/// Elements under one scale; blocks restart at a chunk's start.
pub const BLOCK: usize = 256;

/// Elements of a segment, the unit that is sealed and sent; counted from the chunk's start, the last one short.
pub const SEGMENT: usize = 262_144;

/// Largest magnitude of one contribution's integer at q8, and of the mean's.
pub const Q8_MAX: i32 = 127;

/// The same at q4.
pub const Q4_MAX: i32 = 7;

/// Largest magnitude of a committed delta's element, 2^32: no adapter moves as far in a round, and no sum of such elements
/// leaves f32 or bf16, whatever the weights.
pub const MAX_DELTA: f32 = 4_294_967_296.0;

/// Largest |Δ × weight|, 2^96: weights are below 2^64.
pub const MAX_SHARE: f32 = MAX_DELTA * 18_446_744_073_709_551_616.0;

/// Largest magnitude of a sum of `contributions` elements Δ × weight.
#[must_use]
pub fn largest_sum(contributions: u32) -> f32 {
    (contributions as f32 * MAX_SHARE).min(f32::MAX)
}

/// The first element that no delta may hold: not a number, or beyond [`MAX_DELTA`].
#[must_use]
pub fn out_of_bounds(delta: &[f32]) -> Option<usize> {
    delta.iter().position(|v| v.is_nan() || v.abs() > MAX_DELTA)
}

/// Chunk `c` of `n` over `l` elements: `[⌊c·l/n⌋, ⌊(c+1)·l/n⌋)`. Empty when `n` is 0.
#[must_use]
pub fn chunk_range(c: ChunkIndex, n: u32, l: usize) -> Range<usize> {
    if n == 0 {
        return 0..0;
    }
    let at = |c: u64| {
        usize::try_from(u128::from(c) * l as u128 / u128::from(n))
            .unwrap_or(l)
            .min(l)
    };
    at(u64::from(c.0))..at(u64::from(c.0) + 1)
}

/// The segments of a chunk of `len` elements, as ranges within the chunk. None when the chunk is empty.
pub fn segments(len: usize) -> impl ExactSizeIterator<Item = Range<usize>> {
    (0..len.div_ceil(SEGMENT)).map(move |i| i * SEGMENT..((i + 1) * SEGMENT).min(len))
}

/// Blocks, and so scales, of `len` elements.
#[must_use]
pub fn blocks(len: usize) -> usize {
    len.div_ceil(BLOCK)
}

/// A member's weight, and Σ of all weights, as the factor and divisor used in f32.
#[must_use]
pub fn weight_f32(samples: u64) -> f32 {
    samples as f32
}

/// Δ × weight, one f32 multiplication an element: a member's contribution at f32.
#[must_use]
pub fn weigh(delta: &[f32], weight: f32) -> Vec<f32> {
    delta.iter().map(|d| d * weight).collect()
}

/// sum ← sum + contribution, element by element.
pub fn add_in_place(sum: &mut [f32], contribution: &[f32]) {
    debug_assert_eq!(sum.len(), contribution.len());
    for (s, c) in sum.iter_mut().zip(contribution) {
        *s += c;
    }
}

/// sum ← sum / Σ weights, once, by the chunk's owner.
pub fn divide_in_place(sum: &mut [f32], total_weight: f32) {
    for s in sum {
        *s /= total_weight;
    }
}

/// The largest |Δ × weight| of each block of a chunk: what goes around in the scale ring.
#[must_use]
pub fn block_absmax(delta: &[f32], weight: f32) -> Vec<f32> {
    let absmax = |block: &[f32]| block.iter().map(|d| (d * weight).abs()).fold(0.0, f32::max);
    delta.chunks(BLOCK).map(absmax).collect()
}

/// max ← max(max, other), block by block: one hop of the scale ring.
pub fn max_in_place(max: &mut [f32], other: &[f32]) {
    debug_assert_eq!(max.len(), other.len());
    for (m, o) in max.iter_mut().zip(other) {
        *m = m.max(*o);
    }
}

/// absmax / 127 of each block (q4: / 7); a zero block has scale 0.
#[must_use]
pub fn scales(absmax: &[f32], levels: Levels) -> Vec<f32> {
    absmax.iter().map(|m| m / levels.max() as f32).collect()
}

/// One contribution: round half to even of (Δ × weight) / scale, within ±127 (q4: ±7); 0 under a zero scale.
#[must_use]
pub fn quantise(delta: &[f32], weight: f32, scales: &[f32], levels: Levels) -> Vec<i8> {
    debug_assert_eq!(scales.len(), blocks(delta.len()));
    let mut integers = Vec::with_capacity(delta.len());
    for (block, &scale) in delta.chunks(BLOCK).zip(scales) {
        integers.extend(block.iter().map(|d| to_integer(d * weight, scale, levels)));
    }
    integers
}

fn to_integer(value: f32, scale: f32, levels: Levels) -> i8 {
    if scale == 0.0 {
        return 0;
    }
    let bound = levels.max() as f32;
    (value / scale).round_ties_even().clamp(-bound, bound) as i8
}

/// What a contribution left out, to be added to the next delta: (Δ × weight − integer × scale) / weight. A member of
/// weight 0 contributed nothing and keeps its whole Δ.
#[must_use]
pub fn residual(delta: &[f32], weight: f32, integers: &[i8], scales: &[f32]) -> Vec<f32> {
    debug_assert_eq!(delta.len(), integers.len());
    if weight == 0.0 {
        return delta.to_vec();
    }
    let mut left = Vec::with_capacity(delta.len());
    for ((block, ints), &scale) in delta.chunks(BLOCK).zip(integers.chunks(BLOCK)).zip(scales) {
        left.extend(
            block
                .iter()
                .zip(ints)
                .map(|(d, &q)| (d * weight - f32::from(q) * scale) / weight),
        );
    }
    left
}

/// A contribution as the exact sum it starts.
#[must_use]
pub fn widen(integers: &[i8]) -> Vec<i32> {
    integers.iter().map(|&q| i32::from(q)).collect()
}

/// sum ← sum + contribution, exactly (i32 holds 16 million contributions).
pub fn add_integers(sum: &mut [i32], contribution: &[i8]) {
    debug_assert_eq!(sum.len(), contribution.len());
    for (s, &q) in sum.iter_mut().zip(contribution) {
        *s += i32::from(q);
    }
}

/// The mean a chunk's owner takes: sum (rounded to f32) × scale / Σ weights, in this order.
#[must_use]
pub fn mean(sum: &[i32], scales: &[f32], total_weight: f32) -> Vec<f32> {
    debug_assert_eq!(scales.len(), blocks(sum.len()));
    let mut out = Vec::with_capacity(sum.len());
    for (block, &scale) in sum.chunks(BLOCK).zip(scales) {
        out.extend(block.iter().map(|&s| s as f32 * scale / total_weight));
    }
    out
}

#[cfg(test)]
mod tests;
