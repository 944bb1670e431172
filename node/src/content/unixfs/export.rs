//! Writing content out to a directory, whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use cid::Cid;

use super::read::{EntryKind, FileReader, list, resolve};
use super::{ContentPath, ReadError};
use crate::content::store::Store;

/// What an export may grow to. A small graph can unfold to any size, so there is always a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of files.
    pub bytes: u64,
    /// Files and directories.
    pub entries: u64,
    /// Directories inside one another.
    pub depth: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 1 << 40,
            entries: 1 << 20,
            depth: 64,
        }
    }
}

/// Writes the file or directory at `path` to `target`, which must not exist: everything goes to a temporary name
/// beside it first, which is removed on failure. Returns the bytes written.
///
/// # Errors
/// [`ReadError`]; nothing is left at `target` then.
pub fn export(store: &Store, path: &ContentPath, target: &Path, limits: Limits) -> Result<u64, ReadError> {
    if target.symlink_metadata().is_ok() {
        return Err(ReadError::Exists {
            path: target.to_owned(),
        });
    }
    let temporary = temporary_name(target)?;
    let mut writer = Writer {
        store,
        root: path.root,
        limits,
        bytes: 0,
        entries: 0,
    };
    let written = resolve(store, path)
        .and_then(|found| writer.write(&found.cid, found.kind, &temporary, 0))
        .and_then(|()| flush(&temporary).map_err(write_error(target)))
        .and_then(|()| fs::rename(&temporary, target).map_err(write_error(target)));
    if let Err(error) = written {
        discard(&temporary);
        return Err(error);
    }
    Ok(writer.bytes)
}

struct Writer<'a> {
    store: &'a Store,
    root: Cid,
    limits: Limits,
    bytes: u64,
    entries: u64,
}

impl Writer<'_> {
    fn write(&mut self, cid: &Cid, kind: EntryKind, target: &Path, depth: u64) -> Result<(), ReadError> {
        self.entries += 1;
        self.check(self.entries, self.limits.entries, "entries")?;
        self.check(depth, self.limits.depth, "nested directories")?;
        match kind {
            EntryKind::File => self.write_file(cid, target),
            EntryKind::Directory => self.write_directory(cid, target, depth),
        }
    }

    fn write_directory(&mut self, cid: &Cid, target: &Path, depth: u64) -> Result<(), ReadError> {
        fs::create_dir(target).map_err(write_error(target))?;
        for entry in list(self.store, cid)? {
            let kind = resolve(self.store, &entry.cid.into())?.kind;
            self.write(&entry.cid, kind, &target.join(&entry.name), depth + 1)?;
        }
        Ok(())
    }

    /// The declared size is checked before a byte is written, and the reader holds the blocks to it.
    fn write_file(&mut self, cid: &Cid, target: &Path) -> Result<(), ReadError> {
        let mut reader = FileReader::open(self.store, &(*cid).into())?;
        self.bytes = self.bytes.saturating_add(reader.size());
        self.check(self.bytes, self.limits.bytes, "bytes")?;
        let mut file = File::create_new(target).map_err(write_error(target))?;
        while let Some(bytes) = reader.next_bytes()? {
            file.write_all(&bytes).map_err(write_error(target))?;
        }
        Ok(())
    }

    fn check(&self, value: u64, limit: u64, what: &'static str) -> Result<(), ReadError> {
        if value <= limit {
            Ok(())
        } else {
            Err(ReadError::OverLimit {
                cid: self.root,
                limit,
                what,
            })
        }
    }
}

/// Makes everything under a path durable at once: one file after another takes a second for a hundred.
#[cfg(target_os = "linux")]
fn flush(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    if file.metadata()?.is_file() {
        file.sync_data()
    } else {
        Ok(rustix::fs::syncfs(file)?)
    }
}

#[cfg(not(target_os = "linux"))]
fn flush(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            flush(&entry?.path())?;
        }
    }
    File::open(path)?.sync_all()
}

fn temporary_name(target: &Path) -> Result<PathBuf, ReadError> {
    let Some(name) = target.file_name() else {
        return Err(write_error(target)(io::ErrorKind::InvalidInput.into()));
    };
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(
        ".partial-{}-{:08x}",
        std::process::id(),
        rand::random::<u32>()
    ));
    Ok(target.with_file_name(hidden))
}

/// Removes a partial export; the error that caused it matters more than one from here.
fn discard(temporary: &Path) {
    let removed = if temporary.is_dir() {
        fs::remove_dir_all(temporary)
    } else {
        fs::remove_file(temporary)
    };
    if let Err(error) = removed
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %temporary.display(), %error, "could not remove a partial export");
    }
}

fn write_error(path: &Path) -> impl FnOnce(io::Error) -> ReadError {
    let path = path.to_owned();
    move |source| ReadError::Write { path, source }
}
