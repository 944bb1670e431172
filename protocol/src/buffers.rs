//! Memory of payloads, used again: a ring passes on as much as it takes, and what the system hands out anew it first clears,
//! page by page, which costs as much as the arithmetic.

use std::sync::{Arc, Mutex, PoisonError};

/// Buffers kept at most; a ring needs about as many as frames wait for its successor.
const KEPT: usize = 24;
/// Smaller ones are not worth it.
const SMALLEST: usize = 64 * 1024;
/// Beside a payload's bytes, for a seal's: sent, its memory is then large enough for the next one that is received.
const SEAL: usize = 64;

/// Buffers of a node's links and of the rings that use them; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Buffers(Arc<Mutex<Vec<Vec<u8>>>>);

impl Buffers {
    /// Keeps a buffer that is no longer needed.
    pub fn give(&self, buffer: Vec<u8>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buffer.capacity() >= SMALLEST && kept.len() < KEPT {
            kept.push(buffer);
        }
    }

    /// A buffer of exactly `len` bytes, whatever they are; `None` when none kept is large enough.
    #[must_use]
    pub fn take(&self, len: usize) -> Option<Vec<u8>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A payload leaves without its seal, and comes with one: its room counts, not its length.
        let at = kept.iter().position(|buffer| buffer.capacity() >= len)?;
        let mut buffer = kept.swap_remove(at);
        buffer.resize(len, 0);
        Some(buffer)
    }

    /// The same for a payload that is to be sent and may grow to `most` bytes on its way: new memory where none is kept.
    pub(crate) fn payload(&self, len: usize, most: usize) -> Vec<u8> {
        let room = len.max(most) + SEAL;
        let mut buffer = self.take(room).unwrap_or_else(|| Vec::with_capacity(room));
        buffer.resize(len, 0);
        buffer
    }
}

#[cfg(test)]
impl Buffers {
    /// One buffer, however small.
    pub(crate) fn holding(buffer: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(vec![buffer])))
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
        let payload = buffers.payload(SMALLEST, SMALLEST);
        buffers.give(payload);
        assert!(buffers.take(SMALLEST + SEAL).is_some(), "as a sealed one");
        (0..2 * KEPT).for_each(|_| buffers.give(vec![0; SMALLEST]));
        assert_eq!((0..2 * KEPT).filter_map(|_| buffers.take(1)).count(), KEPT);
    }
}
