//! Integers of a partial sum in the fewest bits (PROTOCOL section 6): two's complement at the least width that holds
//! ±127·h (q4: ±7·h) for h contributions, little-endian bit order, each segment on its own, padding bits zero.

use crate::quant::{Levels, Q8_MAX};

/// Why a packed segment is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// Too few or too many bytes.
    #[error("{got} bytes where {elements} integers of {width} bits take {want}")]
    Length {
        /// Bytes given.
        got: usize,
        /// Bytes needed.
        want: usize,
        /// Integers expected.
        elements: usize,
        /// Bits an integer.
        width: u32,
    },
    /// A sum that its contributions cannot have.
    #[error(
        "integer {value} of element {element} is outside ±{bound}, which is all {contributions} contributions can reach"
    )]
    Range {
        /// Index in the segment.
        element: usize,
        /// The integer.
        value: i32,
        /// 127 × contributions (q4: 7 ×).
        bound: i32,
        /// Contributions in the sum.
        contributions: u32,
    },
    /// Bits after the last integer must be zero.
    #[error("the padding after the last integer is not zero")]
    Padding,
}

/// Bits of an integer that sums `contributions`: 8 for one of ±127, 9 for two, 10 for three and four, …; 4 for one of ±7,
/// 5 for two, 6 for three and four, …
#[must_use]
pub fn width(levels: Levels, contributions: u32) -> u32 {
    let bound = bound(levels, contributions) as u32;
    u32::BITS - bound.leading_zeros() + 1
}

/// The most contributions a sum may have: their bound still fits an i32.
pub const MAX_CONTRIBUTIONS: u32 = (i32::MAX / Q8_MAX) as u32;

/// The largest magnitude that the sum of `contributions` can have.
pub(crate) fn bound(levels: Levels, contributions: u32) -> i32 {
    contributions.clamp(1, MAX_CONTRIBUTIONS) as i32 * levels.max()
}

/// Bytes that `n` integers of `width` bits take.
#[must_use]
pub fn packed_len(n: usize, width: u32) -> usize {
    (n as u128 * u128::from(width)).div_ceil(8) as usize
}

/// Packs the sums of `contributions` members, which must lie within what they can reach.
#[must_use]
pub fn pack(sums: &[i32], levels: Levels, contributions: u32) -> Vec<u8> {
    debug_assert!(sums.iter().all(|s| s.abs() <= bound(levels, contributions)));
    let width = width(levels, contributions);
    let mut out = vec![0; packed_len(sums.len(), width)];
    put_bits(sums, width, &mut out);
    out
}

/// Writes integers, `width` bits each, to exactly their bytes.
pub(crate) fn put_bits(sums: &[i32], width: u32, out: &mut [u8]) {
    let mask = low_bits(width);
    let (mut bits, mut held, mut at) = (0u64, 0, 0);
    for &sum in sums {
        bits |= (u64::from(sum as u32) & mask) << held;
        held += width;
        if held >= 32 {
            out[at..at + 4].copy_from_slice(&(bits as u32).to_le_bytes());
            at += 4;
            bits >>= 32;
            held -= 32;
        }
    }
    let rest = held.div_ceil(8) as usize;
    out[at..at + rest].copy_from_slice(&bits.to_le_bytes()[..rest]);
}

/// Reads integers of `width` bits each from exactly their bytes.
pub(crate) fn get_bits(bytes: &[u8], width: u32, sums: &mut [i32]) {
    let mut reader = Reader::new(bytes);
    sums.iter_mut()
        .for_each(|s| *s = sign_extend(reader.take(width), width));
}

/// Whether the bits after the last of `n` integers are zero.
pub(crate) fn padding_is_zero(bytes: &[u8], n: usize, width: u32) -> bool {
    let used = (n as u128 * u128::from(width) % 8) as u32;
    used == 0 || bytes.last().is_none_or(|last| last >> used == 0)
}

/// Reads exactly `n` sums of `contributions` members.
///
/// # Errors
/// Wrong length, a sum out of range, padding that is not zero.
pub fn unpack(bytes: &[u8], levels: Levels, contributions: u32, n: usize) -> Result<Vec<i32>, PackError> {
    let width = width(levels, contributions);
    let want = packed_len(n, width);
    if bytes.len() != want {
        return Err(PackError::Length {
            got: bytes.len(),
            want,
            elements: n,
            width,
        });
    }
    let mut sums = vec![0; n];
    get_bits(bytes, width, &mut sums);
    if !padding_is_zero(bytes, n, width) {
        return Err(PackError::Padding);
    }
    check_range(&sums, levels, contributions)?;
    Ok(sums)
}

fn check_range(sums: &[i32], levels: Levels, contributions: u32) -> Result<(), PackError> {
    let bound = bound(levels, contributions);
    match sums.iter().position(|s| !(-bound..=bound).contains(s)) {
        Some(element) => Err(PackError::Range {
            element,
            value: sums[element],
            bound,
            contributions,
        }),
        None => Ok(()),
    }
}

struct Reader<'a> {
    words: &'a [u8],
    bits: u64,
    held: u32,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self {
            words: bytes,
            bits: 0,
            held: 0,
        }
    }

    /// The next `width` (at most 32) bits.
    fn take(&mut self, width: u32) -> u32 {
        if self.held < width {
            self.refill();
        }
        let value = (self.bits & low_bits(width)) as u32;
        self.bits >>= width;
        self.held = self.held.saturating_sub(width);
        value
    }

    fn refill(&mut self) {
        if let Some((word, rest)) = self.words.split_first_chunk::<4>() {
            self.bits |= u64::from(u32::from_le_bytes(*word)) << self.held;
            self.held += 32;
            self.words = rest;
            return;
        }
        for &byte in self.words {
            self.bits |= u64::from(byte) << self.held;
            self.held += 8;
        }
        self.words = &[];
    }
}

