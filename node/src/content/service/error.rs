//! What can go wrong with a fetch.

use std::sync::Arc;
use std::time::Duration;

use cid::Cid;

use crate::content::bitswap::Offline;
use crate::content::block::BlockError;
use crate::content::store::StoreError;
use crate::content::unixfs::NodeError;

/// Why content could not be fetched. What arrived stays in the store, and the next try begins there.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Nobody sent the rest in time.
    #[error(
        "{root} is not complete after {after:?}: {blocks} blocks are here, {wanted} were asked for and did not come. \
         Check that a node that has it is online, then try again; it resumes from here"
    )]
    Deadline {
        /// What was fetched.
        root: Cid,
        /// The time it was given.
        after: Duration,
        /// Blocks held.
        blocks: u64,
        /// Blocks asked for in vain.
        wanted: usize,
    },
    /// Some of it is missing and there is no network.
    #[error("{root} is not complete in the store, and {reason}")]
    Offline {
        /// What was fetched.
        root: Cid,
        /// Why the rest cannot come.
        reason: Offline,
    },
    /// The store could not take a block or give one back.
    #[error("cannot fetch: {0}")]
    Store(Arc<StoreError>),
    /// A link to a block that nobody can verify.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// A block under the root makes no sense.
    #[error("block {cid} under {root}: {reason}")]
    Node {
        /// What was fetched.
        root: Cid,
        /// The block.
        cid: Cid,
        /// Why.
        reason: NodeError,
    },
    /// It would not fit.
    #[error(
        "{root} declares {declared} bytes, of which {missing} are missing; the store's limit leaves {limit} and its disk \
         {disk}. Free some space, unpin what you do not need, or raise content.limit_mib in config.toml; nothing more \
         was fetched"
    )]
    NoRoom {
        /// What was to be fetched.
        root: Cid,
        /// Bytes under it as it declares.
        declared: u64,
        /// Of which not held.
        missing: u64,
        /// Bytes the store may still grow.
        limit: u64,
        /// Bytes free on its disk.
        disk: u64,
    },
    /// More blocks than any real content has.
    #[error("{root} has more than {limit} blocks, which is refused")]
    TooManyBlocks {
        /// What was fetched.
        root: Cid,
        /// The bound.
        limit: usize,
    },
}

impl FetchError {
    /// Whether the content itself is refused.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Block(_) | Self::Node { .. } | Self::NoRoom { .. } | Self::TooManyBlocks { .. } => true,
            Self::Deadline { .. } | Self::Offline { .. } | Self::Store(_) => false,
        }
    }
}

impl From<StoreError> for FetchError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}
