//! What can go wrong with the block store.

use std::io;
use std::path::{Path, PathBuf};

use cid::Cid;

use crate::content::block::{BlockError, MAX_BLOCK};

/// Why the store could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The block itself is refused.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The configured limit is reached.
    #[error(
        "the content store is full: {used} of {limit} bytes used, {size} more needed; nothing was lost. \
         Unpin what you do not need and run `hanzod content gc`, or raise content.limit_mib in config.toml"
    )]
    OverLimit {
        /// Bytes held.
        used: u64,
        /// Bytes allowed.
        limit: u64,
        /// Bytes the block needed.
        size: u64,
    },
    /// The file system has no room.
    #[error(
        "no space left on the disk that holds {}; nothing was lost. Free some space or run `hanzod content gc`, \
         then try again: what was already stored is not fetched again", path.display()
    )]
    DiskFull {
        /// What was being written.
        path: PathBuf,
    },
    /// A stored block did not hash to its name, or the disk could not read it.
    #[error("block {cid} was damaged on disk and has been removed; fetch or add its content again")]
    Corrupt {
        /// The block.
        cid: Cid,
    },
    /// A pinned root or a block under it is not there.
    #[error("block {cid} is not in the store; fetch it first with `hanzod content get`")]
    Missing {
        /// The block.
        cid: Cid,
    },
    /// A block with links is missing under a pinned root.
    #[error(
        "block {cid} is missing under the pin {root}, and what it links to cannot be told from what nobody keeps. \
         `hanzod content verify --repair` fetches it, adding the content again makes it anew, and `hanzod content unpin \
         {root}` lets all of it go"
    )]
    BrokenPin {
        /// The pinned root.
        root: Cid,
        /// The block.
        cid: Cid,
    },
    /// Nobody waits for it any longer.
    #[error("ended half-way: whoever asked for it has gone away; ask again")]
    Abandoned,
    /// A pin record cannot be read.
    #[error("pin record {} is damaged: {reason}; remove the file and pin its CID again", path.display())]
    BadPin {
        /// The record's file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The operating system refused.
    #[error("cannot {action} {}: {source}; {}", path.display(), advice(source))]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl StoreError {
    /// Whether a collection may help.
    pub(in crate::content) fn is_full(&self) -> bool {
        self.lacks().is_some()
    }

    /// How many bytes of room a block needed, if it was that.
    #[expect(clippy::wildcard_enum_match_arm, reason = "few are about room")]
    pub(in crate::content) fn lacks(&self) -> Option<u64> {
        match self {
            Self::OverLimit { size, .. } => Some(*size),
            Self::DiskFull { .. } => Some(MAX_BLOCK as u64),
            _ => None,
        }
    }

    /// Names the path and sorts out a full disk.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| {
            if matches!(
                source.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            ) {
                Self::DiskFull { path }
            } else {
                Self::Io { action, path, source }
            }
        }
    }
}

/// What to do about a disk that loses what it was given.
pub(super) const DISK_FAULT: &str =
    "the disk reports a fault: look at its health (`dmesg`, `smartctl`) and bring what matters elsewhere";

/// Whether the disk, or the file system on it, has lost what it was given.
pub(super) fn is_disk_fault(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let number = error.raw_os_error();
    let mut faults = vec![Errno::IO, Errno::BADMSG];
    if cfg!(target_os = "linux") {
        // "Structure needs cleaning".
        faults.push(Errno::from_raw_os_error(117));
    }
    faults.iter().any(|fault| number == Some(fault.raw_os_error()))
}

fn advice(error: &io::Error) -> &'static str {
    if is_disk_fault(error) {
        DISK_FAULT
    } else {
        "check that the directory exists and belongs to this user"
    }
}
