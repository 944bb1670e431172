//! What content unfolds to when it is written out, counted before a byte is written: each distinct directory is looked at
//! once, however often it stands in the graph, so that a bomb costs what its blocks cost and not what it claims.

use std::collections::HashMap;

use cid::Cid;

use super::read::{EntryKind, FileReader, list, resolve};
use super::{Limits, ReadError};
use crate::content::store::Store;

/// What writing something out takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Unfolded {
    /// Bytes of files, as their roots declare; a reader holds the blocks below to it.
    pub(super) bytes: u64,
    /// Files and directories.
    entries: u64,
    /// Directories inside one another.
    depth: u64,
}

/// Counts what is under `root`.
///
/// # Errors
/// [`ReadError::OverLimit`], naming which of the limits; [`ReadError`] of a block that makes no sense or is missing.
pub(super) fn unfold(
    store: &Store,
    root: &Cid,
    kind: EntryKind,
    limits: &Limits,
) -> Result<Unfolded, ReadError> {
    let mut counter = Counter {
        store,
        root: *root,
        limits,
        known: HashMap::new(),
    };
    counter.entry(root, kind, 0)
}

struct Counter<'a> {
    store: &'a Store,
    root: Cid,
    limits: &'a Limits,
    /// Directories that were counted.
    known: HashMap<Cid, Unfolded>,
}

impl Counter<'_> {
    /// Recurses as deep as the limit allows.
    fn entry(&mut self, cid: &Cid, kind: EntryKind, depth: u64) -> Result<Unfolded, ReadError> {
        self.check(depth, self.limits.depth, "nested directories")?;
        let found = match kind {
            EntryKind::File => Unfolded {
                bytes: FileReader::open(self.store, &(*cid).into())?.size(),
                entries: 1,
                depth: 0,
            },
            EntryKind::Directory => self.directory(cid, depth)?,
        };
        self.check(depth + found.depth, self.limits.depth, "nested directories")?;
        self.check(found.entries, self.limits.entries, "entries")?;
        self.check(found.bytes, self.limits.bytes, "bytes")?;
        Ok(found)
    }

    fn directory(&mut self, cid: &Cid, depth: u64) -> Result<Unfolded, ReadError> {
        if let Some(known) = self.known.get(cid) {
            return Ok(*known);
        }
        let mut sum = Unfolded {
            entries: 1,
            ..Unfolded::default()
        };
        for entry in list(self.store, cid)? {
            let kind = resolve(self.store, &entry.cid.into())?.kind;
            let below = self.entry(&entry.cid, kind, depth + 1)?;
            sum.bytes = sum.bytes.saturating_add(below.bytes);
            sum.entries = sum.entries.saturating_add(below.entries);
            sum.depth = sum.depth.max(below.depth + 1);
        }
        self.known.insert(*cid, sum);
        Ok(sum)
    }

    fn check(&self, value: u64, limit: u64, what: &'static str) -> Result<(), ReadError> {
        if value <= limit {
            return Ok(());
        }
        let cid = self.root;
        Err(ReadError::OverLimit { cid, limit, what })
    }
}
