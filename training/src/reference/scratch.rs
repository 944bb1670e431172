//! A folder that is gone after use.

use super::ReferenceError;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A new folder among the system's temporary ones; it is removed when dropped.
pub(super) struct Folder(PathBuf);

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Folder {
    pub(super) fn new() -> Result<Self, ReferenceError> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("gym-reference-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).map_err(|e| wrong(&path, &e))?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn copy(&self, from: &Path, name: &str) -> Result<(), ReferenceError> {
        std::fs::copy(from, self.0.join(name)).map_err(|e| wrong(from, &e))?;
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn wrong(path: &Path, error: &std::io::Error) -> ReferenceError {
    ReferenceError::Read {
        path: path.to_owned(),
        reason: error.to_string(),
    }
}
