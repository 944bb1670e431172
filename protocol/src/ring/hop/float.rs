//! Segments of floats: f32, and bf16 rounded to nearest even at every hop.

use super::BadElement;
use crate::wide::wide;

/// Elements looked over for NaN and infinity before they are used: few enough to stay in the nearest cache.
const CHECKED: usize = 1024;

/// A float as it travels, in `B` bytes.
pub(in crate::ring) trait Form<const B: usize> {
    /// Its value.
    fn get(bytes: [u8; B]) -> f32;
    /// The nearest to `value`, ties to even.
    fn put(value: f32) -> [u8; B];
}

/// 32 bits.
pub(in crate::ring) struct F32;

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

/// The first sum of a chunk: one's own part, Δ × weight.
pub(in crate::ring) fn begin<F: Form<B>, const B: usize>(delta: &[f32], weight: f32) -> Vec<u8> {
    let mut payload = vec![0; delta.len() * B];
    wide(|| {
        for (to, d) in payload.as_chunks_mut::<B>().0.iter_mut().zip(delta) {
            *to = F::put(d * weight);
        }
    });
    payload
}

/// payload ← payload + Δ × weight.
pub(in crate::ring) fn add<F: Form<B>, const B: usize>(
    payload: &mut [u8],
    delta: &[f32],
    weight: f32,
) -> Result<(), BadElement> {
    wide(|| {
        by_parts::<F, B>(payload, |start, sums| {
            for (sum, d) in sums.iter_mut().zip(&delta[start..]) {
                *sum = F::put(F::get(*sum) + d * weight);
            }
        })
    })
}

/// payload ← (payload + Δ × weight) / total, the chunk's mean; Δ ← the mean as the others will read it.
pub(in crate::ring) fn close<F: Form<B>, const B: usize>(
    payload: &mut [u8],
    delta: &mut [f32],
    weight: f32,
    total: f32,
) -> Result<(), BadElement> {
    wide(|| {
        by_parts::<F, B>(payload, |start, sums| {
            for (sum, d) in sums.iter_mut().zip(&mut delta[start..]) {
                *sum = F::put((F::get(*sum) + *d * weight) / total);
                *d = F::get(*sum);
            }
        })
    })
}

/// Δ ← Δ × weight / total: the mean of a ring of one.
pub(in crate::ring) fn close_alone(delta: &mut [f32], weight: f32, total: f32) {
    delta.iter_mut().for_each(|d| *d = *d * weight / total);
}

/// mean ← payload.
pub(in crate::ring) fn read<F: Form<B>, const B: usize>(
    payload: &mut [u8],
    mean: &mut [f32],
) -> Result<(), BadElement> {
    wide(|| {
        by_parts::<F, B>(payload, |start, values| {
            for (value, m) in values.iter().zip(&mut mean[start..]) {
                *m = F::get(*value);
            }
        })
    })
}

/// Calls `act` with the first element and the bytes of each part, once all of it is finite.
#[inline(always)]
fn by_parts<F: Form<B>, const B: usize>(
    payload: &mut [u8],
    mut act: impl FnMut(usize, &mut [[u8; B]]),
) -> Result<(), BadElement> {
    let elements = payload.as_chunks_mut::<B>().0;
    for (i, part) in elements.chunks_mut(CHECKED).enumerate() {
        let finite = part.iter().fold(true, |all, e| all & F::get(*e).is_finite());
        if !finite {
            let at = part.iter().position(|e| !F::get(*e).is_finite());
            return Err(BadElement(i * CHECKED + at.unwrap_or(0)));
        }
        act(i * CHECKED, part);
    }
    Ok(())
}
