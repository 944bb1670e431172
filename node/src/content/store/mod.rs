//! The block store: one file a block, named by its hash (PROTOCOL section 8).
//!
//! A block is written to a temporary file and renamed, so a file under `blocks/` is whole or absent after a crash of
//! the process; it is verified when it is read, so not even a crash of the machine makes the node serve a torn one.
//! [`Store::flush`] makes what was put durable. Every operation of the service that adds or pins flushes before it
//! reports success; a fetch without a pin is flushed soon after. All calls block on the disk:
//! asynchronous callers use a blocking thread.

mod error;
mod flush;
mod gc;
mod hold;
mod layout;
mod pins;
mod reading;
mod recall;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use bytes::Bytes;
use cid::Cid;

use super::block::{self, MAX_BLOCK};
use super::service::check_asker;
pub use error::StoreError;
pub use gc::{GcReport, VerifyReport};
pub use hold::Hold;
use layout::{Key, Layout};
pub use pins::{PinName, PinRecord};
use reading::From;
pub(in crate::content) use reading::Reading;
pub use recall::Recall;
use recall::Recalled;

const STRIPES: usize = 64;

/// How large the store may grow and where it lives.
#[derive(Debug, Clone)]
pub struct Config {
    /// The store's directory, created when absent.
    pub root: PathBuf,
    /// Bytes of blocks it may hold.
    pub limit: u64,
}

/// What a put found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The block is new.
    New,
    /// It was there, and is what it should be.
    Known,
}

/// Sizes of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Stat {
    /// Blocks held.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes it may hold.
    pub limit: u64,
    /// Pinned roots.
    pub pins: u64,
}

/// Bytes that can still be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Room {
    /// Under the store's limit.
    pub limit: u64,
    /// On the disk that holds it.
    pub disk: u64,
}

/// The block store. Shared by reference between threads.
#[derive(Debug)]
pub struct Store {
    layout: Layout,
    limit: u64,
    used: AtomicU64,
    blocks: AtomicU64,
    stripes: Vec<Mutex<()>>,
    dirty: Mutex<Vec<PathBuf>>,
    /// Held while files are flushed, so that nobody takes what another is still flushing for durable.
    flushing: Mutex<()>,
    recalled: Mutex<Recalled>,
    /// Keys touched since a running collection began; nothing while none runs.
    young: Mutex<Option<HashSet<Key>>>,
    protected: Mutex<BTreeMap<Cid, usize>>,
    adding: RwLock<()>,
}

impl Store {
    /// Opens the store, creating it when absent and removing what an interrupted write left behind.
    ///
    /// # Errors
    /// [`StoreError::Io`] with the path.
    pub fn open(config: Config) -> Result<Self, StoreError> {
        let layout = Layout::open(config.root)?;
        let (mut bytes, mut blocks) = (0, 0);
        layout.for_each(|_, size| {
            bytes += size;
            blocks += 1;
            Ok(())
        })?;
        Ok(Self {
            layout,
            limit: config.limit,
            used: AtomicU64::new(bytes),
            blocks: AtomicU64::new(blocks),
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            dirty: Mutex::default(),
            flushing: Mutex::default(),
            recalled: Mutex::default(),
            young: Mutex::new(None),
            protected: Mutex::default(),
            adding: RwLock::new(()),
        })
    }

