//! Reading content that is still being fetched.

use bytes::Bytes;
use cid::Cid;

use super::export::Absent;
use super::read::{self, Entry, FileReader, Opened};
use super::{ContentPath, ReadError};
use crate::content::store::Store;

/// Reads from a store, and waits for blocks that are missing.
pub(super) struct Patient<'a> {
    store: &'a Store,
    wait: Box<dyn FnMut(Cid, u32) -> Absent + 'a>,
}

impl<'a> Patient<'a> {
    /// `wait` is called with a missing block and how often in a row one was missing for the same piece of reading.
    pub(super) fn new(store: &'a Store, wait: impl FnMut(Cid, u32) -> Absent + 'a) -> Self {
        let wait = Box::new(wait);
        Self { store, wait }
    }

    pub(super) fn follow(&mut self, path: &ContentPath) -> Result<Cid, ReadError> {
        let store = self.store;
        self.read(|| read::follow(store, path))
    }

    pub(super) fn open(&mut self, cid: &Cid) -> Result<Opened<'a>, ReadError> {
        let store = self.store;
        self.read(|| read::open(store, cid))
    }

    pub(super) fn list(&mut self, directory: &Cid) -> Result<Vec<Entry>, ReadError> {
        let store = self.store;
        self.read(|| read::list(store, directory))
    }

    pub(super) fn next_bytes(&mut self, reader: &mut FileReader<'_>) -> Result<Option<Bytes>, ReadError> {
        self.read(|| reader.next_bytes())
    }

    fn read<T>(&mut self, mut read: impl FnMut() -> Result<T, ReadError>) -> Result<T, ReadError> {
        let mut tries = 0;
        loop {
            let error = match read() {
                Ok(found) => return Ok(found),
                Err(error) => error,
            };
            let missing = error.missing_block();
            if missing.is_none_or(|cid| (self.wait)(cid, tries) == Absent::GiveUp) {
                return Err(error);
            }
            tries += 1;
        }
    }
}
