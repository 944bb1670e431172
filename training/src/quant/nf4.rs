//! The 4-bit normal-float code: sixteen values, blocks of 64 with their largest magnitude as scale.

use rayon::prelude::*;

/// Values that share a scale.
pub const BLOCK: usize = 64;

/// The sixteen values of the code: quantiles of a normal distribution scaled to ±1, zero among them (QLoRA, appendix E).
/// Written with every digit of the f32 that bitsandbytes uses.
#[allow(clippy::excessive_precision, reason = "the digits as they are published")]
pub const CODE: [f32; 16] = [
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
];

/// The code of zero, which fills the last byte of an odd count.
const ZERO: u8 = 7;

/// Blocks that one task takes: large enough to pay for it, small enough to spread a small matrix.
const BLOCKS_A_TASK: usize = 512;

/// Codes of `values`, two a byte with the first in the high nibble, and each block's largest magnitude.
pub(crate) fn quantise(values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let mut packed = vec![0; values.len().div_ceil(2)];
    let mut absmax = vec![0.0; values.len().div_ceil(BLOCK)];
    let bounds = bounds();
    packed
        .par_chunks_mut(BLOCKS_A_TASK * BLOCK / 2)
        .zip(absmax.par_chunks_mut(BLOCKS_A_TASK))
        .zip(values.par_chunks(BLOCKS_A_TASK * BLOCK))
        .for_each(|((packed, absmax), values)| {
            let blocks = packed.chunks_mut(BLOCK / 2).zip(values.chunks(BLOCK));
            for ((packed, values), absmax) in blocks.zip(absmax) {
                *absmax = quantise_block(values, &bounds, packed);
            }
        });
    (packed, absmax)
}

/// The upper bound of each code but the last: halfway to the next.
fn bounds() -> [f32; 15] {
    std::array::from_fn(|i| (CODE[i] + CODE[i + 1]) / 2.0)
}

fn quantise_block(values: &[f32], bounds: &[f32; 15], packed: &mut [u8]) -> f32 {
    let absmax = values.iter().fold(0f32, |m, v| m.max(v.abs()));
    let scale = absmax.max(1e-38);
    let mut codes = [ZERO; BLOCK];
    if values.len() == BLOCK {
        let inverse = 1.0 / scale;
        for (code, v) in codes.iter_mut().zip(values) {
            *code = nearest(v * inverse, bounds);
        }
    } else {
        // bitsandbytes divides in a block that ends short and multiplies elsewhere; the codes can differ by rounding.
        for (code, v) in codes.iter_mut().zip(values) {
            *code = nearest(v / scale, bounds);
        }
    }
    for (byte, pair) in packed.iter_mut().zip(codes.as_chunks::<2>().0) {
        *byte = pair[0] << 4 | pair[1];
    }
    absmax
}

fn nearest(scaled: f32, bounds: &[f32; 15]) -> u8 {
    bounds.iter().map(|bound| u8::from(scaled > *bound)).sum()
}

/// Values `start..start + out.len()` of the packed codes, each block's code times its scale. `absmax` gives a block's
/// scale by its index.
pub(super) fn dequantise(packed: &[u8], absmax: impl Fn(usize) -> f32, start: usize, out: &mut [f32]) {
    let (mut at, mut rest) = (start, out);
    while !rest.is_empty() {
        let block = at / BLOCK;
        let count = rest.len().min((block + 1) * BLOCK - at);
        let (now, later) = rest.split_at_mut(count);
        let scale = absmax(block);
        dequantise_piece(packed, &CODE.map(|c| c * scale), at, now);
        (at, rest) = (at + count, later);
    }
}

/// Part of one block, `table` being its sixteen values.
fn dequantise_piece(packed: &[u8], table: &[f32; 16], start: usize, out: &mut [f32]) {
    let value = |place: usize| {
        let byte = packed[place / 2];
        table[usize::from(if place.is_multiple_of(2) {
            byte >> 4
        } else {
            byte & 15
        })]
    };
    let (head, body) = out.split_at_mut(start % 2);
    for v in head {
        *v = value(start);
    }
    let first = start.div_ceil(2);
    let (pairs, tail) = body.as_chunks_mut::<2>();
    for (pair, byte) in pairs.iter_mut().zip(&packed[first..]) {
        *pair = [table[usize::from(byte >> 4)], table[usize::from(byte & 15)]];
    }
    if let [last] = tail {
        *last = value((first + pairs.len()) * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_range_of_values_is_the_same_cut_of_the_whole() {
        let values: Vec<f32> = (0..203).map(|i| ((i * 37 % 101) as f32 - 50.0) / 7.0).collect();
        let (packed, absmax) = quantise(&values);
        assert_eq!((packed.len(), absmax.len()), (102, 4));
        let mut whole = vec![0.0; values.len()];
        dequantise(&packed, |b| absmax[b], 0, &mut whole);
        for (got, want) in whole.iter().zip(&values) {
            // Half the widest gap of the code, times the block's scale.
            assert!((got - want).abs() <= 0.152 * 50.0 / 7.0, "{got} {want}");
        }
        for start in [0, 1, 2, 63, 64, 65, 127, 190] {
            for end in [start, start + 1, start + 2, start + 5, 203] {
                let end = end.min(203);
                let mut part = vec![0.0; end - start];
                dequantise(&packed, |b| absmax[b], start, &mut part);
                assert_eq!(part, whole[start..end]);
            }
        }
    }

    #[test]
    fn a_block_of_zeros_stays_zero() {
        let (packed, absmax) = quantise(&[0.0; 64]);
        assert_eq!(absmax, [0.0]);
        let mut out = vec![1.0; 64];
        dequantise(&packed, |b| absmax[b], 0, &mut out);
        assert_eq!(out, [0.0; 64]);
    }
}
