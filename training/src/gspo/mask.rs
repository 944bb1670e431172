//! Which tokens of a completion count.

/// A completion up to its first EOS, that one included: a pad token that is an EOS itself ends nothing a second time.
/// [5, EOS, EOS as padding] counts as [1, 1, 0].
#[must_use]
pub fn active<'a>(completion: &'a [u32], eos: &[u32]) -> &'a [u32] {
    let end = completion.iter().position(|token| eos.contains(token));
    &completion[..end.map_or(completion.len(), |at| at + 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_eos_counts_and_padding_does_not() {
        let mask = |tokens: &[u32], eos: &[u32]| {
            let count = active(tokens, eos).len();
            (0..tokens.len()).map(|i| u8::from(i < count)).collect::<Vec<_>>()
        };
        assert_eq!(mask(&[5, 2, 2], &[2]), [1, 1, 0]);
        assert_eq!(mask(&[5, 7, 2], &[2, 7]), [1, 1, 0]);
        assert_eq!(mask(&[5, 6, 8], &[2]), [1, 1, 1]);
        assert_eq!(mask(&[], &[2]), [0; 0]);
    }
}
