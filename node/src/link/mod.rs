//! Sealed links over libp2p streams `/gym/link/1` (PROTOCOL section 2): from any member to any other, one per direction,
//! opened by the sender when it first has something to send.
//!
//! On the stream, every message is a u32 length and that many bytes: message 1 from the sender, message 2 from the
//! receiver, the receiver's offer of a direct socket and whether the sender takes it (`way`), then, on the one or the
//! other, sealed frames from the sender, each `u32 header length ‖ header ‖ sealed payload`. The header is the
//! wire encoding of [`LinkHeader`], in clear; its bytes are the seal's associated data. A receiver that closes a link for
//! an offence first says why, in one frame of text.
//!
//! [`LinkPool::send`] queues a frame; it waits while the queue to that peer is full. A writer task for each peer opens
//! the link, and opens it again, with a new handshake, when it breaks. A frame that the transport loses with a broken
//! connection is not sent again: the ring's own deadlines see to that.

mod frame;
mod held_up;
mod incoming;
mod offence;
mod outbox;
mod outgoing;
mod places;
mod pool;
mod rate;
mod watch;
mod way;

pub use incoming::Acceptor;
pub use offence::LinkOffence;
pub use outbox::Outbox;
pub use places::Members;
pub use pool::{Damage, LinkError, LinkPool};
pub use rate::Rates;

use crate::identity::NodeIdentity;
use crate::metrics::Metrics;
use crate::net::{DirectSockets, Doors, NetEvent, NetHandle};
use gym_crypto::link::{Config, HandshakeError, LinkParty};
use gym_protocol::buffers::Buffers;
use gym_protocol::message::LinkKind;
use libp2p::StreamProtocol;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// The protocol's name.
pub const LINK: StreamProtocol = StreamProtocol::new("/gym/link/1");
/// The longest payload of a frame, in bytes; what is larger is cut into segments by whoever sends it.
pub const MAX_PAYLOAD: usize = 4 << 20;
/// The longest header, in bytes.
const MAX_HEADER: usize = 512;
/// The longest words with which a link is closed, in bytes.
const MAX_WORDS: usize = 256;
/// How long opening a link may take, finding the peer included.
const OPEN_DEADLINE: Duration = Duration::from_secs(30);
/// How long a frame may take from the queue to the transport.
const FRAME_DEADLINE: Duration = Duration::from_secs(60);
/// A link on which nothing came or went for this long is closed.
const IDLE: Duration = Duration::from_secs(15 * 60);

/// What links need of the node; clones share it.
#[derive(Clone)]
pub struct LinkContext {
    /// Who this node is.
    pub identity: Arc<NodeIdentity>,
    /// Knows the peers' records.
    pub net: NetHandle,
    /// Opens and accepts streams.
    pub streams: libp2p_stream::Control,
    /// Where direct sockets come in.
    pub doors: Doors,
    /// Whether there are any.
    pub direct: DirectSockets,
    /// Takes what arrives.
    pub events: mpsc::Sender<NetEvent>,
    /// Where bytes and offences are counted.
    pub metrics: Metrics,
    /// Ends all links.
    pub stop: CancellationToken,
    /// Key epochs and limits; the same at both ends.
    pub config: Config,
    /// The beginning of this node's monotonic clock.
    pub epoch: Instant,
    /// Memory for payloads.
    pub buffers: Buffers,
    /// The bandwidths that links have shown.
    pub rates: Rates,
    /// For whose links places are kept.
    pub members: Members,
}

impl std::fmt::Debug for LinkContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinkContext")
            .field("local", &self.identity.peer())
            .finish_non_exhaustive()
    }
}

impl LinkContext {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Calls `act` with this node's end of a link.
    fn with_party<T>(
        &self,
        act: impl FnOnce(LinkParty<'_>) -> Result<T, HandshakeError>,
    ) -> Result<T, HandshakeError> {
        let genesis = self.identity.genesis().0;
        act(LinkParty::new(
            self.identity.keys(),
            self.identity.record(),
            &genesis,
        )?)
    }

    /// Counts a frame: its sealed payload apart from header and lengths.
    fn count(&self, direction: &str, kind: u8, sealed: usize, around: usize) {
        let kind = kind_name(kind);
        let labels = [("kind", kind)];
        self.metrics.add(
            &format!("gym_link_{direction}_bytes_total"),
            &labels,
            sealed as u64,
        );
        self.metrics.add(
            &format!("gym_link_{direction}_header_bytes_total"),
            &labels,
            around as u64,
        );
        self.metrics
            .add(&format!("gym_link_{direction}_frames_total"), &labels, 1);
    }
}

/// The name of a frame's kind in metrics: `gym_link_sent_bytes_total{kind="ring"}`.
#[must_use]
pub fn kind_name(kind: u8) -> &'static str {
    match LinkKind::from_number(kind) {
        Some(LinkKind::Ring) => "ring",
        Some(LinkKind::Replica) => "replica",
        None => "unknown",
    }
}
