//! Collection of what no pin reaches, and verification of what is held.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{PoisonError, RwLockWriteGuard, TryLockError};
use std::time::Duration;

use cid::Cid;

use super::layout::Key;
use super::{Presence, Room, Store, StoreError, lock};
use crate::content::service::check_asker;
use crate::content::unixfs;

/// How long those who need room wait for adds to end.
const TRIES_FOR_ROOM: u32 = 100;
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

/// What a collection did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct GcReport {
    /// Blocks kept.
    pub kept: u64,
    /// Blocks removed.
    pub removed: u64,
    /// Bytes freed.
    pub freed: u64,
    /// Blocks that a pinned root links to but that are not held.
    pub missing: u64,
}

/// What verification found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Blocks whose bytes hash to their name.
    pub good: u64,
    /// Blocks that did not, or that the disk could not read, and were removed, as raw CIDs.
    pub removed: Vec<Cid>,
    /// Why other blocks could be neither read nor removed.
    pub failed: Vec<String>,
}

impl Store {
    /// Removes every block that no pinned or protected root reaches. Waits for running adds; a block that is put or
    /// looked at meanwhile is kept.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::BadPin`].
    pub fn gc(&self) -> Result<GcReport, StoreError> {
        let no_adds = self.adding.write().unwrap_or_else(PoisonError::into_inner);
        let always = |_: u64| true;
        Ok(self.collect_if(&no_adds, always)?.unwrap_or_default())
    }

    /// As [`Store::gc`], for those who need room: nothing when adds that run do not end within some seconds.
    ///
    /// # Errors
    /// As [`Store::gc`].
    pub(in crate::content) fn gc_soon(&self) -> Result<Option<GcReport>, StoreError> {
        let always = |_: u64| true;
        self.no_adds_soon()
            .map_or(Ok(None), |no_adds| self.collect_if(&no_adds, always))
    }

    /// Makes room for `needed` bytes by collecting, unless there is room, or would not be enough even then. Returns the
    /// room there is now.
    ///
    /// # Errors
    /// As [`Store::gc`].
    pub(in crate::content) fn make_room(&self, needed: u64) -> Result<Room, StoreError> {
        let room = self.room()?;
        if needed > room.limit.min(room.disk)
            && let Some(no_adds) = self.no_adds_soon()
        {
            let used = self.used.load(Ordering::Relaxed);
            let is_enough = |kept: u64| {
                let freed = used.saturating_sub(kept);
                needed
                    <= room
                        .limit
                        .saturating_add(freed)
                        .min(room.disk.saturating_add(freed))
            };
            self.collect_if(&no_adds, is_enough)?;
        }
        self.room()
    }

    fn no_adds_soon(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        for _ in 0..TRIES_FOR_ROOM {
            match self.adding.try_write() {
                Ok(no_adds) => return Some(no_adds),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::sleep(BETWEEN_TRIES),
            }
        }
        None
    }

    /// Collects if `is_worth_it` says so of the bytes that would be kept.
    fn collect_if(
        &self,
        _no_adds: &RwLockWriteGuard<'_, ()>,
        is_worth_it: impl FnOnce(u64) -> bool,
    ) -> Result<Option<GcReport>, StoreError> {
        *lock(&self.young) = Some(HashSet::new());
        let report = self.mark().and_then(|(marked, missing)| {
            let kept = marked.iter().filter_map(|key| self.layout.size(key)).sum();
            is_worth_it(kept)
                .then(|| self.sweep(&marked, missing))
                .transpose()
        });
        *lock(&self.young) = None;
        report
    }

    /// Reads every block and removes those that are damaged.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn verify(&self) -> Result<VerifyReport, StoreError> {
        let mut report = VerifyReport::default();
        self.layout.for_each(|key, _| {
            check_asker()?;
            match self.get_from_disk(&key.to_cid()) {
                Ok(_) => report.good += 1,
                Err(StoreError::Corrupt { cid }) => report.removed.push(cid),
                Err(other) => report.failed.push(other.to_string()),
            }
            Ok(())
        })?;
        Ok(report)
    }

    /// The pinned roots under which blocks are missing. What was damaged counts once it has been removed.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::BadPin`].
    pub fn incomplete(&self) -> Result<Vec<Cid>, StoreError> {
        let mut roots = Vec::new();
        for (root, _) in self.pins()? {
            if self.mark_from(vec![root])?.1 > 0 {
                roots.push(root);
            }
        }
        Ok(roots)
    }

    /// How many blocks under `root` are known to be missing.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(in crate::content) fn missing_under(&self, root: Cid) -> Result<u64, StoreError> {
        Ok(self.mark_from(vec![root])?.1)
    }

    fn mark(&self) -> Result<(HashSet<Key>, u64), StoreError> {
        let mut roots: Vec<Cid> = self.pins()?.into_iter().map(|(cid, _)| cid).collect();
        roots.extend(lock(&self.protected).keys());
        self.mark_from(roots)
    }

    /// Everything under `todo`, and how many blocks of it are not held.
    fn mark_from(&self, mut todo: Vec<Cid>) -> Result<(HashSet<Key>, u64), StoreError> {
        let (mut marked, mut missing) = (HashSet::new(), 0);
        while let Some(cid) = todo.pop() {
            if !marked.insert(Key::of(&cid)) {
                continue;
            }
            if !unixfs::may_have_links(&cid) {
                missing += u64::from(!self.has(&cid));
                continue;
            }
            match self.get(&cid) {
                // A block that is no valid node links to nothing we could lose.
                Ok(Some(data)) => todo.extend(unixfs::links(&cid, &data).unwrap_or_default()),
                Ok(None) | Err(StoreError::Corrupt { .. } | StoreError::Block(_)) => missing += 1,
                Err(other) => return Err(other),
            }
        }
        Ok((marked, missing))
    }

    fn sweep(&self, marked: &HashSet<Key>, missing: u64) -> Result<GcReport, StoreError> {
        let mut report = GcReport {
            missing,
            ..GcReport::default()
        };
        self.layout.for_each(|key, size| {
            check_asker()?;
            if marked.contains(&key) || self.collect(&key)? == Presence::Absent {
                report.kept += 1;
            } else {
                report.removed += 1;
                report.freed += size;
            }
            Ok(())
        })?;
        Ok(report)
    }

    /// Removes the block unless somebody touched it; the lock keeps a touch from falling between the two.
    fn collect(&self, key: &Key) -> Result<Presence, StoreError> {
        let young = lock(&self.young);
        if young.as_ref().is_some_and(|touched| touched.contains(key)) {
            return Ok(Presence::Absent);
        }
        self.remove(key)
    }
}
