//! The content hash, computed beside the work that feeds it: SHA3-256 is the slowest part of reading and writing a file.

use crate::ids::Hash32;
use sha3::{Digest, Sha3_256};
use std::mem;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

/// Bytes handed over at a time; less content than this is hashed where it is.
const BUFFER: usize = 1 << 20;
/// Buffers that wait to be hashed, at most.
const QUEUE: usize = 4;

/// SHA3-256 of everything it is fed, in order. From the second mebibyte on a thread of its own hashes.
pub(super) struct ContentHasher {
    buffer: Vec<u8>,
    /// Until a worker takes over, or for good where no thread can be had.
    here: Sha3_256,
    worker: Option<Worker>,
}

struct Worker {
    full: SyncSender<Vec<u8>>,
    spent: Receiver<Vec<u8>>,
    thread: JoinHandle<Sha3_256>,
}

impl ContentHasher {
    pub(super) fn new() -> Self {
        Self {
            buffer: Vec::new(),
            here: Sha3_256::new(),
            worker: None,
        }
    }

    /// Feeds bytes; waits while the queue is full.
    pub(super) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.buffer.len() == BUFFER {
                self.hand_over();
            }
            let (now, later) = bytes.split_at(bytes.len().min(BUFFER - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
        }
    }

    /// The hash of all that was fed.
    pub(super) fn finish(self) -> Hash32 {
        let hasher = match self.worker {
            Some(worker) => worker.finish(),
            None => self.here,
        };
        Hash32(hasher.chain_update(&self.buffer).finalize().into())
    }

    fn hand_over(&mut self) {
        if self.worker.is_none() {
            self.worker = Worker::start(self.here.clone());
        }
        let Some(worker) = &self.worker else {
            self.here.update(&self.buffer);
            self.buffer.clear();
            return;
        };
        let next = worker.spent.try_recv().unwrap_or_default();
        let full = mem::replace(&mut self.buffer, next);
        self.buffer.clear();
        self.buffer.reserve_exact(BUFFER);
        // It fails only when the thread has panicked, which `finish` passes on.
        let _ = worker.full.send(full);
    }
}

impl Worker {
    /// Goes on with `hasher` in a thread of its own; `None` when there can be none.
    fn start(mut hasher: Sha3_256) -> Option<Self> {
        let (full, to_hash) = sync_channel::<Vec<u8>>(QUEUE);
        let (give_back, spent) = sync_channel(QUEUE + 2);
        let hash = move || {
            for buffer in to_hash {
                hasher.update(&buffer);
                // Nobody needs it any more when the other side is gone.
                let _ = give_back.try_send(buffer);
            }
            hasher
        };
        let thread = thread::Builder::new()
            .name("delta-hash".to_owned())
            .spawn(hash)
            .ok()?;
        Some(Self { full, spent, thread })
    }

    fn finish(self) -> Sha3_256 {
        let Self { full, thread, .. } = self;
        drop(full);
        match thread.join() {
            Ok(hasher) => hasher,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}
