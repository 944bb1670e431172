//! The handle through which the rest of the node uses the network.

use super::command::{Command, Done};
use super::{
    Acceptance, BootstrapInfo, DIAL_DEADLINE, GossipId, LOOKUP_DEADLINE, MAX_SYNC_REQUEST, PeerInfo,
    ReachInfo, SYNC_DEADLINE, Topic, peer_id,
};
use crate::identity::PeerIdentity;
use gym_protocol::ids::PeerBytes;
use libp2p::{Multiaddr, PeerId};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// How long the swarm's task may take to take a command and to answer one that needs no peer.
const LOCAL_DEADLINE: Duration = Duration::from_secs(10);

/// Talks to the task that owns the swarm; clones share it.
#[derive(Clone, Debug)]
pub struct NetHandle {
    commands: mpsc::Sender<Command>,
    local: PeerId,
}

/// Why the network could not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    /// The node is shutting down.
    #[error("the network has stopped; the node is shutting down")]
    Stopped,
    /// It took too long.
    #[error("{what} took longer than {after:?}")]
    Late {
        /// What was asked.
        what: &'static str,
        /// The deadline.
        after: Duration,
    },
    /// Nobody to gossip to.
    #[error("no peer listens on the topic {0}; check that the bootstrap address is right and reachable")]
    NoPeers(&'static str),
    /// Too long to be sent.
    #[error("{what} of {len} bytes is too long: at most {limit} are sent")]
    TooLong {
        /// What was to be sent.
        what: &'static str,
        /// Its bytes.
        len: usize,
        /// The most.
        limit: usize,
    },
    /// The gossip could not be sent.
    #[error("gossip on {topic} failed: {reason}")]
    Gossip {
        /// The topic.
        topic: &'static str,
        /// Why.
        reason: String,
    },
    /// The bytes are no peer id.
    #[error("{0} is no libp2p peer id")]
    BadPeer(PeerBytes),
    /// The peer cannot be reached.
    #[error("cannot reach {peer}: {reason}")]
    Unreachable {
        /// Who.
        peer: PeerId,
        /// Why.
        reason: String,
    },
    /// The peer is of another network, or speaks no GYM.
    #[error("{peer} is not in this network: {reason}")]
    NotMember {
        /// Who.
        peer: PeerId,
        /// Why.
        reason: String,
    },
    /// The peer did not answer.
    #[error("{peer} did not answer the sync request: {reason}")]
    NoAnswer {
        /// Who.
        peer: PeerId,
        /// Why.
        reason: String,
    },
    /// The DHT's local store is full.
    #[error("cannot announce content: {0}")]
    Provide(String),
}

impl NetHandle {
    pub(crate) fn new(commands: mpsc::Sender<Command>, local: PeerId) -> Self {
        Self { commands, local }
    }

    /// This node's peer id.
    #[must_use]
    pub fn local(&self) -> PeerBytes {
        super::peer_bytes(&self.local)
    }

    /// This node's peer id, as libp2p has it.
    #[must_use]
    pub fn local_peer(&self) -> PeerId {
        self.local
    }

    /// Gossips `bytes`. The same bytes within 30 seconds are sent once and are no error.
    ///
    /// # Errors
    /// When nobody listens, the message is too long, or every queue is full.
    pub async fn publish(&self, topic: Topic, bytes: Vec<u8>) -> Result<(), NetError> {
        self.call("gossip", LOCAL_DEADLINE, |done| Command::Publish {
            topic,
            bytes,
            done,
        })
        .await
    }

    /// Says whether a gossip message is valid; exactly once for each.
    pub async fn report_validation(&self, id: GossipId, acceptance: Acceptance) {
        // Without a swarm there is nobody to pass it on to.
        let _ = timeout(
            LOCAL_DEADLINE,
            self.commands.send(Command::Validation { id, acceptance }),
        )
        .await;
    }

    /// Asks one peer on `/gym/sync/1`; its answer.
    ///
    /// # Errors
    /// When it cannot be reached or does not answer within [`SYNC_DEADLINE`].
    pub async fn sync_request(&self, peer: &PeerBytes, bytes: Vec<u8>) -> Result<Vec<u8>, NetError> {
        if bytes.len() > MAX_SYNC_REQUEST {
            return Err(NetError::TooLong {
                what: "a sync request",
                len: bytes.len(),
                limit: MAX_SYNC_REQUEST,
            });
        }
        let peer = parse(peer)?;
        self.call("a sync request", SYNC_DEADLINE + LOCAL_DEADLINE, |done| {
            Command::Sync { peer, bytes, done }
        })
        .await
    }

