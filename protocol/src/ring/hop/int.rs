//! Segments of exact integer sums under shared block scales, and of the q8 mean.

use super::{BadElement, bits};
use crate::buffers::Buffers;
use crate::pack;
use crate::quant::{BLOCK, Levels, Q8, Q8_MAX, blocks};
use crate::wide::wide;

/// 1.5·2^23: adding it to a number within ±2^22 leaves its nearest integer, ties to even, in the low bits.
const ROUNDER: f32 = 12_582_912.0;

/// One's own part of a segment.
pub(in crate::ring) struct Own<'a> {
    /// Δ; becomes what rounding left over.
    pub(in crate::ring) delta: &'a mut [f32],
    pub(in crate::ring) weight: f32,
    pub(in crate::ring) levels: Levels,
    /// One scale a block.
    pub(in crate::ring) scales: &'a [f32],
}

/// The first sum of a chunk: one's own integers, with room for the sum of `most` members that it grows to, or its mean.
pub(in crate::ring) fn begin(own: &mut Own<'_>, most: u32, buffers: &Buffers) -> Vec<u8> {
    let width = own.width(1);
    let n = own.delta.len();
    let largest = pack::packed_len(n, own.width(most)).max(Q8::byte_len(n));
    let mut payload = buffers.payload(pack::packed_len(n, width), largest);
    wide(
        #[inline(always)]
        || {
            let mut sums = [0; BLOCK];
            for b in 0..own.scales.len() {
                let len = own.add(b, &mut sums, Start::Zero);
                put(&sums, len, width, block_bytes(&mut payload, b, width));
            }
        },
    );
    payload
}

/// payload ← the sum of `contributions` members, with one's own part added, in the room it came in.
pub(in crate::ring) fn add(
    payload: &mut Vec<u8>,
    contributions: u32,
    own: &mut Own<'_>,
) -> Result<(), BadElement> {
    let (n, came) = (own.delta.len(), own.width(contributions));
    let goes = own.width(contributions + 1);
    let at = make_room(payload, pack::packed_len(n, goes));
    wide(
        #[inline(always)]
        || {
            let mut sums = [0; BLOCK];
            for b in 0..own.scales.len() {
                let len = own.open(b, &payload[at..], contributions, came, &mut sums)?;
                own.add(b, &mut sums, Start::Sum);
                put(&sums, len, goes, block_bytes(payload, b, goes));
            }
            Ok(())
        },
    )
}

/// payload ← the mean, encoded as q8, of the sum of `contributions` members and one's own part; `mean` is what the others
/// will read. With no contributions, one's own part is the sum.
pub(in crate::ring) fn close(
    payload: &mut Vec<u8>,
    contributions: u32,
    own: &mut Own<'_>,
    total: f32,
    mean: &mut [f32],
) -> Result<(), BadElement> {
    let (n, came) = (own.delta.len(), own.width(contributions));
    let mut scales = vec![[0; 4]; own.scales.len()];
    let at = make_room(payload, n);
    wide(
        #[inline(always)]
        || {
            let mut sums = [0; BLOCK];
            for b in 0..own.scales.len() {
                let start = match contributions {
                    0 => Start::Zero,
                    _ => {
                        own.open(b, &payload[at..], contributions, came, &mut sums)?;
                        Start::Sum
                    }
                };
                own.add(b, &mut sums, start);
                let range = own.block(b);
                let mean = &mut mean[range.clone()];
                let scale = own.scales[b];
                for (m, s) in mean.iter_mut().zip(&sums) {
                    *m = *s as f32 * scale / total;
                }
                scales[b] = encode(mean, &mut payload[range]).to_le_bytes();
            }
            Ok(())
        },
    )?;
    payload.truncate(n);
    payload.extend_from_slice(scales.as_flattened());
    Ok(())
}

/// Makes room for `goes` bytes before those that came, as far as they are fewer; gives where the latter begin now. Taken
/// block by block from there, they may be written over from the front: a block ends before the next one that is read.
fn make_room(payload: &mut Vec<u8>, goes: usize) -> usize {
    let came = payload.len();
    if goes <= came {
        return 0;
    }
    payload.resize(goes, 0);
    payload.copy_within(..came, goes - came);
    goes - came
}

/// Encodes a block as q8 in place: its values become what a reader will see. Gives the scale.
#[inline(always)]
fn encode(values: &mut [f32], integers: &mut [u8]) -> f32 {
    let scale = absmax(values, 1.0) / Q8_MAX as f32;
    for (v, to) in values.iter_mut().zip(integers) {
        let q = nearest(*v, scale, Q8_MAX as f32);
        *to = q as u8;
        *v = q as f32 * scale;
    }
    scale
}

/// A mean that was read, encoded as it came: under the scales it came with, which another look at its values need not give.
pub(in crate::ring) fn encode_under(mean: &[f32], scales: &[f32]) -> Vec<u8> {
    let mut payload = Vec::with_capacity(Q8::byte_len(mean.len()));
    for (block, scale) in mean.chunks(BLOCK).zip(scales) {
        payload.extend(block.iter().map(|v| nearest(*v, *scale, Q8_MAX as f32) as u8));
    }
    payload.extend(scales.iter().flat_map(|scale| scale.to_le_bytes()));
    payload
}

