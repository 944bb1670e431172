//! Memory of payloads that were sent, for payloads to be received: a ring passes on as much as it takes.

use std::sync::{Arc, Mutex, PoisonError};

/// Buffers kept at most; a ring needs about as many as frames wait for its successor.
const KEPT: usize = 16;
/// Smaller ones are not worth it.
const SMALLEST: usize = 64 * 1024;

/// Buffers of a node's links; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Buffers(Arc<Mutex<Vec<Vec<u8>>>>);

impl Buffers {
    /// Keeps a buffer that is no longer needed.
    pub(super) fn give(&self, buffer: Vec<u8>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buffer.capacity() >= SMALLEST && kept.len() < KEPT {
            kept.push(buffer);
        }
    }

    /// A buffer of exactly `len` bytes, whatever they are; `None` when none kept is large enough.
    pub(super) fn take(&self, len: usize) -> Option<Vec<u8>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A payload leaves without its seal, and comes with one: its room counts, not its length.
        let at = kept.iter().position(|buffer| buffer.capacity() >= len)?;
        let mut buffer = kept.swap_remove(at);
        buffer.resize(len, 0);
        Some(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_is_taken_again() {
        let buffers = Buffers::default();
        buffers.give(vec![1; SMALLEST - 1]);
        assert!(buffers.take(10).is_none());
        buffers.give(vec![2; SMALLEST]);
        assert!(buffers.take(SMALLEST + 1).is_none());
        assert_eq!(buffers.clone().take(SMALLEST - 5), Some(vec![2; SMALLEST - 5]));
        let mut opened = vec![3; SMALLEST];
        opened.truncate(SMALLEST - 28);
        buffers.give(opened);
        assert_eq!(
            buffers.take(SMALLEST).map(|b| b.len()),
            Some(SMALLEST),
            "the next sealed one"
        );
        (0..2 * KEPT).for_each(|_| buffers.give(vec![0; SMALLEST]));
        assert_eq!((0..2 * KEPT).filter_map(|_| buffers.take(1)).count(), KEPT);
    }
}