    /// Connects to a peer, looking its addresses up in the DHT if need be.
    ///
    /// # Errors
    /// When it cannot be found or reached within [`DIAL_DEADLINE`].
    pub async fn dial(&self, peer: &PeerBytes) -> Result<(), NetError> {
        let peer = parse(peer)?;
        self.call("reaching a peer", DIAL_DEADLINE, |done| Command::Dial {
            peer,
            done,
        })
        .await
    }

    /// Starts to connect to an address; success is seen in [`NetHandle::peers`].
    ///
    /// # Errors
    /// When the address cannot be dialled at all.
    pub async fn dial_address(&self, address: Multiaddr) -> Result<(), NetError> {
        self.call("dialling", LOCAL_DEADLINE, |done| Command::DialAddress {
            address,
            done,
        })
        .await
    }

    /// The connected peers.
    ///
    /// # Errors
    /// When the node is shutting down.
    pub async fn peers(&self) -> Result<Vec<PeerInfo>, NetError> {
        self.call("listing peers", LOCAL_DEADLINE, |done| Command::Peers { done })
            .await
    }

    /// One connected peer.
    ///
    /// # Errors
    /// When the bytes are no peer id or the node is shutting down.
    pub async fn peer(&self, peer: &PeerBytes) -> Result<Option<PeerInfo>, NetError> {
        let peer = parse(peer)?;
        self.call("looking up a peer", LOCAL_DEADLINE, |done| Command::Peer {
            peer,
            done,
        })
        .await
    }

    /// The verified identity of a peer, connecting and waiting for its `hello` if need be.
    ///
    /// # Errors
    /// When it cannot be reached or is not of this network.
    pub async fn record(&self, peer: &PeerBytes) -> Result<Arc<PeerIdentity>, NetError> {
        let peer = parse(peer)?;
        self.call("waiting for a peer's hello", DIAL_DEADLINE, |done| {
            Command::Record { peer, done }
        })
        .await
    }

    /// Announces in the DHT that this node has the content of `key` (a CID's multihash).
    ///
    /// # Errors
    /// When the local provider store is full.
    pub async fn provide(&self, key: Vec<u8>) -> Result<(), NetError> {
        self.call("announcing content", LOCAL_DEADLINE, |done| Command::Provide {
            key,
            done,
        })
        .await
    }

    /// Stops announcing it; what others remember expires.
    pub async fn stop_providing(&self, key: Vec<u8>) {
        let _ = timeout(LOCAL_DEADLINE, self.commands.send(Command::StopProviding { key })).await;
    }

    /// Up to `limit` peers that have the content of `key`.
    ///
    /// # Errors
    /// When the node is shutting down; finding nobody is an empty list.
    pub async fn providers(&self, key: Vec<u8>, limit: usize) -> Result<Vec<PeerId>, NetError> {
        let wait = LOOKUP_DEADLINE + LOCAL_DEADLINE;
        self.call("looking for providers", wait, |done| Command::Providers {
            key,
            limit,
            done,
        })
        .await
    }

    /// The addresses this node listens on, each with its peer id.
    ///
    /// # Errors
    /// When the node is shutting down.
    pub async fn listeners(&self) -> Result<Vec<Multiaddr>, NetError> {
        self.call("listing addresses", LOCAL_DEADLINE, |done| Command::Listeners {
            done,
        })
        .await
    }

    /// Whether others can reach this node, and how.
    ///
    /// # Errors
    /// When the node is shutting down.
    pub async fn reach(&self) -> Result<ReachInfo, NetError> {
        self.call("asking whether others reach this node", LOCAL_DEADLINE, |done| {
            Command::Reach { done }
        })
        .await
    }

    /// The addresses to join through, and what came of calling them.
    ///
    /// # Errors
    /// When the node is shutting down.
    pub async fn bootstrap(&self) -> Result<Vec<BootstrapInfo>, NetError> {
        self.call("listing bootstrap addresses", LOCAL_DEADLINE, |done| {
            Command::Bootstrap { done }
        })
        .await
    }

    async fn call<T>(
        &self,
        what: &'static str,
        deadline: Duration,
        command: impl FnOnce(Done<T>) -> Command,
    ) -> Result<T, NetError> {
        let (done, answer) = oneshot::channel();
        let exchange = async {
            self.commands
                .send(command(done))
                .await
                .map_err(|_| NetError::Stopped)?;
            answer.await.map_err(|_| NetError::Stopped)?
        };
        timeout(deadline, exchange).await.unwrap_or(Err(NetError::Late {
            what,
            after: deadline,
        }))
    }
}

fn parse(peer: &PeerBytes) -> Result<PeerId, NetError> {
    peer_id(peer).ok_or_else(|| NetError::BadPeer(peer.clone()))
}
