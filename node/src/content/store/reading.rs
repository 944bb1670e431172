//! A block that is held, before its bytes are read.

use bytes::Bytes;
use cid::Cid;

use super::layout::{BlockFile, Key, Whole};
use super::{Store, StoreError, lock};
use crate::content::block;
use crate::content::service::check_asker;

/// A block that is held. Its size is known and its bytes are not read yet.
#[derive(Debug)]
pub(in crate::content) struct Reading<'a> {
    store: &'a Store,
    cid: Cid,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// Verified when it came, or part of its CID.
    Memory(Bytes),
    File(Key, BlockFile),
}

/// From where a block may be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    Anywhere,
    Disk,
}

impl Store {
    /// Finds a block; nothing when it is not held. Also keeps it from a collection that is running.
    ///
    /// # Errors
    /// [`StoreError::Block`], [`StoreError::Io`].
    pub(in crate::content) fn open_block(&self, cid: &Cid) -> Result<Option<Reading<'_>>, StoreError> {
        self.open_from(cid, From::Anywhere)
    }

    pub(super) fn open_from(&self, cid: &Cid, from: From) -> Result<Option<Reading<'_>>, StoreError> {
        check_asker()?;
        block::check_supported(cid)?;
        let found = |source| {
            Some(Reading {
                store: self,
                cid: *cid,
                source,
            })
        };
        if let Some(inline) = block::inline_data(cid) {
            return Ok(found(Source::Memory(Bytes::copy_from_slice(inline))));
        }
        let key = Key::of(cid);
        self.touch(&key);
        if from == From::Anywhere
            && let Some(data) = lock(&self.recalled).get(&key)
        {
            return Ok(found(Source::Memory(data)));
        }
        let file = self.layout.open_block(&key)?;
        Ok(file.and_then(|file| found(Source::File(key, file))))
    }
}

impl Reading<'_> {
    /// Its size in bytes.
    pub(in crate::content) fn size(&self) -> usize {
        match &self.source {
            Source::Memory(data) => data.len(),
            Source::File(_, file) => usize::try_from(file.size).unwrap_or(usize::MAX),
        }
    }

    /// Its bytes, verified.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub(in crate::content) fn bytes(self) -> Result<Bytes, StoreError> {
        if let Source::Memory(data) = self.source {
            return Ok(data);
        }
        let mut out = Vec::new();
        self.append_to(&mut out)?;
        Ok(Bytes::from(out))
    }

    /// Appends its bytes, verified; nothing when they turn out to be damaged.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub(in crate::content) fn append_to(self, out: &mut Vec<u8>) -> Result<(), StoreError> {
        let start = out.len();
        let (key, file) = match self.source {
            Source::Memory(data) => {
                out.extend_from_slice(&data);
                return Ok(());
            }
            Source::File(key, file) => (key, file),
        };
        let read = file.append_to(out);
        if matches!(read, Ok(Whole::Yes)) && block::verify(&self.cid, &out[start..]).is_ok() {
            return Ok(());
        }
        out.truncate(start);
        read?;
        self.store.remove(&key)?;
        Err(StoreError::Corrupt { cid: self.cid })
    }
}
