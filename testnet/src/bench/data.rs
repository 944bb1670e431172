//! What members bring: the same numbers in every round and process, so that the result is known beforehand.

/// Member `slot`'s delta: 24-bit numbers in (−1, 1), each block of 256 at another scale.
pub(super) fn delta(slot: u32, elements: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(u64::from(slot) + 1);
    (0..elements)
        .map(|i| {
            // xorshift64
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let unit = (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
            unit * 0.01 * ((i / 256 % 7) + 1) as f32
        })
        .collect()
}

/// Member `slot`'s weight.
pub(super) fn weight(slot: u32) -> u64 {
    64 + u64::from(slot % 5)
}

/// Σ of all weights.
pub(super) fn total_weight(members: u32) -> u64 {
    (0..members).map(weight).sum()
}

/// BLAKE3 of the bits, hex.
pub(super) fn digest(values: &[f32]) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut bytes = Vec::with_capacity(4 * 65_536);
    for part in values.chunks(65_536) {
        bytes.clear();
        bytes.extend(part.iter().flat_map(|v| v.to_bits().to_le_bytes()));
        hasher.update(&bytes);
    }
    hasher.finalize().to_hex().to_string()
}
