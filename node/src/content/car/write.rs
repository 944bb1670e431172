//! Writing: depth first, each block once, as `ipfs dag export` does.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

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
    let header = header::encode(&[root])?;
    let mut frame = Vec::new();
    put_varint(&mut frame, header.len() as u64);
    out.write_all(&frame)?;
    out.write_all(&header)?;
    let mut written = Exported::default();
    let (mut seen, mut todo) = (HashSet::new(), vec![root]);
    while let Some(cid) = todo.pop() {
        if !seen.insert(cid) {
            continue;
        }
        let block = store.get(&cid)?.ok_or(CarError::Missing { cid })?;
        let name = cid.to_bytes();
        frame.clear();
        put_varint(&mut frame, (name.len() + block.len()) as u64);
        for part in [frame.as_slice(), &name, &block] {
            out.write_all(part)?;
        }
        written.blocks += 1;
        written.bytes += block.len() as u64;
        let links = unixfs::links(&cid, &block).map_err(|reason| CarError::Node { cid, reason })?;
        todo.extend(links.into_iter().rev().filter(|link| !seen.contains(link)));
    }
    Ok(written)
}
