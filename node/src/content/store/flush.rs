//! What was written and is not surely on the disk yet.

use std::path::PathBuf;

use cid::Cid;

use super::layout::Key;
use super::{Store, StoreError, lock};

/// Above this many files the whole file system is flushed at once.
const ONE_BY_ONE: usize = 64;

impl Store {
    /// Makes everything that was put durable. After an error the next call tries all of it again.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::DiskFull`].
    pub fn flush(&self) -> Result<(), StoreError> {
        let _one_at_a_time = lock(&self.flushing);
        let dirty = std::mem::take(&mut *lock(&self.dirty));
        let flushed = if dirty.len() > ONE_BY_ONE {
            self.layout.sync_all(&dirty)
        } else {
            self.layout.sync(&dirty)
        };
        flushed.inspect_err(|_| lock(&self.dirty).extend(dirty))
    }

    /// Has the next flush take a block that was found here, too: whoever wrote it may have died before its own flush.
    pub(in crate::content) fn flush_found(&self, cid: &Cid) {
        self.to_be_flushed(self.layout.path(&Key::of(cid)));
    }

    pub(super) fn to_be_flushed(&self, path: PathBuf) {
        let mut dirty = lock(&self.dirty);
        // The names of more are of no use where all files are flushed at once.
        if !cfg!(target_os = "linux") || dirty.len() <= ONE_BY_ONE {
            dirty.push(path);
        }
    }
}
