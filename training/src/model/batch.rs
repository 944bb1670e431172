//! Rows of tokens with padding, on the host.

use burn::tensor::{Device, Int, Tensor, TensorData};
use std::ops::Range;

/// Token rows padded to one width. The places of a row that are not padding are one span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBatch {
    width: usize,
    ids: Vec<i64>,
    spans: Vec<Range<usize>>,
}

impl TokenBatch {
    /// Pads on the right with `pad`: positions are 0, 1, … in every row, and causality alone hides the padding.
    #[must_use]
    pub fn right_padded<R: AsRef<[u32]>>(rows: &[R], pad: u32) -> Self {
        Self::padded(rows, pad, |_, len| 0..len)
    }

    /// Pads on the left with `pad`: every row ends at the last place, as generation wants it.
    #[must_use]
    pub fn left_padded<R: AsRef<[u32]>>(rows: &[R], pad: u32) -> Self {
        Self::padded(rows, pad, |width, len| width - len..width)
    }

    fn padded<R: AsRef<[u32]>>(rows: &[R], pad: u32, span: impl Fn(usize, usize) -> Range<usize>) -> Self {
        let width = rows.iter().map(|r| r.as_ref().len()).max().unwrap_or(0);
        let mut ids = vec![i64::from(pad); width * rows.len()];
        let mut spans = Vec::with_capacity(rows.len());
        for (row, line) in rows.iter().zip(ids.chunks_exact_mut(width.max(1))) {
            let tokens = row.as_ref();
            let span = span(width, tokens.len());
            for (slot, token) in line[span.clone()].iter_mut().zip(tokens) {
                *slot = i64::from(*token);
            }
            spans.push(span);
        }
        Self { width, ids, spans }
    }

    /// Rows, B.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.spans.len()
    }

    /// Places a row, T.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// The unpadded places of each row.
    #[must_use]
    pub fn spans(&self) -> &[Range<usize>] {
        &self.spans
    }

    /// Unpadded tokens of all rows.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.spans.iter().map(ExactSizeIterator::len).sum()
    }

    /// The first token that a vocabulary of `vocab` does not hold.
    #[must_use]
    pub fn first_outside(&self, vocab: usize) -> Option<i64> {
        self.ids
            .iter()
            .copied()
            .find(|id| usize::try_from(*id).is_ok_and(|i| i >= vocab))
    }

    /// Token ids, row-major [B·T].
    pub(crate) fn flat_ids(&self, device: &Device) -> Tensor<1, Int> {
        Tensor::from_data(TensorData::new(self.ids.clone(), [self.ids.len()]), device)
    }

    /// How many places of padding precede each row.
    pub(crate) fn starts(&self) -> Vec<usize> {
        self.spans.iter().map(|s| s.start).collect()
    }
}
