//! Segments of floats: f32, and bf16 rounded to nearest even at every hop.

use super::BadElement;
use crate::buffers::Buffers;
use crate::quant::{Float, largest_sum};
use crate::wide::wide;

/// Elements looked over for NaN and what no honest sum reaches before they are used: few enough to stay in the nearest cache.
const CHECKED: usize = 1024;

/// The first sum of a chunk: one's own part, Δ × weight.
pub(in crate::ring) fn begin(float: Float, delta: &[f32], weight: f32, buffers: &Buffers) -> Vec<u8> {
    match float {
        Float::F32 => begin_as::<F32, 4>(delta, weight, buffers),
        Float::Bf16 => begin_as::<Bf16, 2>(delta, weight, buffers),
    }
}

/// payload ← payload, a sum of `contributions`, + Δ × weight.
pub(in crate::ring) fn add(
    float: Float,
    payload: &mut [u8],
    contributions: u32,
    delta: &[f32],
    weight: f32,
) -> Result<(), BadElement> {
    match float {
        Float::F32 => add_as::<F32, 4>(payload, contributions, delta, weight),
        Float::Bf16 => add_as::<Bf16, 2>(payload, contributions, delta, weight),
    }
}

/// payload ← (payload, a sum of `contributions`, + Δ × weight) / total, the chunk's mean; Δ ← the mean as the others will read
/// it.
pub(in crate::ring) fn close(
    float: Float,
    payload: &mut [u8],
    contributions: u32,
    delta: &mut [f32],
    (weight, total): (f32, f32),
) -> Result<(), BadElement> {
    match float {
        Float::F32 => close_as::<F32, 4>(payload, contributions, delta, (weight, total)),
        Float::Bf16 => close_as::<Bf16, 2>(payload, contributions, delta, (weight, total)),
    }
}

/// Δ ← Δ × weight / total as it would travel: the mean of a ring of one.
pub(in crate::ring) fn close_alone(float: Float, delta: &mut [f32], weight: f32, total: f32) {
    match float {
        Float::F32 => close_alone_as::<F32, 4>(delta, weight, total),
        Float::Bf16 => close_alone_as::<Bf16, 2>(delta, weight, total),
    }
}

/// mean ← payload.
pub(in crate::ring) fn read(float: Float, payload: &[u8], mean: &mut [f32]) -> Result<(), BadElement> {
    read_below(float, payload, mean, f32::MAX)
}

/// sum ← payload, a sum of `contributions`.
pub(in crate::ring) fn read_sum(
    float: Float,
    payload: &[u8],
    contributions: u32,
    sum: &mut [f32],
) -> Result<(), BadElement> {
    let most = match float {
        Float::F32 => most::<F32, 4>(contributions),
        Float::Bf16 => most::<Bf16, 2>(contributions),
    };
    read_below(float, payload, sum, most)
}

fn read_below(float: Float, payload: &[u8], to: &mut [f32], most: f32) -> Result<(), BadElement> {
    match float {
        Float::F32 => read_as::<F32, 4>(payload, to, most),
        Float::Bf16 => read_as::<Bf16, 2>(payload, to, most),
    }
}

/// The largest honest sum as it travels. Rounding keeps the order of numbers: none is rounded above it.
fn most<F: Form<B>, const B: usize>(contributions: u32) -> f32 {
    F::get(F::put(largest_sum(contributions)))
}

/// Values as they travel.
pub(in crate::ring) fn encode(float: Float, values: &[f32]) -> Vec<u8> {
    begin(float, values, 1.0, &Buffers::default())
}

/// A float as it travels, in `B` bytes.
trait Form<const B: usize> {
    /// Its value.
    fn get(bytes: [u8; B]) -> f32;
    /// The nearest to `value`, ties to even.
    fn put(value: f32) -> [u8; B];
}

/// 32 bits.
struct F32;

impl Form<4> for F32 {
    #[inline(always)]
    fn get(bytes: [u8; 4]) -> f32 {
        f32::from_le_bytes(bytes)
    }

    #[inline(always)]
    fn put(value: f32) -> [u8; 4] {
        value.to_le_bytes()
    }
}

/// The upper 16 bits of 32.
struct Bf16;

impl Form<2> for Bf16 {
    #[inline(always)]
    fn get(bytes: [u8; 2]) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
    }

    #[inline(always)]
    fn put(value: f32) -> [u8; 2] {
        let bits = value.to_bits();
        let even = bits >> 16 & 1;
        let near = bits.wrapping_add(0x7fff + even) >> 16;
        // The carry could make a number of what is none.
        let near = if value.is_nan() { 0x7fc0 } else { near };
        (near as u16).to_le_bytes()
    }
}

