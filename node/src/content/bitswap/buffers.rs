//! Memory of messages, used again: what the system hands out anew it first clears, page by page, which takes longer than
//! to fill it.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::MAX_REPLY;
use super::line::LARGE;

/// Smaller messages do not borrow: a few of their bytes would hold a large buffer.
pub(super) const WORTH_BORROWING: usize = LARGE;
/// The largest buffer that is kept.
const LARGEST: usize = MAX_REPLY + (1 << 20) / 2;
/// Bytes kept for later.
const MAX_KEPT: usize = 16 << 20;

/// Buffers to be used again. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Buffers(Arc<Mutex<Vec<Vec<u8>>>>);

impl Buffers {
    /// A buffer, whatever it holds; empty when none was kept.
    pub(super) fn take(&self) -> Vec<u8> {
        self.lock(|kept| kept.pop()).unwrap_or_default()
    }

    /// Bytes that come back here when nobody holds a part of them any more.
    pub(super) fn lend(&self, bytes: Vec<u8>) -> Bytes {
        let home = self.clone();
        Bytes::from_owner(Lent { bytes, home })
    }

    /// Gives the memory back to the system.
    pub(super) fn clear(&self) {
        let kept = self.lock(std::mem::take);
        drop(kept);
    }

    fn keep(&self, buffer: Vec<u8>) {
        let size = buffer.capacity();
        if !(WORTH_BORROWING..=LARGEST).contains(&size) {
            return;
        }
        self.lock(|kept| {
            if kept.iter().map(Vec::capacity).sum::<usize>() + size <= MAX_KEPT {
                kept.push(buffer);
            }
        });
    }

    fn lock<T>(&self, work: impl FnOnce(&mut Vec<Vec<u8>>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct Lent {
    bytes: Vec<u8>,
    home: Buffers,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.home.keep(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_when_its_last_part_is_dropped() {
        let buffers = Buffers::default();
        let whole = buffers.lend(vec![7; 1 << 20]);
        let part = whole.slice(5..9);
        drop(whole);
        assert_eq!(buffers.take().len(), 0);
        assert_eq!(part, [7; 4][..]);
        drop(part);
        assert_eq!(buffers.take().len(), 1 << 20);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let buffers = Buffers::default();
        let lent: Vec<Bytes> = (0..40).map(|_| buffers.lend(vec![0; 1 << 20])).collect();
        drop(lent);
        drop(buffers.lend(vec![0; 10]));
        assert_eq!(buffers.lock(|kept| kept.len()), 16);
        buffers.clear();
        assert_eq!(buffers.take().len(), 0);
    }
}
