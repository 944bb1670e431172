//! Who is connected, and what is known of them.

use super::hello::Hello;
use crate::identity::{PeerIdentity, Replaced, unix_now};
use crate::role::Roles;
use gym_protocol::ids::PeerBytes;
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Where a peer stands with this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "standing")]
pub enum Standing {
    /// Connected; `hello` was not exchanged yet.
    New,
    /// Speaks no GYM: content only.
    Content,
    /// Of this network.
    Member,
    /// Refused, and why.
    Refused {
        /// What was wrong.
        reason: String,
    },
}

/// One connected peer.
#[derive(Clone, Debug)]
pub struct PeerInfo {
    /// Its id.
    pub peer: PeerBytes,
    /// Where it stands.
    pub standing: Standing,
    /// Its verified identity, for a member.
    pub identity: Option<Arc<PeerIdentity>>,
    /// Its roles, for a member.
    pub roles: Roles,
    /// Its program and version, as it says.
    pub agent: String,
    /// Remote ends of its connections.
    pub addresses: Vec<Multiaddr>,
    /// The last ping's round trip.
    pub rtt: Option<Duration>,
}

#[derive(Debug)]
struct Peer {
    info: PeerInfo,
    connections: BTreeMap<ConnectionId, Multiaddr>,
    /// When its process started, by its own clock; 0 before its hello.
    started: u64,
}

/// The connected peers.
#[derive(Debug, Default)]
pub(crate) struct PeerTable {
    peers: BTreeMap<PeerId, Peer>,
    /// Identities that were accepted, of those who have left too: nobody comes back as somebody else.
    known: BTreeMap<PeerId, Arc<PeerIdentity>>,
}

/// Identities remembered of those who have left; a record has about 15 KB.
const MAX_KNOWN: usize = 4_096;

impl PeerTable {
    pub(crate) fn connected(&mut self, peer: PeerId, connection: ConnectionId, address: Multiaddr) {
        let entry = self.peers.entry(peer).or_insert_with(|| Peer::new(&peer));
        entry.connections.insert(connection, address);
        entry.refresh();
    }

    /// Forgets a connection; the peer's last words when it was the last one.
    pub(crate) fn disconnected(&mut self, peer: &PeerId, connection: ConnectionId) -> Option<PeerInfo> {
        let entry = self.peers.get_mut(peer)?;
        entry.connections.remove(&connection);
        if !entry.connections.is_empty() {
            entry.refresh();
            return None;
        }
        self.peers.remove(peer).map(|gone| gone.info)
    }

    pub(crate) fn get(&self, peer: &PeerId) -> Option<&PeerInfo> {
        self.peers.get(peer).map(|entry| &entry.info)
    }

    /// A peer's connections whose remote address is of a kind.
    pub(crate) fn connections_at(
        &self,
        peer: &PeerId,
        is_wanted: fn(&Multiaddr) -> bool,
    ) -> Vec<ConnectionId> {
        let connections = self
            .peers
            .get(peer)
            .into_iter()
            .flat_map(|entry| &entry.connections);
        connections
            .filter(|(_, address)| is_wanted(address))
            .map(|(connection, _)| *connection)
            .collect()
    }

    pub(crate) fn is_member(&self, peer: &PeerId) -> bool {
        self.get(peer)
            .is_some_and(|info| info.standing == Standing::Member)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &PeerInfo> {
        self.peers.values().map(|entry| &entry.info)
    }

    pub(crate) fn members(&self) -> usize {
        self.all()
            .filter(|info| info.standing == Standing::Member)
            .count()
    }

    pub(crate) fn set_rtt(&mut self, peer: &PeerId, rtt: Duration) {
        self.change(peer, |info| info.rtt = Some(rtt));
    }

    pub(crate) fn set_agent(&mut self, peer: &PeerId, agent: &str) {
        // Foreign text: bounded, and fit for one line of a log.
        let agent = agent.chars().filter(|c| !c.is_control()).take(96).collect();
        self.change(peer, |info| info.agent = agent);
    }

    pub(crate) fn set_standing(&mut self, peer: &PeerId, standing: Standing) {
        self.change(peer, |info| info.standing = standing);
    }

    /// Notes when a peer's process started. When it is a later one than was known, the connections other than `current`
    /// are the earlier process's: they are given back to be closed, and the peer is to be admitted anew.
    pub(crate) fn on_process(
        &mut self,
        peer: &PeerId,
        started: u64,
        current: ConnectionId,
    ) -> Option<Vec<ConnectionId>> {
        let entry = self.peers.get_mut(peer)?;
        let earlier = std::mem::replace(&mut entry.started, started);
        if earlier == 0 || earlier >= started {
            return None;
        }
        entry.info.standing = Standing::New;
        Some(
            entry
                .connections
                .keys()
                .copied()
                .filter(|c| *c != current)
                .collect(),
        )
    }

    /// Whether an identity may be this peer's after the one it was accepted with.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn may_be(
        &self,
        peer: &PeerId,
        identity: &PeerIdentity,
        hello: &Hello,
    ) -> Result<(), Replaced> {
        match self.known.get(peer) {
            Some(known) => identity.follows(known, &hello.genesis, unix_now()),
            None => Ok(()),
        }
    }

    fn remember(&mut self, peer: &PeerId, identity: &Arc<PeerIdentity>) {
        if self.known.len() >= MAX_KNOWN && !self.known.contains_key(peer) {
            // Strangers come without end; those who are here stay known.
            let gone = self.known.keys().find(|p| !self.peers.contains_key(*p)).copied();
            match gone {
                Some(gone) => self.known.remove(&gone),
                None => return,
            };
        }
        self.known.insert(*peer, Arc::clone(identity));
    }

    /// Makes a peer a member; its entry when it was none before.
    pub(crate) fn admit(&mut self, peer: &PeerId, hello: &Hello, identity: PeerIdentity) -> Option<PeerInfo> {
        let identity = Arc::new(identity);
        self.remember(peer, &identity);
        let info = &mut self.peers.get_mut(peer)?.info;
        let new = info.standing != Standing::Member;
        info.standing = Standing::Member;
        info.roles = Roles::from_bits(hello.roles);
        info.identity = Some(identity);
        new.then(|| info.clone())
    }

    fn change(&mut self, peer: &PeerId, change: impl FnOnce(&mut PeerInfo)) {
        if let Some(entry) = self.peers.get_mut(peer) {
            change(&mut entry.info);
        }
    }
}

impl Peer {
    fn new(peer: &PeerId) -> Self {
        let info = PeerInfo {
            peer: super::peer_bytes(peer),
            standing: Standing::New,
            identity: None,
            roles: Roles::default(),
            agent: String::new(),
            addresses: Vec::new(),
            rtt: None,
        };
        Self {
            info,
            connections: BTreeMap::new(),
            started: 0,
        }
    }

    fn refresh(&mut self) {
        self.info.addresses = self.connections.values().cloned().collect();
    }
}

impl PeerInfo {
    /// The form shown by the API.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let (standing, reason) = match &self.standing {
            Standing::New => ("new", None),
            Standing::Content => ("content", None),
            Standing::Member => ("member", None),
            Standing::Refused { reason } => ("refused", Some(reason.clone())),
        };
        serde_json::json!({
            "peer": self.peer.to_string(),
            "standing": standing,
            "reason": reason,
            "record": self.identity.as_ref().map(|identity| identity.record_hash().to_hex()),
            "roles": self.roles,
            "agent": self.agent,
            "addresses": self.addresses,
            "rtt_ms": self.rtt.map(|rtt| rtt.as_secs_f64() * 1000.0),
        })
    }
}