fn begin_as<F: Form<B>, const B: usize>(delta: &[f32], weight: f32, buffers: &Buffers) -> Vec<u8> {
    let bytes = delta.len() * B;
    let mut payload = buffers.payload(bytes, bytes);
    wide(
        #[inline(always)]
        || {
            for (to, d) in payload.as_chunks_mut::<B>().0.iter_mut().zip(delta) {
                *to = F::put(d * weight);
            }
        },
    );
    payload
}

fn add_as<F: Form<B>, const B: usize>(
    payload: &mut [u8],
    contributions: u32,
    delta: &[f32],
    weight: f32,
) -> Result<(), BadElement> {
    let most = most::<F, B>(contributions);
    wide(
        #[inline(always)]
        || {
            by_parts::<F, B>(payload, most, |start, sums| {
                for (sum, d) in sums.iter_mut().zip(&delta[start..]) {
                    *sum = F::put(F::get(*sum) + d * weight);
                }
            })
        },
    )
}

fn close_as<F: Form<B>, const B: usize>(
    payload: &mut [u8],
    contributions: u32,
    delta: &mut [f32],
    (weight, total): (f32, f32),
) -> Result<(), BadElement> {
    let most = most::<F, B>(contributions);
    wide(
        #[inline(always)]
        || {
            by_parts::<F, B>(payload, most, |start, sums| {
                for (sum, d) in sums.iter_mut().zip(&mut delta[start..]) {
                    *sum = F::put((F::get(*sum) + *d * weight) / total);
                    *d = F::get(*sum);
                }
            })
        },
    )
}

fn close_alone_as<F: Form<B>, const B: usize>(delta: &mut [f32], weight: f32, total: f32) {
    wide(
        #[inline(always)]
        || {
            delta
                .iter_mut()
                .for_each(|d| *d = F::get(F::put(*d * weight / total)));
        },
    );
}

fn read_as<F: Form<B>, const B: usize>(
    payload: &[u8],
    mean: &mut [f32],
    most: f32,
) -> Result<(), BadElement> {
    wide(
        #[inline(always)]
        || {
            let parts = payload.as_chunks::<B>().0.chunks(CHECKED);
            for (i, (part, mean)) in parts.zip(mean.chunks_mut(CHECKED)).enumerate() {
                check::<F, B>(i, part, most)?;
                for (value, m) in part.iter().zip(mean) {
                    *m = F::get(*value);
                }
            }
            Ok(())
        },
    )
}

/// Calls `act` with the first element and the bytes of each part, once all of it is within ±`most`.
#[inline(always)]
fn by_parts<F: Form<B>, const B: usize>(
    payload: &mut [u8],
    most: f32,
    mut act: impl FnMut(usize, &mut [[u8; B]]),
) -> Result<(), BadElement> {
    let elements = payload.as_chunks_mut::<B>().0;
    for (i, part) in elements.chunks_mut(CHECKED).enumerate() {
        check::<F, B>(i, part, most)?;
        act(i * CHECKED, part);
    }
    Ok(())
}

/// Refuses part `i` if not all of it is within ±`most`.
#[inline(always)]
fn check<F: Form<B>, const B: usize>(i: usize, part: &[[u8; B]], most: f32) -> Result<(), BadElement> {
    let is_good = |e: &[u8; B]| F::get(*e).abs() <= most;
    if part.iter().fold(true, |all, e| all & is_good(e)) {
        return Ok(());
    }
    let at = part.iter().position(|e| !is_good(e));
    Err(BadElement(i * CHECKED + at.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_is_rounded_as_half_rounds_it() {
        let exponents = (0..=0xffu32).flat_map(|e| [0u32, 1].map(|s| s << 31 | e << 23));
        let mantissas = [
            0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1_0000, 0x1_7fff, 0x1_8000, 0x7f_7fff, 0x7f_8000,
            0x7f_ffff,
        ];
        for bits in exponents.flat_map(|e| mantissas.map(|m| e | m)) {
            let (value, want) = (f32::from_bits(bits), half::bf16::from_f32(f32::from_bits(bits)));
            let got = Bf16::get(Bf16::put(value));
            assert_eq!(got.is_nan(), value.is_nan(), "{bits:#x}");
            assert!(
                value.is_nan() || got.to_bits() == want.to_f32().to_bits(),
                "{bits:#x}"
            );
        }
    }
}
