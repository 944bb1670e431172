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
/// Where a pin is broken so many parts of the store's limit are collected beyond what is needed: each collection reads all
/// that is pinned.
const AHEAD: u64 = 16;
/// Parts of the store's limit that are asked for in turn by those who cannot say how much they need.
const MORE_EACH_TIME: [u64; 3] = [16, 2, 1];

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

/// How much a collection takes of what nothing reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::content) enum Extent {
    Nothing,
    All,
    /// The newest, up to so many bytes: what lies under a broken pin was here when it was made.
    Newest(u64),
}

/// What is kept.
#[derive(Debug, Default)]
struct Marked {
    keys: HashSet<Key>,
    /// Blocks under pins that are not held.
    missing: u64,
    broken: Option<Broken>,
}

/// A pin under which a block is missing that may have links.
#[derive(Debug, Clone, Copy)]
struct Broken {
    root: Cid,
    cid: Cid,
}

impl From<Broken> for StoreError {
    fn from(Broken { root, cid }: Broken) -> Self {
        Self::BrokenPin { root, cid }
    }
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
    /// [`StoreError::BrokenPin`] when a block with links is missing under a pin: what it leads to cannot be told from what
    /// nobody keeps, and nothing is removed. [`StoreError::Io`], [`StoreError::BadPin`].
    pub fn gc(&self) -> Result<GcReport, StoreError> {
        let no_adds = self.adding.write().unwrap_or_else(PoisonError::into_inner);
        let all = |marked: &Marked| marked.broken.map_or(Ok(Extent::All), |broken| Err(broken.into()));
        self.collect_as(&no_adds, all).map(|(_, report)| report)
    }

    /// As [`Store::gc`], for those who need room and cannot wait for anybody to repair a pin: where one is broken it goes
    /// only as far as `needed` bytes ask for. Nothing when adds that run do not end within some seconds.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::BadPin`].
    pub(in crate::content) fn gc_soon(&self, needed: u64) -> Result<Option<Extent>, StoreError> {
        let Some(no_adds) = self.no_adds_soon() else {
            return Ok(None);
        };
        let collected = self.collect_as(&no_adds, |marked| Ok(self.extent(marked, needed)))?;
        Ok(Some(collected.0))
    }

    /// Does `work`, and again after a collection, of more each time, for as long as it meets a full store.
    ///
    /// # Errors
    /// Those of `work` and of [`Store::gc_soon`].
    pub(in crate::content) fn with_room<T, E: From<StoreError>>(
        &self,
        work: impl Fn() -> Result<T, E>,
        is_full: impl Fn(&E) -> bool,
    ) -> Result<T, E> {
        let mut done = work();
        for needed in MORE_EACH_TIME.map(|parts| self.limit / parts) {
            match &done {
                Err(error) if is_full(error) => {}
                _ => return done,
            }
            match self.gc_soon(needed)? {
                None => return done,
                Some(Extent::All | Extent::Nothing) => return work(),
                Some(Extent::Newest(_)) => done = work(),
            }
        }
        done
    }

