//! Philox4x32-10 (Salmon et al. 2011), a random function of a counter, and keys for it.

use shake::{ExtendableOutput, Shake256, Update, XofReader};

/// Two key words.
pub type Key = [u32; 2];

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Four random words of `counter` under `key`.
#[must_use]
pub fn philox(counter: [u32; 4], key: Key) -> [u32; 4] {
    let (mut c, mut k) = (counter, key);
    for round in 0..10 {
        if round > 0 {
            k = [k[0].wrapping_add(WEYL[0]), k[1].wrapping_add(WEYL[1])];
        }
        let a = u64::from(MULTIPLIERS[0]) * u64::from(c[0]);
        let b = u64::from(MULTIPLIERS[1]) * u64::from(c[2]);
        c = [
            (b >> 32) as u32 ^ c[1] ^ k[0],
            b as u32,
            (a >> 32) as u32 ^ c[3] ^ k[1],
            a as u32,
        ];
    }
    c
}

/// The first eight bytes of SHAKE-256 over `parts`, as two little-endian words.
#[must_use]
pub fn derive_key(parts: &[&[u8]]) -> Key {
    let mut hasher = Shake256::default();
    for part in parts {
        hasher.update(part);
    }
    let mut bytes = [0u8; 8];
    hasher.finalize_xof().read(&mut bytes);
    let [a, b, c, d, e, f, g, h] = bytes;
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}

/// The top 24 bits of a word as (x + 0.5)/2²⁴, strictly between 0 and 1, exact in f64.
#[must_use]
pub fn unit(word: u32) -> f64 {
    (f64::from(word >> 8) + 0.5) / 16_777_216.0
}

/// `count` numbers between 0 and 1 from the counters 0, 1, … under `key`.
pub(crate) fn units(key: Key, count: usize) -> impl Iterator<Item = f64> {
    (0..count.div_ceil(4))
        .flat_map(move |block| philox([block as u32, (block >> 32) as u32, 0, 0], key).map(unit))
        .take(count)
}
