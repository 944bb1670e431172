//! Packing and unpacking of a whole block of integers: [`crate::pack`]'s layout, many at a time.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use crate::pack;
use crate::quant::BLOCK;

/// Writes a block's integers, of `width` bits each, to exactly their bytes.
#[inline(always)]
pub(super) fn put(block: &[i32; BLOCK], width: u32, out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V4::try_new() {
        macro_rules! widths {
            ($($w:literal)*; $($narrow:literal twice $twice:literal)*) => {
                match width {
                    $($narrow => return avx512::put_narrow::<$narrow, $twice>(simd, block, out),)*
                    $($w => return avx512::put::<$w>(simd, block, out),)*
                    _ => {}
                }
            };
        }
        widths!(8 9 10 11 12 13 14 15 16; 4 twice 8 5 twice 10 6 twice 12 7 twice 14);
    }
    if !portable::put(block, width, out) {
        pack::put_bits(block, width, out);
    }
}

/// Reads a block's integers from exactly their bytes.
#[inline(always)]
pub(super) fn get(bytes: &[u8], width: u32, block: &mut [i32; BLOCK]) {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V4::try_new() {
        macro_rules! widths {
            ($($w:literal)*) => {
                match width {
                    $($w => return avx512::get::<$w>(simd, bytes, block),)*
                    _ => {}
                }
            };
        }
        widths!(4 5 6 7 8 9 10 11 12 13 14 15 16);
    }
    if !portable::get(bytes, width, block) {
        pack::get_bits(bytes, width, block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_width_is_the_plain_layout(width in 2u32..32, numbers in proptest::collection::vec(any::<i32>(), BLOCK)) {
            let fits = |n: i32| n << (32 - width) >> (32 - width);
            let block: [i32; BLOCK] = numbers.iter().map(|n| fits(*n)).collect::<Vec<_>>().try_into().unwrap();
            let mut want = vec![0; BLOCK / 8 * width as usize];
            pack::put_bits(&block, width, &mut want);
            let (mut fast, mut plain) = (want.clone(), want.clone());
            put(&block, width, &mut fast);
            prop_assert_eq!(&fast, &want);
            let (mut read, mut slow) = ([0; BLOCK], [0; BLOCK]);
            get(&want, width, &mut read);
            prop_assert_eq!(read, block);
            if portable::put(&block, width, &mut plain) && portable::get(&want, width, &mut slow) {
                prop_assert_eq!(&plain, &want);
                prop_assert_eq!(slow, block);
            }
        }
    }
}
