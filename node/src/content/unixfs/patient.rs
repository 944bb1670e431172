//! Reading content that is still being fetched.

use bytes::Bytes;
use cid::Cid;

use super::export::Absent;
use super::read::{self, Entry};
use super::reader::{self, FileReader, Opened};
use super::{ContentPath, ReadError};
use crate::content::store::Store;

/// Waits until all of some blocks are there.
type Wait<'a> = dyn FnMut(&[Cid]) -> Absent + 'a;

/// Reads from a store, and waits for blocks that are missing.
pub(super) struct Patient<'a> {
    store: &'a Store,
    wait: Box<Wait<'a>>,
}

impl<'a> Patient<'a> {
    /// `wait` is called with the missing blocks that are known, and returns once all of them are there.
    pub(super) fn new(store: &'a Store, wait: impl FnMut(&[Cid]) -> Absent + 'a) -> Self {
        let wait = Box::new(wait);
        Self { store, wait }
    }

    pub(super) fn follow(&mut self, path: &ContentPath) -> Result<Cid, ReadError> {
        let store = self.store;
        self.read(|| read::follow(store, path))
    }

    pub(super) fn open(&mut self, cid: &Cid) -> Result<Opened<'a>, ReadError> {
        let store = self.store;
        self.read(|| reader::open(store, cid))
    }

    pub(super) fn list(&mut self, directory: &Cid) -> Result<Vec<Entry>, ReadError> {
        let store = self.store;
        self.read(|| read::list(store, directory))
    }

    pub(super) fn next_bytes(&mut self, reader: &mut FileReader<'_>) -> Result<Option<Bytes>, ReadError> {
        self.read(|| reader.next_bytes())
    }

    fn read<T>(&mut self, mut read: impl FnMut() -> Result<T, ReadError>) -> Result<T, ReadError> {
        loop {
            let error = match read() {
                Ok(found) => return Ok(found),
                Err(error) => error,
            };
            let missing = error.missing_blocks();
            if missing.is_empty() || (self.wait)(&missing) == Absent::GiveUp {
                return Err(error);
            }
        }
    }
}