/// mean ← a q8 segment, checked as [`Q8::from_bytes`] checks it and for values beyond f32. Its length is the caller's to
/// check.
pub(in crate::ring) fn read(payload: &[u8], mean: &mut [f32]) -> Result<(), BadElement> {
    let n = mean.len();
    let (integers, scales) = payload.split_at(n.min(payload.len()));
    wide(
        #[inline(always)]
        || {
            let parts = integers.chunks(BLOCK).zip(mean.chunks_mut(BLOCK));
            for (b, ((ints, mean), scale)) in parts.zip(scales.as_chunks::<4>().0).enumerate() {
                let scale = f32::from_le_bytes(*scale);
                let low = ints.iter().fold(0i8, |low, i| low.min(*i as i8));
                let some = ints.iter().fold(0u8, |any, i| any | *i);
                let possible = low >= -127 && (scale != 0.0 || some == 0);
                if !scale.is_finite() || scale.is_sign_negative() || !possible {
                    return Err(BadElement(b * BLOCK));
                }
                for (m, i) in mean.iter_mut().zip(ints) {
                    *m = f32::from(*i as i8) * scale;
                }
                if !mean.iter().fold(true, |all, m| all & m.is_finite()) {
                    return Err(BadElement(b * BLOCK));
                }
            }
            Ok(())
        },
    )
}

/// The largest |Δ × weight| of each block: as [`crate::quant::block_absmax`].
pub(in crate::ring) fn block_absmax(delta: &[f32], weight: f32) -> Vec<f32> {
    let mut out = Vec::with_capacity(blocks(delta.len()));
    wide(
        #[inline(always)]
        || out.extend(delta.chunks(BLOCK).map(|block| absmax(block, weight))),
    );
    out
}

#[inline(always)]
fn absmax(block: &[f32], weight: f32) -> f32 {
    let larger = |m: f32, d: &f32| {
        let a = (d * weight).abs();
        if a > m { a } else { m }
    };
    let (lanes, rest) = block.as_chunks::<32>();
    let mut most = [0.0f32; 32];
    for part in lanes {
        for (m, d) in most.iter_mut().zip(part) {
            *m = larger(*m, d);
        }
    }
    let most = most.iter().fold(0.0, |m, a| if *a > m { *a } else { m });
    rest.iter().fold(most, larger)
}

/// What one's own integers are added to.
#[derive(Clone, Copy)]
enum Start {
    Zero,
    Sum,
}

impl Own<'_> {
    /// Bits of an integer that sums `contributions`.
    fn width(&self, contributions: u32) -> u32 {
        pack::width(self.levels, contributions)
    }

    #[inline(always)]
    fn block(&self, b: usize) -> std::ops::Range<usize> {
        b * BLOCK..((b + 1) * BLOCK).min(self.delta.len())
    }

    /// Adds one's own integers of block `b`, leaving what they left over; gives the block's length.
    #[inline(always)]
    fn add(&mut self, b: usize, sums: &mut [i32; BLOCK], start: Start) -> usize {
        let (range, scale, weight) = (self.block(b), self.scales[b], self.weight);
        let most = self.levels.max() as f32;
        let delta = &mut self.delta[range];
        if matches!(start, Start::Zero) {
            *sums = [0; BLOCK];
        }
        for (d, sum) in delta.iter_mut().zip(sums) {
            let value = *d * weight;
            let q = nearest(value, scale, most);
            *sum += q;
            // A member of weight 0 contributed nothing and keeps its whole Δ.
            let left = (value - q as f32 * scale) / weight;
            *d = if weight == 0.0 { *d } else { left };
        }
        delta.len()
    }

    /// Opens block `b` of an incoming sum of `contributions`, `width` bits an integer.
    #[inline(always)]
    fn open(
        &self,
        b: usize,
        payload: &[u8],
        contributions: u32,
        width: u32,
        sums: &mut [i32; BLOCK],
    ) -> Result<usize, BadElement> {
        let len = self.block(b).len();
        let start = b * BLOCK / 8 * width as usize;
        let bytes = &payload[start..start + pack::packed_len(len, width)];
        if len == BLOCK {
            bits::get(bytes, width, sums);
        } else {
            *sums = [0; BLOCK];
            pack::get_bits(bytes, width, &mut sums[..len]);
            if !pack::padding_is_zero(bytes, len, width) {
                return Err(BadElement(self.delta.len()));
            }
        }
        let bound = pack::bound(self.levels, contributions);
        let most = sums.iter().fold(0u32, |m, s| m.max(s.unsigned_abs()));
        if most > bound as u32 {
            let at = sums.iter().position(|s| s.unsigned_abs() > bound as u32);
            return Err(BadElement(b * BLOCK + at.unwrap_or(0)));
        }
        Ok(len)
    }
}

#[inline(always)]
fn put(sums: &[i32; BLOCK], len: usize, width: u32, out: &mut [u8]) {
    if len == BLOCK {
        bits::put(sums, width, out);
    } else {
        pack::put_bits(&sums[..len], width, out);
    }
}

/// The bytes of block `b`: whole blocks take whole bytes.
#[inline(always)]
fn block_bytes(payload: &mut [u8], b: usize, width: u32) -> &mut [u8] {
    let bytes = BLOCK / 8 * width as usize;
    let end = payload.len().min((b + 1) * bytes);
    &mut payload[b * bytes..end]
}

/// value / scale rounded half to even, within ±bound; 0 under a zero scale.
#[inline(always)]
fn nearest(value: f32, scale: f32, bound: f32) -> i32 {
    let ratio = value / scale;
    // Zero by zero is no number.
    let ratio = if ratio.is_nan() || scale == 0.0 {
        0.0
    } else {
        ratio
    };
    let near = ratio.clamp(-bound, bound) + ROUNDER;
    near.to_bits() as i32 - ROUNDER.to_bits() as i32
}
