//! The network: one task owns the libp2p swarm ([`Driver`]); everything else talks to it through a [`NetHandle`] and
//! hears from it through a bounded channel of [`NetEvent`]s.
//!
//! For those who use it:
//! - [`NetHandle::publish`] gossips on a [`Topic`]; what others gossip arrives as [`NetEvent::Gossip`], and is passed
//!   on only once [`NetHandle::report_validation`] has said that it is valid. Within 30 seconds the same bytes are
//!   delivered once, whoever sends them. A node does not hear itself. Only peers of the same genesis are heard.
//! - [`NetHandle::sync_request`] asks one peer on `/gym/sync/1`; [`NetEvent::SyncRequest`] is the other side. The answer
//!   goes into its `reply`, within [`SYNC_DEADLINE`].
//! - [`NetHandle::peers`], [`NetHandle::peer`] and [`NetHandle::record`] tell who is there; a peer's identity record is
//!   known once `hello` has been exchanged, which [`NetEvent::PeerJoined`] announces.
//! - [`NetHandle::dial`] reaches a peer by its id, looking it up in the DHT if need be; [`NetHandle::provide`] and
//!   [`NetHandle::providers`] are the DHT's content routing.
//! - Sealed links are in [`crate::link`]; what arrives on them comes through the same event channel.
//!
//! Every call has a deadline. A full event channel delays sealed frames (their streams push back) and drops gossip and
//! sync requests, counted in `gym_net_dropped_total`.

mod behaviour;
mod bootstrap;
mod coalesce;
pub(crate) mod codec;
mod command;
mod config;
mod direct;
mod driver;
mod event;
mod handle;
mod hello;
mod muxer;
mod peers;
mod reach;
mod records;
mod retest;
mod security;
mod tls;
mod topic;
mod transport;

pub(crate) use behaviour::incoming_room;
pub use bootstrap::BootstrapInfo;
pub use config::{Config, ConfigError, Mdns, peer_of};
pub use direct::{DirectSockets, Doors};
pub(crate) use direct::{Door, Offer};
pub use driver::{Driver, Setup, Started};
pub use event::{Acceptance, GossipId, NetEvent};
pub use handle::{NetError, NetHandle};
pub use hello::Hello;
pub use peers::{PeerInfo, Standing};
pub use reach::{Reach, ReachInfo, Reachability};
pub(crate) use reach::{ip_of, is_circuit};
pub use topic::Topic;
pub use transport::StartError;

use gym_protocol::ids::PeerBytes;
use libp2p::PeerId;
use std::time::Duration;

/// How long a peer may take to answer a sync request.
pub const SYNC_DEADLINE: Duration = Duration::from_secs(20);
/// How long reaching a peer may take, a look-up in the DHT included.
pub const DIAL_DEADLINE: Duration = Duration::from_secs(20);
/// How long a look-up of providers may take.
pub const LOOKUP_DEADLINE: Duration = Duration::from_secs(30);
/// The longest sync request, in bytes.
pub const MAX_SYNC_REQUEST: usize = 64 * 1024;
/// The longest answer to one.
pub const MAX_SYNC_REPLY: usize = 8 * 1024 * 1024;
/// Events that wait for whoever handles them.
pub const EVENT_QUEUE: usize = 1024;

/// A peer id as the protocol writes it.
#[must_use]
pub fn peer_bytes(peer: &PeerId) -> PeerBytes {
    // The longest peer id, an inlined Ed25519 key, has 38 bytes: it always fits.
    PeerBytes::new(peer.to_bytes()).unwrap_or_default()
}

/// The libp2p form of a peer id; `None` when the bytes are none.
#[must_use]
pub fn peer_id(bytes: &PeerBytes) -> Option<PeerId> {
    PeerId::from_bytes(bytes.as_bytes()).ok()
}
