//! Collection of what no pin reaches, and verification of what is held.

use std::collections::HashSet;
use std::sync::PoisonError;

use cid::Cid;

use super::layout::Key;
use super::{Presence, Store, StoreError, lock};
use crate::content::unixfs;

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
    /// Blocks that did not and were removed, as raw CIDs.
    pub removed: Vec<Cid>,
}

impl Store {
    /// Removes every block that no pinned or protected root reaches. Waits for running adds; a block that is put or
    /// looked at meanwhile is kept.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::BadPin`].
    pub fn gc(&self) -> Result<GcReport, StoreError> {
        let _no_adds = self.adding.write().unwrap_or_else(PoisonError::into_inner);
        *lock(&self.young) = Some(HashSet::new());
        let report = self
            .mark()
            .and_then(|(marked, missing)| self.sweep(&marked, missing));
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
            match self.get_from_disk(&key.to_cid()) {
                Ok(_) => report.good += 1,
                Err(StoreError::Corrupt { cid }) => report.removed.push(cid),
                Err(other) => return Err(other),
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
