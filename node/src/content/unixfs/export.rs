//! Writing content out to a directory, whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use cid::Cid;

use super::flusher::Flusher;
use super::path::is_portable_name;
use super::patient::Patient;
use super::reader::{FileReader, Opened};
use super::unfold::unfold;
use super::{ContentPath, ReadError};
use crate::content::disk::beside;
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

/// What becomes of an export that needs a block which is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// They may be there now.
    TryAgain,
    /// One will not come: the export fails with [`ReadError::Missing`].
    GiveUp,
}

/// Writes the file or directory at `path` to `target`, which must not exist: everything goes to a temporary name
/// beside it first, which is removed on failure. What it unfolds to is counted before, and held against the limits and
/// the room on the disk. Returns the bytes written.
///
/// # Errors
/// [`ReadError`]; nothing is left at `target` then.
pub fn export(store: &Store, path: &ContentPath, target: &Path, limits: Limits) -> Result<u64, ReadError> {
    export_arriving(store, path, target, limits, |_| Absent::GiveUp)
}

/// As [`export`], for content that is still being fetched: `wait` is called with the blocks that are needed and missing, and
/// returns once all of them are there.
///
/// # Errors
/// As [`export`].
pub fn export_arriving(
    store: &Store,
    path: &ContentPath,
    target: &Path,
    limits: Limits,
    wait: impl FnMut(&[Cid]) -> Absent,
) -> Result<u64, ReadError> {
    if target.symlink_metadata().is_ok() {
        return Err(ReadError::Exists {
            path: target.to_owned(),
        });
    }
    let mut patient = Patient::new(store, wait);
    let cid = patient.follow(path)?;
    let unfolded = unfold(&mut patient, &cid, &limits)?;
    check_room(target, &cid, unfolded.bytes)?;
    let invalid = || write_error(target)(io::ErrorKind::InvalidInput.into());
    let temporary = beside(target).ok_or_else(invalid)?;
    let written = write(&mut patient, &cid, &temporary)
        .and_then(|()| flush(&temporary).map_err(write_error(target)))
        .and_then(|()| fs::rename(&temporary, target).map_err(write_error(target)));
    if let Err(error) = written {
        discard(&temporary);
        return Err(error);
    }
    Ok(unfolded.bytes)
}

/// Refuses what does not fit the disk that `target` is on.
fn check_room(target: &Path, cid: &Cid, bytes: u64) -> Result<(), ReadError> {
    let above = target
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let disk = rustix::fs::statvfs(above).map_err(|error| write_error(target)(error.into()))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if bytes <= free {
        return Ok(());
    }
    Err(ReadError::NoSpace {
        cid: *cid,
        bytes,
        free,
        path: above.to_owned(),
    })
}

fn write(patient: &mut Patient<'_>, cid: &Cid, target: &Path) -> Result<(), ReadError> {
    match patient.open(cid)? {
        Opened::File(reader) => write_file(patient, reader, target),
        Opened::Directory => write_directory(patient, cid, target),
    }
}

fn write_directory(patient: &mut Patient<'_>, cid: &Cid, target: &Path) -> Result<(), ReadError> {
    fs::create_dir(target).map_err(write_error(target))?;
    for entry in patient.list(cid)? {
        if !is_portable_name(&entry.name) {
            return Err(ReadError::UnportableName {
                name: entry.name,
                directory: *cid,
            });
        }
        write(patient, &entry.cid, &target.join(&entry.name))?;
    }
    Ok(())
}

fn write_file(patient: &mut Patient<'_>, mut reader: FileReader<'_>, target: &Path) -> Result<(), ReadError> {
    let mut file = File::create_new(target).map_err(write_error(target))?;
    let mut flusher = Flusher::default();
    while let Some(bytes) = patient.next_bytes(&mut reader)? {
        let written = file
            .write_all(&bytes)
            .and_then(|()| flusher.wrote(&file, bytes.len()));
        written.map_err(write_error(target))?;
    }
    flusher.finish().map_err(write_error(target))
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
