//! What can be wrong with a CAR file.

use std::io;
use std::path::PathBuf;

use cid::Cid;

use crate::content::block::BlockError;
use crate::content::store::StoreError;
use crate::content::unixfs::NodeError;

/// Why a CAR file is refused or could not be written. Blocks taken in before the failure stay, unpinned.
#[derive(Debug, thiserror::Error)]
pub enum CarError {
    /// The file could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The bytes could not be read or written.
    #[error("CAR: {0}")]
    Stream(#[from] io::Error),
    /// Something is already there.
    #[error("{} exists already; choose another name, or remove it", path.display())]
    Exists {
        /// Where.
        path: PathBuf,
    },
    /// The header makes no sense.
    #[error("not a CAR file: {reason}")]
    Header {
        /// Why.
        reason: &'static str,
    },
    /// The file ends inside a block.
    #[error("the CAR file ends at offset {offset}, inside a block; it was cut short")]
    Truncated {
        /// Where it ends.
        offset: u64,
    },
    /// A block's frame makes no sense.
    #[error("the CAR file is damaged at offset {offset}: {reason}")]
    Frame {
        /// Where the block begins.
        offset: u64,
        /// Why.
        reason: &'static str,
    },
    /// The bytes are not what the CID says.
    #[error("the CAR file is damaged at offset {offset}: {reason}")]
    Block {
        /// Where the block begins.
        offset: u64,
        /// Why.
        reason: BlockError,
    },
    /// A block of a hash that this program does not compute.
    #[error("the CAR file holds a block at offset {offset} that cannot be verified here: {reason}")]
    Unsupported {
        /// Where the block begins.
        offset: u64,
        /// Which hash it is.
        reason: BlockError,
    },
    /// A root is not in the file, nor in the store.
    #[error(
        "the CAR file names {cid} as a root but does not hold it, and neither does the store; nothing was pinned"
    )]
    NoRoot {
        /// The root.
        cid: Cid,
    },
    /// A block to be exported is not held.
    #[error("block {cid} is not in the store; fetch its content first with `hanzod content pin`")]
    Missing {
        /// The block.
        cid: Cid,
    },
    /// A block to be exported makes no sense.
    #[error("block {cid}: {reason}")]
    Node {
        /// The block.
        cid: Cid,
        /// Why.
        reason: NodeError,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl CarError {
    /// Whether the file or content itself is refused.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Header { .. }
            | Self::Truncated { .. }
            | Self::Frame { .. }
            | Self::Block { .. }
            | Self::Unsupported { .. }
            | Self::NoRoot { .. }
            | Self::Node { .. } => true,
            Self::Io { .. }
            | Self::Stream(_)
            | Self::Exists { .. }
            | Self::Missing { .. }
            | Self::Store(_) => false,
        }
    }
}
