//! What a [`super::NetHandle`] asks of the task that owns the swarm.

use super::{Acceptance, BootstrapInfo, GossipId, NetError, PeerInfo, ReachInfo, Topic};
use crate::identity::PeerIdentity;
use libp2p::{Multiaddr, PeerId};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Where an answer goes.
pub(crate) type Done<T> = oneshot::Sender<Result<T, NetError>>;

#[derive(Debug)]
pub(crate) enum Command {
    Publish {
        topic: Topic,
        bytes: Vec<u8>,
        done: Done<()>,
    },
    Validation {
        id: GossipId,
        acceptance: Acceptance,
    },
    Sync {
        peer: PeerId,
        bytes: Vec<u8>,
        done: Done<Vec<u8>>,
    },
    Dial {
        peer: PeerId,
        done: Done<()>,
    },
    DialAddress {
        address: Multiaddr,
        done: Done<()>,
    },
    Peers {
        done: Done<Vec<PeerInfo>>,
    },
    Peer {
        peer: PeerId,
        done: Done<Option<PeerInfo>>,
    },
    Record {
        peer: PeerId,
        done: Done<Arc<PeerIdentity>>,
    },
    Provide {
        key: Vec<u8>,
        done: Done<()>,
    },
    StopProviding {
        key: Vec<u8>,
    },
    Providers {
        key: Vec<u8>,
        limit: usize,
        done: Done<Vec<PeerId>>,
    },
    Listeners {
        done: Done<Vec<Multiaddr>>,
    },
    Reach {
        done: Done<ReachInfo>,
    },
    Bootstrap {
        done: Done<Vec<BootstrapInfo>>,
    },
}
