//! Writing: depth first, as `ipfs dag export` does.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use cid::Cid;

use super::{CarError, header};
use crate::content::block;
use crate::content::disk::beside;
use crate::content::store::{Store, StoreError};
use crate::content::unixfs::{self, Scope};
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
    let mut frames = Frames::new(root, &[], Scope::All, Duplicates::Once)?;
    let mut piece = Vec::new();
    while frames.append_to(store, &mut piece)? == More::Yes {
        out.write_all(&piece)?;
        piece.clear();
    }
    Ok(frames.written)
}

/// A CAR version 1 in the making: its header, then a frame for each block, depth first.
#[derive(Debug)]
pub struct Frames {
    header: Vec<u8>,
    /// Next last.
    todo: Vec<(Cid, Scope)>,
    sent: Sent,
    written: Exported,
}

/// What is done about blocks that stand more than once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duplicates {
    /// They come once; which came already is remembered.
    Once,
    /// They come wherever they stand, and nothing is remembered.
    EachTime,
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
    /// What `scope` means of `root`, after the blocks in `way`, which lead to it and come without what else they link to.
    ///
    /// # Errors
    /// [`CarError::Header`].
    pub fn new(root: Cid, way: &[Cid], scope: Scope, duplicates: Duplicates) -> Result<Self, CarError> {
        let (header, mut framed) = (header::encode(&[root])?, Vec::new());
        put_varint(&mut framed, header.len() as u64);
        framed.extend_from_slice(&header);
        let way = way.iter().rev().map(|cid| (*cid, Scope::Block));
        Ok(Self {
            header: framed,
            todo: [(root, scope)].into_iter().chain(way).collect(),
            sent: Sent((duplicates == Duplicates::Once).then(HashMap::new)),
            written: Exported::default(),
        })
    }

    /// Appends the header or the next block's frame. After an error about a missing block it can be called again.
    ///
    /// # Errors
    /// [`CarError::Missing`], [`CarError::Node`], [`CarError::Store`].
    pub fn append_to(&mut self, store: &Store, out: &mut Vec<u8>) -> Result<More, CarError> {
        if !self.header.is_empty() {
            out.append(&mut self.header);
            return Ok(More::Yes);
        }
        while let Some((cid, scope)) = self.todo.pop() {
            let before = self.sent.of(&cid);
            if before == Some(Depth::Whole) || (before.is_some() && scope == Scope::Block) {
                continue;
            }
            let found = match store.get(&cid) {
                Ok(found) => found,
                Err(StoreError::Corrupt { .. }) => None,
                Err(error) => return Err(error.into()),
            };
            let Some(block) = found else {
                // Whoever can fetch the block tries again.
                self.todo.push((cid, scope));
                return Err(CarError::Missing { cid });
            };
            let links = unixfs::scoped_links(&cid, &block, &scope);
            let links = links.map_err(|reason| CarError::Node { cid, reason })?;
            let unsent = links
                .into_iter()
                .rev()
                .filter(|(link, _)| self.sent.of(link) != Some(Depth::Whole));
            self.todo.extend(unsent);
            self.sent.insert(cid, &scope);
            // A block inside its CID is in the block that links to it.
            if before.is_none() && block::inline_data(&cid).is_none() {
                self.frame(&cid, &block, out);
                return Ok(More::Yes);
            }
        }
        Ok(More::No)
    }

    fn frame(&mut self, cid: &Cid, block: &[u8], out: &mut Vec<u8>) {
        let name = cid.to_bytes();
        put_varint(out, (name.len() + block.len()) as u64);
        out.extend_from_slice(&name);
        out.extend_from_slice(block);
        self.written.blocks += 1;
        self.written.bytes += block.len() as u64;
    }
}

/// Which blocks came, and with how much of what is under them; nothing when that is not remembered.
#[derive(Debug)]
struct Sent(Option<HashMap<Cid, Depth>>);

/// How much of what is under a block came with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// Not all that its scope may mean: parts of a file come from its ends at most twice on each level.
    Partly,
    Whole,
}

impl Sent {
    fn of(&self, cid: &Cid) -> Option<Depth> {
        self.0.as_ref()?.get(cid).copied()
    }

    fn insert(&mut self, cid: Cid, scope: &Scope) {
        let depth = match scope {
            Scope::Block | Scope::Bytes(_) => Depth::Partly,
            Scope::Entity | Scope::All => Depth::Whole,
        };
        if let Some(sent) = &mut self.0 {
            let known = sent.entry(cid).or_insert(depth);
            if depth == Depth::Whole {
                *known = depth;
            }
        }
    }
}