    /// Makes room for `needed` bytes by collecting, unless there is room, or would not be enough even then. Returns the
    /// room there is now.
    ///
    /// # Errors
    /// As [`Store::gc_soon`].
    pub(in crate::content) fn make_room(&self, needed: u64) -> Result<Room, StoreError> {
        let room = self.room()?;
        if needed > room.limit.min(room.disk)
            && let Some(no_adds) = self.no_adds_soon()
        {
            let used = self.used.load(Ordering::Relaxed);
            let extent = |marked: &Marked| {
                let freed = used.saturating_sub(self.bytes_of(marked));
                let most = room.limit.min(room.disk).saturating_add(freed);
                let extent = self.extent(marked, needed.saturating_sub(room.limit.min(room.disk)));
                Ok(if needed <= most { extent } else { Extent::Nothing })
            };
            self.collect_as(&no_adds, extent)?;
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

    /// Collects as far as `extent` says of what would be kept.
    fn collect_as(
        &self,
        _no_adds: &RwLockWriteGuard<'_, ()>,
        extent: impl FnOnce(&Marked) -> Result<Extent, StoreError>,
    ) -> Result<(Extent, GcReport), StoreError> {
        *lock(&self.young) = Some(HashSet::new());
        let collected = self.mark().and_then(|marked| {
            let extent = extent(&marked)?;
            Ok((extent, self.sweep(&marked, extent)?))
        });
        *lock(&self.young) = None;
        collected
    }

    /// How far those go who need `needed` bytes of room.
    fn extent(&self, marked: &Marked, needed: u64) -> Extent {
        let Some(broken) = marked.broken else {
            return Extent::All;
        };
        let broken = StoreError::from(broken);
        tracing::warn!(
            "room is needed, and blocks are removed that may belong to a pin, the newest first: {broken}"
        );
        Extent::Newest(needed.saturating_add(self.limit / AHEAD))
    }

    fn bytes_of(&self, marked: &Marked) -> u64 {
        marked.keys.iter().filter_map(|key| self.layout.size(key)).sum()
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
            if self.missing_under(root)? > 0 {
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
        let mut marked = Marked::default();
        self.mark_from(root, &mut marked)?;
        Ok(marked.missing)
    }

    fn mark(&self) -> Result<Marked, StoreError> {
        let mut marked = Marked::default();
        for (root, _) in self.pins()? {
            self.mark_from(root, &mut marked)?;
        }
        // What is protected may be on its way here: blocks that it lacks say nothing of the store.
        let (missing, broken) = (marked.missing, marked.broken);
        let protected: Vec<Cid> = lock(&self.protected).keys().copied().collect();
        for root in protected {
            self.mark_from(root, &mut marked)?;
        }
        (marked.missing, marked.broken) = (missing, broken);
        Ok(marked)
    }

    /// Marks everything under `root`, as far as its blocks are held.
    fn mark_from(&self, root: Cid, marked: &mut Marked) -> Result<(), StoreError> {
        let mut todo = vec![root];
        while let Some(cid) = todo.pop() {
            if !marked.keys.insert(Key::of(&cid)) {
                continue;
            }
            if !unixfs::may_have_links(&cid) {
                marked.missing += u64::from(!self.has(&cid));
                continue;
            }
            match self.get(&cid) {
                // A block that is no valid node links to nothing we could lose.
                Ok(Some(data)) => todo.extend(unixfs::links(&cid, &data).unwrap_or_default()),
                Ok(None) | Err(StoreError::Corrupt { .. } | StoreError::Block(_)) => {
                    marked.missing += 1;
                    marked.broken.get_or_insert(Broken { root, cid });
                }
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }

    fn sweep(&self, marked: &Marked, extent: Extent) -> Result<GcReport, StoreError> {
        let mut report = GcReport {
            missing: marked.missing,
            ..GcReport::default()
        };
        match extent {
            Extent::Nothing => {}
            Extent::All => self
                .layout
                .for_each(|key, size| self.sweep_one(marked, &key, size, &mut report))?,
            Extent::Newest(needed) => {
                let mut loose = Vec::new();
                self.layout.for_each(|key, size| {
                    check_asker()?;
                    if !marked.keys.contains(&key) {
                        loose.push((self.layout.written(&key), size, key));
                    }
                    Ok(())
                })?;
                loose.sort_unstable_by_key(|(written, ..)| std::cmp::Reverse(*written));
                for (_, size, key) in loose {
                    if report.freed >= needed {
                        break;
                    }
                    self.sweep_one(marked, &key, size, &mut report)?;
                }
            }
        }
        Ok(report)
    }

    fn sweep_one(
        &self,
        marked: &Marked,
        key: &Key,
        size: u64,
        report: &mut GcReport,
    ) -> Result<(), StoreError> {
        check_asker()?;
        if marked.keys.contains(key) || self.collect(key)? == Presence::Absent {
            report.kept += 1;
        } else {
            report.removed += 1;
            report.freed += size;
        }
        Ok(())
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
