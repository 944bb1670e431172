//! Reading and writing files so that a failure says which file, what went wrong and what to do about it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Who may read a file that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The owner alone (mode 0600).
    Owner,
    /// Whoever the directory admits (mode 0644).
    Everyone,
}

impl Access {
    fn mode(self) -> u32 {
        match self {
            Self::Owner => 0o600,
            Self::Everyone => 0o644,
        }
    }
}

/// A file operation that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}{}", path.display(), advice(source))]
pub struct FileError {
    /// `read`, `write`, `create`.
    pub action: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

impl FileError {
    /// Wraps what the system said about `path`.
    pub fn new(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self {
            action,
            path: path.to_path_buf(),
            source,
        }
    }
}

fn advice(error: &io::Error) -> &'static str {
    use io::ErrorKind as K;
    #[allow(clippy::wildcard_enum_match_arm)]
    match error.kind() {
        K::StorageFull => {
            ". The disk is full: free some space (nothing that was already written is lost), \
             then start again; or choose another place (--home, and --out where a command has it)"
        }
        K::QuotaExceeded => ". The disk quota is used up: free some space, then start again",
        K::PermissionDenied => ". Check who owns it and run as that user",
        K::ReadOnlyFilesystem => {
            ". The file system is read-only: choose a writable place (--home, and --out where a command has it)"
        }
        K::NotFound => ". Check the path",
        K::AlreadyExists => ". It is kept: choose another name, or move it away",
        _ => "",
    }
}

/// Creates a directory and its parents; the last one is the owner's alone when `access` says so.
///
/// # Errors
/// When the system refuses.
pub fn create_dir(path: &Path, access: Access) -> Result<(), FileError> {
    fs::create_dir_all(path).map_err(|e| FileError::new("create", path, e))?;
    if access == Access::Owner {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))
            .map_err(|e| FileError::new("restrict", path, e))?;
    }
    Ok(())
}

/// Replaces `path` in one step: a reader sees the old bytes or the new ones, also after a power cut.
///
/// # Errors
/// When the system refuses; the old file is then untouched.
pub fn write_atomic(path: &Path, bytes: &[u8], access: Access) -> Result<(), FileError> {
    let temporary = temporary_beside(path);
    let result = write_synced(&temporary, bytes, access)
        .and_then(|()| fs::rename(&temporary, path))
        .and_then(|()| sync_parent(path));
    result.map_err(|e| {
        // A leftover would only confuse; the first failure is the one to report.
        let _ = fs::remove_file(&temporary);
        FileError::new("write", path, e)
    })
}

/// Writes a file that must not exist yet, in one step.
///
/// # Errors
/// When it exists already, or the system refuses.
pub fn write_new(path: &Path, bytes: &[u8], access: Access) -> Result<(), FileError> {
    let temporary = temporary_beside(path);
    let result = write_synced(&temporary, bytes, access)
        // A hard link, unlike a rename, fails where the name is taken.
        .and_then(|()| fs::hard_link(&temporary, path))
        .and_then(|()| sync_parent(path));
    let _ = fs::remove_file(&temporary);
    result.map_err(|e| FileError::new("create", path, e))
}

fn temporary_beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(
        ".{}.{:08x}.tmp",
        std::process::id(),
        rand::random::<u32>()
    ));
    path.with_file_name(name)
}

fn write_synced(path: &Path, bytes: &[u8], access: Access) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(access.mode())
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        Some(_) | None => Ok(()),
    }
}

/// Reads a whole file of at most `limit` bytes.
///
/// # Errors
/// When it is longer, or the system refuses.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
    let fail = |e| FileError::new("read", path, e);
    let file = File::open(path).map_err(fail)?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > limit {
        let message = format!("it is longer than the {limit} bytes expected");
        return Err(fail(io::Error::new(io::ErrorKind::FileTooLarge, message)));
    }
    Ok(bytes)
}

/// Reads a whole text file of at most `limit` bytes.
///
/// # Errors
/// When it is longer, not UTF-8, or the system refuses.
pub fn read_text(path: &Path, limit: u64) -> Result<String, FileError> {
    String::from_utf8(read(path, limit)?).map_err(|e| {
        let message = format!("it is not UTF-8 text (byte {})", e.utf8_error().valid_up_to());
        FileError::new("read", path, io::Error::new(io::ErrorKind::InvalidData, message))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn private_files_are_the_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        write_new(&path, b"secret", Access::Owner).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            1,
            "no temporary is left"
        );
    }

    #[test]
    fn a_new_file_never_replaces_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        write_new(&path, b"first", Access::Owner).unwrap();
        let error = write_new(&path, b"second", Access::Owner).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"first");
    }

    #[test]
    fn a_full_disk_is_explained() {
        // /dev/full fails every write with ENOSPC.
        let error = File::options()
            .write(true)
            .open("/dev/full")
            .unwrap()
            .write_all(b"x")
            .unwrap_err();
        let message = FileError::new("write", Path::new("/data/x"), error).to_string();
        assert!(
            message.contains("/data/x") && message.contains("The disk is full: free some space"),
            "{message}"
        );
    }

    #[test]
    fn long_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, b"12345").unwrap();
        assert!(
            read(&path, 4)
                .unwrap_err()
                .to_string()
                .contains("longer than the 4 bytes")
        );
        assert_eq!(read(&path, 5).unwrap(), b"12345");
    }
}
