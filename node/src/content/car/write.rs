//! Writing: depth first, each block once, as `ipfs dag export` does.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use bytes::Bytes;
use cid::Cid;

use super::{CarError, header};
use crate::content::disk::beside;
use crate::content::store::Store;
use crate::content::unixfs;
use crate::content::wire::put_varint;

/// What was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exported {
    /// Blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Writes everything under `root` to `target`, which must not exist, whole or not at all.
///
/// # Errors
/// [`CarError`]; nothing is left at `target` then.
pub fn write_file(store: &Store, root: Cid, target: &Path) -> Result<Exported, CarError> {
    if target.symlink_metadata().is_ok() {
        return Err(CarError::Exists {
            path: target.to_owned(),
        });
    }
    let fail = |source| CarError::Io {
        action: "write",
        path: target.to_owned(),
        source,
    };
    let temporary = beside(target).ok_or_else(|| fail(std::io::ErrorKind::InvalidInput.into()))?;
    let file = File::create_new(&temporary).map_err(fail)?;
    let written = (|| {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let written = write(store, root, &mut out)?;
        let file = out.into_inner().map_err(|error| fail(error.into_error()))?;
        file.sync_data()
            .and_then(|()| std::fs::rename(&temporary, target))
            .map_err(fail)?;
        Ok(written)
    })();
    if written.is_err() {
        // The error that caused it matters more than one from here.
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

/// Writes everything under `root` as CAR version 1.
///
/// # Errors
/// [`CarError::Missing`], [`CarError::Node`], [`CarError::Stream`].
pub fn write(store: &Store, root: Cid, out: &mut impl Write) -> Result<Exported, CarError> {
    let (mut frames, mut piece) = (Frames::new(root, &[])?, Vec::new());
    while frames.append_to(store, &mut piece)? == More::Yes {
        out.write_all(&piece)?;
        piece.clear();
    }
    Ok(frames.written)
}

/// A CAR version 1 in the making: its header, then a frame for each block.
#[derive(Debug)]
pub struct Frames {
    header: Vec<u8>,
    /// Blocks without what they link to, next first; they come before everything else.
    alone: VecDeque<Cid>,
    todo: Vec<Cid>,
    seen: HashSet<Cid>,
    written: Exported,
}

/// Whether a CAR goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum More {
    /// Something was appended.
    Yes,
    /// It is whole.
    No,
}

impl Frames {
    /// Everything under `root`, after the blocks in `way`, which lead to it and come without what else they link to.
    ///
    /// # Errors
    /// [`CarError::Header`].
    pub fn new(root: Cid, way: &[Cid]) -> Result<Self, CarError> {
        let (header, mut framed) = (header::encode(&[root])?, Vec::new());
        put_varint(&mut framed, header.len() as u64);
        framed.extend_from_slice(&header);
        Ok(Self {
            header: framed,
            alone: way.iter().copied().collect(),
            todo: vec![root],
            seen: HashSet::new(),
            written: Exported::default(),
        })
    }

    /// Appends the header or the next block's frame.
    ///
    /// # Errors
    /// [`CarError::Missing`], [`CarError::Node`], [`CarError::Store`].
    pub fn append_to(&mut self, store: &Store, out: &mut Vec<u8>) -> Result<More, CarError> {
        if !self.header.is_empty() {
            out.append(&mut self.header);
            return Ok(More::Yes);
        }
        while let Some(cid) = self.alone.pop_front() {
            if self.seen.insert(cid) {
                self.block(store, &cid, out)?;
                return Ok(More::Yes);
            }
        }
        while let Some(cid) = self.todo.pop() {
            if !self.seen.insert(cid) {
                continue;
            }
            let block = self.block(store, &cid, out)?;
            let links = unixfs::links(&cid, &block).map_err(|reason| CarError::Node { cid, reason })?;
            let unseen = links.into_iter().rev().filter(|link| !self.seen.contains(link));
            self.todo.extend(unseen);
            return Ok(More::Yes);
        }
        Ok(More::No)
    }

    fn block(&mut self, store: &Store, cid: &Cid, out: &mut Vec<u8>) -> Result<Bytes, CarError> {
        let block = store.get(cid)?.ok_or(CarError::Missing { cid: *cid })?;
        let name = cid.to_bytes();
        put_varint(out, (name.len() + block.len()) as u64);
        out.extend_from_slice(&name);
        out.extend_from_slice(&block);
        self.written.blocks += 1;
        self.written.bytes += block.len() as u64;
        Ok(block)
    }
}