fn low_bits(width: u32) -> u64 {
    (1u64 << width) - 1
}

fn sign_extend(value: u32, width: u32) -> i32 {
    let unused = 32 - width;
    ((value << unused) as i32) >> unused
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn widths_are_the_least_that_hold() {
        assert_eq!(
            [1, 2, 3, 4, 5, 8, 9, 1000].map(|h| width(Levels::Q8, h)),
            [8, 9, 10, 10, 11, 11, 12, 18]
        );
        assert_eq!(
            [1, 2, 3, 4, 5, 9, 10, 18, 19, 1000].map(|h| width(Levels::Q4, h)),
            [4, 5, 6, 6, 7, 7, 8, 8, 9, 14]
        );
        for levels in [Levels::Q8, Levels::Q4] {
            for h in (1..5000).chain([MAX_CONTRIBUTIONS - 1, MAX_CONTRIBUTIONS]) {
                let (w, bound) = (width(levels, h), i64::from(levels.max()) * i64::from(h));
                assert!(bound < 1 << (w - 1), "{h} fits");
                assert!(bound >= 1 << (w - 2), "{h} would not fit one bit less");
            }
        }
    }

    #[test]
    fn bits_are_little_endian() {
        // 9 bits: 254 = 0_1111_1110, −1 = 1_1111_1111, 1 = 0_0000_0001.
        assert_eq!(
            pack(&[254, -1, 1], Levels::Q8, 2),
            [0b1111_1110, 0b1111_1110, 0b0000_0111, 0b0000_0000]
        );
    }

    #[test]
    fn impossible_segments_are_refused() {
        assert_eq!(
            unpack(&[0x80], Levels::Q8, 1, 1),
            Err(PackError::Range {
                element: 0,
                value: -128,
                bound: 127,
                contributions: 1
            })
        );
        assert_eq!(
            unpack(&[0x87], Levels::Q4, 1, 2),
            Err(PackError::Range {
                element: 1,
                value: -8,
                bound: 7,
                contributions: 1
            })
        );
        assert_eq!(unpack(&[0x10], Levels::Q4, 1, 1), Err(PackError::Padding));
        assert_eq!(unpack(&[0, 2], Levels::Q8, 2, 1), Err(PackError::Padding));
        assert!(matches!(
            unpack(&[0], Levels::Q8, 2, 1),
            Err(PackError::Length { want: 2, .. })
        ));
        assert!(matches!(
            unpack(&[0; 3], Levels::Q8, 2, 1),
            Err(PackError::Length { want: 2, .. })
        ));
        assert_eq!(unpack(&[], Levels::Q8, 2, 0), Ok(vec![]));
    }

    fn levels() -> impl Strategy<Value = Levels> {
        prop_oneof![Just(Levels::Q8), Just(Levels::Q4)]
    }

    fn sums() -> impl Strategy<Value = (Levels, u32, Vec<i32>)> {
        let contributions = prop_oneof![1u32..40, 1u32..5000, 1u32..=MAX_CONTRIBUTIONS];
        (levels(), contributions).prop_flat_map(|(levels, h)| {
            let b = bound(levels, h);
            (
                Just(levels),
                Just(h),
                proptest::collection::vec(prop_oneof![-b..=b, Just(b), Just(-b)], 0..200),
            )
        })
    }

    /// Bit by bit, from the specification's words.
    fn pack_slowly(sums: &[i32], width: u32) -> Vec<u8> {
        let mut out = vec![0u8; packed_len(sums.len(), width)];
        for (i, sum) in sums.iter().enumerate() {
            for bit in 0..width as usize {
                let at = i * width as usize + bit;
                out[at / 8] |= ((sum >> bit & 1) as u8) << (at % 8);
            }
        }
        out
    }

    proptest! {
        #[test]
        fn packs_and_unpacks((levels, h, sums) in sums()) {
            let bytes = pack(&sums, levels, h);
            prop_assert_eq!(&bytes, &pack_slowly(&sums, width(levels, h)));
            prop_assert_eq!(unpack(&bytes, levels, h, sums.len()).unwrap(), sums);
        }

        #[test]
        fn foreign_bytes_have_one_encoding(bytes in proptest::collection::vec(any::<u8>(), 0..64), levels in levels(), h in 1u32..600, n in 0usize..64) {
            if let Ok(sums) = unpack(&bytes, levels, h, n) {
                prop_assert_eq!(pack(&sums, levels, h), bytes);
            }
        }
    }

    #[test]
    fn every_width_roundtrips() {
        let q8 = (8..32).map(|w| (Levels::Q8, w));
        for (levels, w) in q8.chain((4..27).map(|w| (Levels::Q4, w))) {
            let h = (1u32 << (w - 2)) / levels.max() as u32 + 1;
            assert_eq!(width(levels, h), w);
            let b = bound(levels, h);
            let sums: Vec<i32> = (0..97)
                .map(|i| [b, -b, 0, 1, -1, i][i as usize % 6].clamp(-b, b))
                .collect();
            assert_eq!(
                unpack(&pack(&sums, levels, h), levels, h, sums.len()).unwrap(),
                sums
            );
        }
    }
}