    /// Where the store lives.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.layout.root()
    }

    /// Whether the block is held. Also keeps it from a collection that is running.
    #[must_use]
    pub fn has(&self, cid: &Cid) -> bool {
        self.size(cid).is_some()
    }

    /// The block's size in bytes, if it is held.
    #[must_use]
    pub fn size(&self, cid: &Cid) -> Option<u64> {
        if let Some(inline) = block::inline_data(cid) {
            return Some(inline.len() as u64);
        }
        let key = Key::of(cid);
        self.touch(&key);
        self.layout.size(&key)
    }

    /// The block's bytes, verified; nothing when it is not held.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when the file does not hash to its name: it is removed, so that it can be fetched
    /// again. [`StoreError::Io`].
    pub fn get(&self, cid: &Cid) -> Result<Option<Bytes>, StoreError> {
        self.open_block(cid)?.map(Reading::bytes).transpose()
    }

    /// As [`Store::get`], from the disk whatever memory has.
    fn get_from_disk(&self, cid: &Cid) -> Result<Option<Bytes>, StoreError> {
        self.open_from(cid, From::Disk)?.map(Reading::bytes).transpose()
    }

    /// Stores a block after verifying it, in place of a damaged one if need be. Durable after the next [`Store::flush`].
    ///
    /// # Errors
    /// [`StoreError::Block`] when the bytes are not the CID's, [`StoreError::OverLimit`] and
    /// [`StoreError::DiskFull`] when there is no room (nothing already stored is lost), [`StoreError::Io`].
    pub fn put(&self, cid: &Cid, data: &[u8]) -> Result<Put, StoreError> {
        block::verify(cid, data)?;
        self.put_hashed(cid, data)
    }

    /// As [`Store::put`] for a CID that was computed from these very bytes, which are not hashed again.
    ///
    /// # Errors
    /// As [`Store::put`], the mismatch aside.
    pub(in crate::content) fn put_hashed(&self, cid: &Cid, data: &[u8]) -> Result<Put, StoreError> {
        check_asker()?;
        if data.len() > MAX_BLOCK {
            return Err(block::BlockError::TooLarge { size: data.len() }.into());
        }
        if block::inline_data(cid).is_some() {
            return Ok(Put::Known);
        }
        let key = Key::of(cid);
        self.touch(&key);
        let _stripe = self.stripe(&key);
        let size = data.len() as u64;
        let replaced = self.layout.size(&key);
        if replaced == Some(size) && self.layout.holds(&key, data) {
            // Whoever wrote it may not have flushed it.
            self.to_be_flushed(self.layout.path(&key));
            return Ok(Put::Known);
        }
        self.reserve(size)?;
        let path = self
            .layout
            .write(&key, data)
            .inspect_err(|_| self.release(size))?;
        match replaced {
            Some(damaged) => self.release(damaged),
            None => _ = self.blocks.fetch_add(1, Ordering::Relaxed),
        }
        self.to_be_flushed(path);
        Ok(Put::New)
    }

    /// Hashes `data`, stores it under the CIDv1 of `codec` and returns that.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn put_new(&self, codec: u64, data: &[u8]) -> Result<Cid, StoreError> {
        let cid = block::cid_of(codec, data);
        self.put_hashed(&cid, data)?;
        Ok(cid)
    }

    /// Removes a block. Says whether it was there.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn delete(&self, cid: &Cid) -> Result<Presence, StoreError> {
        self.remove(&Key::of(cid))
    }

    /// The CID (as raw) and size of every block, in no particular order.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn list(&self) -> Result<Vec<(Cid, u64)>, StoreError> {
        let mut all = Vec::new();
        self.layout.for_each(|key, size| {
            check_asker()?;
            all.push((key.to_cid(), size));
            Ok(())
        })?;
        Ok(all)
    }

    /// Sizes and limits.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn stat(&self) -> Result<Stat, StoreError> {
        Ok(Stat {
            blocks: self.blocks.load(Ordering::Relaxed),
            bytes: self.used.load(Ordering::Relaxed),
            limit: self.limit,
            pins: self.pins()?.len() as u64,
        })
    }

    /// Bytes that can still be stored.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn room(&self) -> Result<Room, StoreError> {
        Ok(Room {
            limit: self.limit.saturating_sub(self.used.load(Ordering::Relaxed)),
            disk: self.layout.free()?,
        })
    }

    /// Keeps `root` and what it links to from collection until the guard is dropped.
    pub fn protect(&self, root: Cid) -> Protected<'_> {
        *lock(&self.protected).entry(root).or_insert(0) += 1;
        Protected { store: self, root }
    }

    /// Holds off collection while content without a root yet is being added.
    pub fn adding(&self) -> RwLockReadGuard<'_, ()> {
        self.adding.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, key: &Key) -> Result<Presence, StoreError> {
        let _stripe = self.stripe(key);
        lock(&self.recalled).forget(key);
        let Some(size) = self.layout.size(key) else {
            return Ok(Presence::Absent);
        };
        self.layout.delete(key)?;
        self.release(size);
        self.blocks.fetch_sub(1, Ordering::Relaxed);
        Ok(Presence::Present)
    }

    fn reserve(&self, size: u64) -> Result<(), StoreError> {
        let fits = |used: u64| used.checked_add(size).filter(|sum| *sum <= self.limit);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(()),
            Err(used) => Err(StoreError::OverLimit {
                used,
                limit: self.limit,
                size,
            }),
        }
    }

    fn release(&self, size: u64) {
        self.used.fetch_sub(size, Ordering::Relaxed);
    }

    fn touch(&self, key: &Key) {
        if let Some(young) = lock(&self.young).as_mut() {
            young.insert(key.clone());
        }
    }

    fn stripe(&self, key: &Key) -> MutexGuard<'_, ()> {
        lock(&self.stripes[key.stripe(STRIPES)])
    }
}

/// Whether a block was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It was.
    Present,
    /// It was not.
    Absent,
}

/// Keeps a root from collection while it lives. See [`Store::protect`].
#[derive(Debug)]
#[must_use]
pub struct Protected<'a> {
    store: &'a Store,
    root: Cid,
}

impl Drop for Protected<'_> {
    fn drop(&mut self) {
        self.store.let_go(&self.root);
    }
}

/// A thread that panicked while it held one of these locks left plain counters and sets, which stay usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
