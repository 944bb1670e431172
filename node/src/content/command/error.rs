//! Why a command was not carried out.

use std::time::Duration;

use cid::Cid;

use crate::content::bitswap::Offline;
use crate::content::car::CarError;
use crate::content::store::StoreError;
use crate::content::unixfs::{AddError, ReadError};
use crate::content::{DemandError, FetchError};

impl CommandError {
    /// Whether the content itself is refused: what a stranger made would harm, or makes no sense.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Read(error) => error.is_refusal(),
            Self::Fetch(error) => error.is_refusal(),
            Self::Demand(error) => error.is_refusal(),
            Self::Car(error) => error.is_refusal(),
            Self::Incomplete { reason, .. } => reason.is_refusal(),
            Self::Add(_)
            | Self::Store(_)
            | Self::Offline(_)
            | Self::Stalled { .. }
            | Self::NoCid { .. }
            | Self::NotPinned { .. } => false,
        }
    }

    /// Whether it needs a running node, which there is not.
    #[must_use]
    pub fn is_offline(&self) -> bool {
        if let Self::Incomplete { reason, .. } = self {
            return reason.is_offline();
        }
        matches!(
            self,
            Self::Offline(_)
                | Self::Fetch(FetchError::Offline { .. })
                | Self::Demand(DemandError::Fetch(FetchError::Offline { .. }))
        )
    }
}

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The file or directory could not be added.
    #[error(transparent)]
    Add(#[from] AddError),
    /// The content could not be read or written out.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It is not all here, and did not come.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// A block of it did not come.
    #[error(transparent)]
    Demand(#[from] DemandError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The CAR file is refused or cannot be written.
    #[error(transparent)]
    Car(#[from] CarError),
    /// A CAR file does not hold all that is under its root.
    #[error(
        "the CAR file lacks {missing} or more blocks under its root {root}; what it holds is kept, nothing was pinned: {reason}"
    )]
    Incomplete {
        /// The root.
        root: Cid,
        /// Blocks that are known to be missing.
        missing: u64,
        /// Why they did not come from elsewhere.
        reason: Box<Self>,
    },
    /// It needs a network.
    #[error(transparent)]
    Offline(#[from] Offline),
    /// Nobody sends it.
    #[error(
        "nobody has sent anything of {cid} for {} s: no peer that can be reached has it; {}",
        patience.as_secs(),
        kept(*blocks)
    )]
    Stalled {
        /// What was fetched.
        cid: Cid,
        /// How long nothing came.
        patience: Duration,
        /// Blocks of it that are here.
        blocks: u64,
    },
    /// Text that is no CID.
    #[error("{text:?} is no CID: one is letters and digits, such as bafybei...")]
    NoCid {
        /// The text.
        text: String,
    },
    /// It is not pinned.
    #[error("{cid} is not pinned; `hanzod content ls` shows what is")]
    NotPinned {
        /// The root.
        cid: Cid,
    },
}

/// What is left of a fetch that was given up.
fn kept(blocks: u64) -> String {
    match blocks {
        0 => "nothing of it is here".to_owned(),
        1 => "the one block that is here is kept".to_owned(),
        many => format!("the {many} blocks that are here are kept"),
    }
}
