//! Packing eight or sixteen integers at a time on any machine.

use super::BLOCK;

/// Writes a block's integers, if `width` is one that this does: 4 to 16. Wider sums are rings of more than 258 members.
#[inline(always)]
pub(super) fn put(block: &[i32; BLOCK], width: u32, out: &mut [u8]) -> bool {
    macro_rules! widths {
        ($($w:literal of $group:literal),*) => {
            match width {
                $($w => put_fast::<$w, $group>(block, out),)*
                _ => return false,
            }
        };
    }
    widths!(4 of 16, 5 of 16, 6 of 16, 7 of 16, 8 of 8, 9 of 8, 10 of 8, 11 of 8, 12 of 8, 13 of 8, 14 of 8, 15 of 8, 16 of 8);
    true
}

/// Reads a block's integers, if `width` is one that this does.
#[inline(always)]
pub(super) fn get(bytes: &[u8], width: u32, block: &mut [i32; BLOCK]) -> bool {
    macro_rules! widths {
        ($($w:literal of $group:literal),*) => {
            match width {
                $($w => get_fast::<$w, $group>(bytes, block),)*
                _ => return false,
            }
        };
    }
    widths!(4 of 16, 5 of 16, 6 of 16, 7 of 16, 8 of 8, 9 of 8, 10 of 8, 11 of 8, 12 of 8, 13 of 8, 14 of 8, 15 of 8, 16 of 8);
    true
}

/// A group of G integers takes G·W/8 bytes, 8 to 16: its first half starts at the first bit, its second half ends at the
/// last, so that two words hold them.
#[inline(always)]
fn put_fast<const W: usize, const G: usize>(block: &[i32; BLOCK], out: &mut [u8]) {
    let mask = (1u64 << W) - 1;
    for (group, out) in block
        .as_chunks::<G>()
        .0
        .iter()
        .zip(out.chunks_exact_mut(G * W / 8))
    {
        let (mut low, mut high) = (0u64, 0u64);
        for k in 0..G / 2 {
            low |= (group[k] as u64 & mask) << (k * W);
            high |= (group[G / 2 + k] as u64 & mask) << (k * W);
        }
        let both = u128::from(low) | u128::from(high) << (G / 2 * W);
        out.copy_from_slice(&both.to_le_bytes()[..G * W / 8]);
    }
}

#[inline(always)]
fn get_fast<const W: usize, const G: usize>(bytes: &[u8], block: &mut [i32; BLOCK]) {
    for (bytes, group) in bytes.chunks_exact(G * W / 8).zip(block.as_chunks_mut::<G>().0) {
        let (Some(low), Some(high)) = (bytes.first_chunk(), bytes.last_chunk()) else {
            continue;
        };
        let (low, high) = (u64::from_le_bytes(*low), u64::from_le_bytes(*high));
        for k in 0..G / 2 {
            group[k] = ((low << (64 - (k + 1) * W)) as i64 >> (64 - W)) as i32;
            group[G / 2 + k] = ((high << ((G / 2 - 1 - k) * W)) as i64 >> (64 - W)) as i32;
        }
    }
}
