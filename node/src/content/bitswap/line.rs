//! What a peer's connections have in common: the memory of messages that it has begun to send, and how much it has read.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::MAX_MESSAGE;
use super::stream::ReadFault;

/// Bytes above which a message is large: only a peer that was asked for blocks has a reason to send one.
pub(super) const LARGE: usize = 1 << 20;
/// What permits of small messages stand for.
const UNIT: usize = 1 << 10;

/// Shared by a peer's connections. All its small messages together, and one large one, may be under way.
#[derive(Debug)]
pub(super) struct Line {
    small: Semaphore,
    large: Semaphore,
    /// When it was last asked for blocks, or owed some.
    asked: Mutex<Option<Instant>>,
    patience: Duration,
    written: AtomicU64,
    receiving: Receiving,
}

/// Bytes of messages, of all peers, that have begun and not ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Receiving(Arc<AtomicUsize>);

/// The part of it that one message takes.
#[derive(Debug)]
pub(super) struct Part {
    receiving: Receiving,
    bytes: usize,
}

impl Line {
    /// A peer may send large messages until `patience` after it was asked for blocks.
    pub(super) fn new(patience: Duration, receiving: Receiving) -> Self {
        Self {
            small: Semaphore::new(LARGE / UNIT),
            large: Semaphore::new(1),
            asked: Mutex::new(None),
            patience,
            written: AtomicU64::new(0),
            receiving,
        }
    }

    /// The peer was asked for blocks, or still owes some.
    pub(super) fn expect_blocks(&self) {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Waits until a message of `length` bytes may be received.
    ///
    /// # Errors
    /// [`ReadFault::Uncalled`] when it is a large one and nothing was asked of the peer.
    pub(super) async fn admit(&self, length: usize) -> Result<SemaphorePermit<'_>, ReadFault> {
        debug_assert!(length <= MAX_MESSAGE, "longer ones are refused by their length");
        let permit = if length <= LARGE {
            self.small.acquire_many(length.div_ceil(UNIT) as u32).await
        } else if self.expects_blocks() {
            self.large.acquire().await
        } else {
            return Err(ReadFault::Uncalled(length));
        };
        // They are never closed.
        permit.map_err(|_| ReadFault::Uncalled(length))
    }

    pub(super) fn on_written(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes that the peer has taken.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Memory for a message of this peer's, none as yet.
    pub(super) fn part(&self) -> Part {
        Part {
            receiving: self.receiving.clone(),
            bytes: 0,
        }
    }

    fn expects_blocks(&self) -> bool {
        let asked = *self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.is_some_and(|at| at.elapsed() < self.patience)
    }
}

impl Receiving {
    pub(super) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Part {
    pub(super) fn set(&mut self, bytes: usize) {
        self.receiving.0.fetch_add(bytes, Ordering::Relaxed);
        self.receiving.0.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.set(0);
    }
}
