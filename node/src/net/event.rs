//! What the network tells the rest of the node.

use super::{PeerInfo, Topic};
use crate::link::LinkOffence;
use gym_protocol::ids::PeerBytes;
use gym_protocol::message::LinkHeader;
use libp2p::PeerId;
use libp2p::gossipsub::MessageId;
use tokio::sync::oneshot;

/// Names a gossip message until its validity is reported.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GossipId {
    pub(crate) message: MessageId,
    pub(crate) source: PeerId,
}

/// What becomes of a gossip message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceptance {
    /// Valid: passed on.
    Accept,
    /// Invalid: not passed on, and the peer it came from is held to account.
    Reject,
    /// Neither (too early, not understood, of no use): not passed on.
    Ignore,
}

/// Something that happened on the network.
#[derive(Debug)]
pub enum NetEvent {
    /// A peer of this network exchanged `hello`: its identity record is known and its links are accepted.
    PeerJoined(Box<PeerInfo>),
    /// The last connection to such a peer is gone.
    PeerLeft(PeerBytes),
    /// A gossip message. Report its validity with [`super::NetHandle::report_validation`].
    Gossip {
        /// Where it was gossiped.
        topic: Topic,
        /// The neighbour it came from, not necessarily its author.
        source: PeerBytes,
        /// The message.
        bytes: Vec<u8>,
        /// Its name.
        id: GossipId,
    },
    /// A peer asks on `/gym/sync/1`. Dropping `reply` refuses.
    SyncRequest {
        /// Who asks.
        peer: PeerBytes,
        /// The question.
        bytes: Vec<u8>,
        /// Takes the answer.
        reply: oneshot::Sender<Vec<u8>>,
    },
    /// A frame of a sealed link: opened, its header authenticated, its sender and receiver checked.
    Sealed {
        /// Who sent it.
        from: PeerBytes,
        /// The associated data.
        header: Box<LinkHeader>,
        /// The payload.
        payload: Vec<u8>,
    },
    /// A peer's link broke the rules; the link is closed, a new one may be opened.
    LinkOffence {
        /// Whose.
        from: PeerBytes,
        /// How.
        what: LinkOffence,
    },
    /// A frame that was accepted for sending could not be delivered before its deadline.
    LinkFailed {
        /// To whom.
        to: PeerBytes,
        /// Which.
        header: Box<LinkHeader>,
        /// Why.
        reason: String,
    },
}
