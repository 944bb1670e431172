//! Token sequences laid end to end, without padding.

use std::ops::Range;
use std::sync::Arc;

/// A run of tokens in a packed pass. Its tokens attend to one another causally and to the whole of its prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Places in the packed order.
    pub places: Range<usize>,
    /// An earlier segment without a prefix of its own that this one continues: a group's shared prompt.
    pub prefix: Option<usize>,
}

/// Sequences packed one after the other, [N] tokens in all. Padding is dropped where they are packed, so that it
/// can enter nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    ids: Vec<u32>,
    segments: Vec<Segment>,
}

impl Packed {
    /// Whole sequences.
    #[must_use]
    pub fn rows<R: AsRef<[u32]>>(rows: &[R]) -> Self {
        let mut packed = Self::default();
        for row in rows {
            packed.push(row.as_ref());
        }
        packed
    }

    /// The unpadded tokens of rows padded to `width`, on either side: `mask` is 1 at tokens, [B·width] both.
    #[must_use]
    pub fn masked(ids: &[u32], mask: &[u8], width: usize) -> Self {
        let mut packed = Self::default();
        for (ids, mask) in ids.chunks(width.max(1)).zip(mask.chunks(width.max(1))) {
            let kept: Vec<u32> = ids
                .iter()
                .zip(mask)
                .filter(|(_, m)| **m == 1)
                .map(|(i, _)| *i)
                .collect();
            packed.push(&kept);
        }
        packed
    }

    /// Adds a sequence and returns its segment's index.
    pub fn push(&mut self, tokens: &[u32]) -> usize {
        self.add(tokens, None)
    }

    /// Adds tokens that continue segment `prefix`, which has no prefix itself.
    pub fn push_after(&mut self, prefix: usize, tokens: &[u32]) -> usize {
        debug_assert!(self.segments[prefix].prefix.is_none(), "prefixes do not nest");
        self.add(tokens, Some(prefix))
    }

    fn add(&mut self, tokens: &[u32], prefix: Option<usize>) -> usize {
        let start = self.ids.len();
        self.ids.extend_from_slice(tokens);
        self.segments.push(Segment {
            places: start..self.ids.len(),
            prefix,
        });
        self.segments.len() - 1
    }

    /// Tokens, N.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether nothing was packed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Token ids in packed order.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Segments in packed order.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The layout that attention follows.
    pub(crate) fn layout(&self) -> Arc<[Segment]> {
        self.segments.as_slice().into()
    }

    /// Each token's position id: its distance from its sequence's first token.
    #[must_use]
    pub fn positions(&self) -> Vec<usize> {
        let first = |s: &Segment| s.prefix.map_or(0, |p| self.segments[p].places.len());
        self.segments
            .iter()
            .flat_map(|s| (0..s.places.len()).map(move |i| first(s) + i))
            .collect()
    }

    /// The first token that a vocabulary of `vocab` does not hold.
    #[must_use]
    pub fn first_outside(&self, vocab: usize) -> Option<u32> {
        self.ids.iter().copied().find(|id| *id as usize >= vocab)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_on_either_side_is_dropped() {
        let rows = Packed::rows(&[vec![1, 2, 3], vec![4]]);
        let left = Packed::masked(&[1, 2, 3, 0, 0, 4], &[1, 1, 1, 0, 0, 1], 3);
        let right = Packed::masked(&[1, 2, 3, 4, 0, 0], &[1, 1, 1, 1, 0, 0], 3);
        assert_eq!((&left, &right), (&rows, &rows));
        assert_eq!(rows.positions(), [0, 1, 2, 0]);
    }

    #[test]
    fn a_continuation_counts_on_from_its_prefix() {
        let mut packed = Packed::default();
        let prompt = packed.push(&[5, 6, 7]);
        packed.push_after(prompt, &[8, 9]);
        packed.push_after(prompt, &[8]);
        assert_eq!(packed.positions(), [0, 1, 2, 3, 4, 3]);
        assert_eq!(packed.segments()[2].places, 5..6);
        assert_eq!(packed.first_outside(9), Some(9));
    }
}
