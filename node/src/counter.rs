//! Counters that must never repeat (delta sequence, record number): on disk and flushed before they are used
//! (PROTOCOL section 0).

use crate::files::{self, Access, FileError};
use std::path::{Path, PathBuf};

/// A rising number kept in a file.
#[derive(Debug)]
pub struct Counter {
    path: PathBuf,
    last: u64,
}

/// A counter that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CounterError {
    /// The file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file holds something else than a number.
    #[error(
        "the counter {} does not hold a number; restore it from a backup, or write a number into it that is higher \
         than any this node has used",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// All 2^64 numbers are used.
    #[error("the counter {} has reached its end", path.display())]
    Exhausted {
        /// The file.
        path: PathBuf,
    },
}

impl Counter {
    /// Opens the counter at `path`; a missing file is a counter that was never used.
    ///
    /// # Errors
    /// When the file cannot be read or holds no number.
    pub fn open(path: &Path) -> Result<Self, CounterError> {
        let last = match files::read_text(path, 32) {
            Ok(text) => parse(path, &text)?,
            Err(e) if e.source.kind() == std::io::ErrorKind::NotFound => 0,
            Err(e) => return Err(e.into()),
        };
        Ok(Self {
            path: path.to_path_buf(),
            last,
        })
    }

    /// The last number handed out; 0 when there was none.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The next number, from 1; it is on disk when this returns.
    ///
    /// # Errors
    /// When it cannot be written: the number is then not used.
    pub fn advance(&mut self) -> Result<u64, CounterError> {
        let next = self.last.checked_add(1).ok_or_else(|| CounterError::Exhausted {
            path: self.path.clone(),
        })?;
        files::write_atomic(&self.path, format!("{next}\n").as_bytes(), Access::Owner)?;
        self.last = next;
        Ok(next)
    }
}

fn parse(path: &Path, text: &str) -> Result<u64, CounterError> {
    text.trim().parse().map_err(|_| CounterError::Damaged {
        path: path.to_path_buf(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sequence");
        let mut counter = Counter::open(&path).unwrap();
        assert_eq!((counter.advance().unwrap(), counter.advance().unwrap()), (1, 2));
        assert_eq!(Counter::open(&path).unwrap().advance().unwrap(), 3);
    }

    #[test]
    fn a_damaged_counter_is_not_restarted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sequence");
        std::fs::write(&path, "x").unwrap();
        assert!(matches!(Counter::open(&path), Err(CounterError::Damaged { .. })));
    }

    #[test]
    fn a_number_that_cannot_be_written_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gone").join("sequence");
        let mut counter = Counter { path, last: 7 };
        assert!(counter.advance().is_err());
        assert_eq!(counter.last(), 7);
    }
}
