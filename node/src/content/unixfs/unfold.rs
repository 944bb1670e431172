//! What content unfolds to when it is written out, counted before a byte is written: each distinct directory is looked at
//! once, however often it stands in the graph, so that a bomb costs what its blocks cost and not what it claims.

use std::collections::HashMap;

use cid::Cid;

use super::patient::Patient;
use super::reader::Opened;
use super::{Limits, ReadError};

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
pub(super) fn unfold(patient: &mut Patient<'_>, root: &Cid, limits: &Limits) -> Result<Unfolded, ReadError> {
    let mut counter = Counter {
        patient,
        root: *root,
        limits,
        known: HashMap::new(),
    };
    counter.entry(root, 0)
}

struct Counter<'a, 'b> {
    patient: &'a mut Patient<'b>,
    root: Cid,
    limits: &'a Limits,
    /// Directories that were counted.
    known: HashMap<Cid, Unfolded>,
}

impl Counter<'_, '_> {
    /// Recurses as deep as the limit allows.
    fn entry(&mut self, cid: &Cid, depth: u64) -> Result<Unfolded, ReadError> {
        self.check(depth, self.limits.depth, "nested directories")?;
        let opened = self.patient.open(cid)?;
        let found = match opened {
            Opened::File(reader) => Unfolded {
                bytes: reader.size(),
                entries: 1,
                depth: 0,
            },
            Opened::Directory => self.directory(cid, depth)?,
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
        for entry in self.patient.list(cid)? {
            let below = self.entry(&entry.cid, depth + 1)?;
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
