//! Packing sixteen integers at a time where there is AVX-512: as words of 16 bits that one permutation brings to their place.
//!
//! Integer k of a group of 16, of W bits each, begins in word ⌊k·W/16⌋ and ends in it or in the next one. A lane of 32 bits
//! holds both.

use super::BLOCK;
use pulp::cast;
use pulp::x86::V4;
use std::arch::x86_64::__m512i;

/// A block of 16 bits an integer, and what a load or store beyond the last group touches.
const PADDED: usize = BLOCK * 2 + 64;

/// Reads a block's integers of W bits, 4 to 16, from exactly their bytes.
#[inline(always)]
pub(super) fn get<const W: usize>(simd: V4, bytes: &[u8], block: &mut [i32; BLOCK]) {
    let mut padded = [0u8; PADDED];
    padded[..BLOCK / 8 * W].copy_from_slice(&bytes[..BLOCK / 8 * W]);
    let (pairs, up): (__m512i, __m512i) = (cast(const { pairs::<W>() }), cast(const { up::<W>() }));
    let down = simd.avx512f._mm512_set1_epi32(32 - W as i32);
    for (g, group) in block.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let Some(from) = padded[2 * W * g..].first_chunk::<64>() else {
            continue;
        };
        let lanes = simd.avx512bw._mm512_permutexvar_epi16(pairs, cast(*from));
        let top = simd.avx512f._mm512_sllv_epi32(lanes, up);
        *group = cast(simd.avx512f._mm512_srav_epi32(top, down));
    }
}

/// Writes a block's integers of W bits, 8 to 16, to exactly their bytes.
#[inline(always)]
pub(super) fn put<const W: usize>(simd: V4, block: &[i32; BLOCK], out: &mut [u8]) {
    let mut padded = [0u8; PADDED];
    let mask = simd.avx512f._mm512_set1_epi32((1 << W) - 1);
    for (g, group) in block.as_chunks::<16>().0.iter().enumerate() {
        let lanes = simd.avx512f._mm512_and_si512(cast(*group), mask);
        words::<W>(simd, lanes, &mut padded[2 * W * g..]);
    }
    out[..BLOCK / 8 * W].copy_from_slice(&padded[..BLOCK / 8 * W]);
}

/// The same for W of 4 to 7 bits: two neighbours are one integer of W2 = 2·W bits.
#[inline(always)]
pub(super) fn put_narrow<const W: usize, const W2: usize>(simd: V4, block: &[i32; BLOCK], out: &mut [u8]) {
    let mut padded = [0u8; PADDED];
    let mask = simd.avx512f._mm512_set1_epi32((1 << W) - 1);
    let gap: __m512i = cast([32 - W as u64; 8]);
    let even: __m512i = cast(const { even() });
    let neighbours = |half: [i32; 16]| {
        let lanes = simd.avx512f._mm512_and_si512(cast(half), mask);
        simd.avx512f
            ._mm512_or_si512(lanes, simd.avx512f._mm512_srlv_epi64(lanes, gap))
    };
    for (g, [low, high]) in block.as_chunks::<16>().0.as_chunks::<2>().0.iter().enumerate() {
        let (low, high) = (neighbours(*low), neighbours(*high));
        let lanes = simd.avx512f._mm512_permutex2var_epi32(low, even, high);
        let mask = simd.avx512f._mm512_set1_epi32((1 << W2) - 1);
        let lanes = simd.avx512f._mm512_and_si512(lanes, mask);
        words::<W2>(simd, lanes, &mut padded[2 * W2 * g..]);
    }
    out[..BLOCK / 8 * W].copy_from_slice(&padded[..BLOCK / 8 * W]);
}

/// Sixteen integers of W bits, 8 to 16, as W words; what follows them is not kept.
#[inline(always)]
fn words<const W: usize>(simd: V4, lanes: __m512i, out: &mut [u8]) {
    let start: __m512i = cast(const { start::<W>() });
    let lanes = simd.avx512f._mm512_sllv_epi32(lanes, start);
    let part = |(mask, index): (u32, [u16; 32])| {
        simd.avx512bw
            ._mm512_maskz_permutexvar_epi16(mask, cast(index), lanes)
    };
    let (first, second, rest) = (
        part(const { begins::<W>(0) }),
        part(const { begins::<W>(1) }),
        part(const { ends::<W>() }),
    );
    let both = simd.avx512f._mm512_or_si512(first, second);
    let words: [u8; 64] = cast(simd.avx512f._mm512_or_si512(both, rest));
    if let Some(to) = out.first_chunk_mut() {
        *to = words;
    }
}

/// The two words of each integer.
const fn pairs<const W: usize>() -> [u16; 32] {
    let mut words = [0; 32];
    let mut k = 0;
    while k < 16 {
        words[2 * k] = (k * W / 16) as u16;
        words[2 * k + 1] = (k * W / 16 + 1) as u16;
        k += 1;
    }
    words
}

/// How far each integer's first bit is from its first word's.
const fn start<const W: usize>() -> [u32; 16] {
    let mut shifts = [0; 16];
    let mut k = 0;
    while k < 16 {
        shifts[k] = (k * W % 16) as u32;
        k += 1;
    }
    shifts
}

/// How far each integer's last bit is from its lane's.
const fn up<const W: usize>() -> [u32; 16] {
    let mut shifts = start::<W>();
    let mut k = 0;
    while k < 16 {
        shifts[k] = 32 - W as u32 - shifts[k];
        k += 1;
    }
    shifts
}

/// For each word, the first (`nth` 0) or second (1) integer that begins in it, as the lower half of its lane; and which words
/// have one.
const fn begins<const W: usize>(nth: usize) -> (u32, [u16; 32]) {
    let (mut mask, mut index) = (0, [0; 32]);
    let mut word = 0;
    while word < W {
        let (mut k, mut seen) = (0, 0);
        while k < 16 {
            if k * W / 16 == word {
                if seen == nth {
                    mask |= 1 << word;
                    index[word] = 2 * k as u16;
                }
                seen += 1;
            }
            k += 1;
        }
        assert!(seen <= 2, "two at most begin in a word");
        word += 1;
    }
    (mask, index)
}

/// For each word, the integer of the word before that ends in it, as the upper half of its lane; and which words have one.
const fn ends<const W: usize>() -> (u32, [u16; 32]) {
    let (mut mask, mut index) = (0, [0; 32]);
    let mut k = 0;
    while k < 16 {
        if k * W % 16 + W > 16 {
            let word = k * W / 16 + 1;
            mask |= 1 << word;
            index[word] = 2 * k as u16 + 1;
        }
        k += 1;
    }
    (mask, index)
}

/// The even lanes of two vectors.
const fn even() -> [u32; 16] {
    let mut lanes = [0; 16];
    let mut k = 0;
    while k < 16 {
        lanes[k] = 2 * k as u32;
        k += 1;
    }
    lanes
}
