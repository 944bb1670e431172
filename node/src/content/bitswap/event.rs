//! What the behaviour tells the owner of the swarm.

use cid::Cid;
use libp2p::PeerId;
use tokio::sync::oneshot;

use super::MessageError;

/// For the owner of the swarm.
#[derive(Debug)]
pub enum Event {
    /// A fetch knows nobody who has `cid`: look it up and answer with
    /// [`Behaviour::providers_found`](super::Behaviour::providers_found).
    FindProviders {
        /// What is wanted.
        cid: Cid,
    },
    /// Announce that this node has `cid`.
    Provide {
        /// The root to announce.
        cid: Cid,
        /// Hears what becomes of it, unless it does not wait any longer.
        done: oneshot::Sender<Announcement>,
    },
    /// Announce it no longer.
    StopProviding {
        /// The root.
        cid: Cid,
    },
    /// A peer broke the protocol; its connections are being closed and it is left alone for a while.
    Offence {
        /// Who.
        peer: PeerId,
        /// What it did.
        offence: Offence,
    },
}

/// What becomes of an announcement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Announcement {
    /// It is under way.
    Begun,
    /// It is remembered until others can reach this node.
    Waiting,
    /// It is not made.
    Refused {
        /// Why.
        reason: String,
    },
}

impl Announcement {
    /// Whether it is under way.
    #[must_use]
    pub fn is_begun(&self) -> bool {
        matches!(self, Self::Begun)
    }

    /// Why it is not, for people.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        match self {
            Self::Begun => None,
            Self::Waiting => Some("it will be announced once others can reach this node".to_owned()),
            Self::Refused { reason } => Some(reason.clone()),
        }
    }
}

/// How a peer broke the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Offence {
    /// A message over a limit, or one that makes no sense.
    #[error("sent a bad bitswap message: {0}")]
    Message(#[from] MessageError),
    /// A block that was never asked for; also what a wrong block for a CID is, because a block's CID is computed.
    #[error("sent block {cid}, which it was not asked for")]
    UnwantedBlock {
        /// What the bytes hash to.
        cid: Cid,
    },
}

/// What has passed since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Blocks received and stored.
    pub blocks_received: u64,
    /// Their bytes.
    pub bytes_received: u64,
    /// Blocks received twice.
    pub duplicates: u64,
    /// Blocks given to others.
    pub blocks_sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// Peers that broke the protocol.
    pub offences: u64,
    /// Times a peer stalled and lost its share.
    pub stalls: u64,
    /// Messages that were begun and not finished in time; their streams were closed.
    pub slow: u64,
    /// Wants of peers that were over their limit and dropped.
    pub dropped_wants: u64,
    /// Large messages from peers that were asked for nothing; their streams were closed.
    pub uncalled: u64,
    /// Replies that could not be written, since nobody read them, or made room for others.
    pub unread: u64,
    /// Bytes of messages, now, that have begun and not ended.
    pub receiving: u64,
}
