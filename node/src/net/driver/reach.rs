//! What follows from being reachable or not: the DHT's mode, what is announced, places at relays, direct connections.

use super::super::reach::{Observations, Reach, Reachability, is_circuit, is_public};
use super::super::records::MAX_OWN;
use super::super::retest::Retests;
use super::super::{Config, NetError, ReachInfo, peer_of};
use super::Driver;
use crate::content::bitswap::Announcement;
use crate::role::{Role, Roles};
use libp2p::core::ConnectedPoint;
use libp2p::core::transport::ListenerId;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::ConnectionId;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::{Multiaddr, PeerId, autonat, kad};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// Relays used at once.
const RELAYS: usize = 2;
/// Bootstrap nodes that are asked to test addresses again.
const TESTERS: usize = 2;
/// The pause after a relay had no place, doubled up to the longest: relays count requests.
const FIRST_PAUSE: Duration = Duration::from_secs(15);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// Announcements begun at one tick.
const ANNOUNCE_AT_ONCE: usize = 100;

/// The other end of a connection. One that came through a relay says no more than who is there: the relay is added.
pub(super) fn remote_address(peer: PeerId, endpoint: &ConnectedPoint) -> Multiaddr {
    let remote = endpoint.get_remote_address();
    match endpoint {
        ConnectedPoint::Listener { local_addr, .. } if is_circuit(local_addr) && !is_circuit(remote) => {
            let circuit = local_addr.iter().take_while(|part| *part != Protocol::P2pCircuit);
            let relay: Multiaddr = circuit.collect();
            relay.with(Protocol::P2pCircuit).with(Protocol::P2p(peer))
        }
        ConnectedPoint::Listener { .. } | ConnectedPoint::Dialer { .. } => remote.clone(),
    }
}

/// The driver's part in it.
pub(super) struct Reaching {
    seen: Observations,
    now: Reach,
    retests: Retests,
    /// What the operator has been told to do about.
    advised: Vec<Reach>,
    /// Keys of content that this node announces, or will once it is reachable.
    provided: BTreeSet<Vec<u8>>,
    to_provide: VecDeque<Vec<u8>>,
    /// Places at relays, asked for or had.
    listeners: Vec<(ListenerId, PeerId)>,
    /// When a relay that had no place is asked again, and the pause after that.
    pauses: BTreeMap<PeerId, (Instant, Duration)>,
    /// A bootstrap node that was given no address of its own tells the ones it listens on.
    tells_listeners: bool,
}

impl Reaching {
    pub(super) fn new(config: &Config, roles: &Roles) -> Self {
        let is_bootstrap = roles.has(Role::Bootstrap);
        let given = is_bootstrap || !config.external.is_empty();
        let seen = Observations::new(if given && config.reachability == Reachability::Auto {
            Reachability::Public
        } else {
            config.reachability
        });
        Self {
            now: seen.reach(Instant::now()),
            seen,
            retests: Retests::default(),
            advised: Vec::new(),
            provided: BTreeSet::new(),
            to_provide: VecDeque::new(),
            listeners: Vec::new(),
            pauses: BTreeMap::new(),
            tells_listeners: is_bootstrap && config.external.is_empty(),
        }
    }
}

impl Driver {
    pub(super) fn begin_reach(&mut self) {
        self.apply_reach();
    }

    /// A peer says where it sees this node.
    pub(super) fn on_observed(&mut self, peer: &PeerId, observed: &Multiaddr) {
        let theirs = self.peers.get(peer).map(|info| info.addresses.clone());
        for address in theirs
            .into_iter()
            .flatten()
            .filter(|address| !is_circuit(address))
        {
            self.reaching
                .seen
                .on_observed(Instant::now(), *peer, &address, observed);
        }
        self.settle_reach();
    }

    /// A peer has left, with what it saw of this node.
    pub(super) fn on_view_gone(&mut self, peer: &PeerId) {
        self.reaching.seen.on_gone(peer);
    }

    /// Gives up addresses that this node had before it got another. What peers see now is tested anew.
    fn leave_old_addresses(&mut self) {
        for address in self.reaching.seen.moved() {
            tracing::info!(%address, "no peer sees this node at this address any longer: it is not told to others");
            self.swarm.remove_external_address(&address);
            self.on_address_expired(&address);
        }
    }

    pub(super) fn on_candidate(&mut self, address: Multiaddr) {
        self.reaching.seen.on_candidate(address);
        self.settle_reach();
    }

    pub(super) fn on_tested(&mut self, event: &autonat::v2::client::Event) {
        if let Err(error) = &event.result {
            tracing::debug!(address = %event.tested_addr, by = %event.server, %error, "not reached from outside");
            self.reaching.seen.on_failed(Instant::now(), &event.tested_addr);
            self.settle_reach();
        }
    }

    pub(super) fn on_address_confirmed(&mut self, address: Multiaddr) {
        tracing::info!(%address, "others reach this node here");
        if is_circuit(&address) {
            // What was announced names the addresses of its time.
            self.reaching.to_provide = self.reaching.provided.iter().cloned().collect();
        }
        self.reaching.seen.on_confirmed(address);
        self.settle_reach();
    }

    pub(super) fn on_address_expired(&mut self, address: &Multiaddr) {
        self.reaching.seen.on_expired(address);
        self.settle_reach();
    }

    pub(super) fn on_new_listener(&mut self, address: &Multiaddr) {
        if self.reaching.tells_listeners && !is_circuit(address) {
            self.swarm.add_external_address(address.clone());
        }
    }

    /// A listener has ended; whether it was a place at a relay, which is asked for again later.
    pub(super) fn on_relay_lost(&mut self, listener: ListenerId) -> bool {
        let listeners = &mut self.reaching.listeners;
        let Some(at) = listeners.iter().position(|(id, _)| *id == listener) else {
            return false;
        };
        let (_, relay) = listeners.swap_remove(at);
        let last = self.reaching.pauses.get(&relay).map(|(_, pause)| *pause * 2);
        let pause = last.unwrap_or(FIRST_PAUSE).min(LONGEST_PAUSE);
        tracing::info!(%relay, ?pause, "the relay has no place for this node; it is asked again");
        self.reaching
            .pauses
            .insert(relay, (Instant::now() + pause, pause));
        self.settle_reach();
        true
    }

    /// What is known, for people.
    pub(super) fn reach_info(&self) -> ReachInfo {
        let mode = self.swarm.behaviour().kad.mode();
        ReachInfo {
            reach: self.reaching.now,
            dht: if mode == kad::Mode::Server {
                "server"
            } else {
                "client"
            },
            addresses: self.swarm.external_addresses().cloned().collect(),
            relays: self.reaching.seen.relayed().cloned().collect(),
            waiting: self.reaching.waiting(),
        }
    }

    pub(super) fn settle_reach(&mut self) {
        let now = self.reaching.seen.reach(Instant::now());
        if now != self.reaching.now {
            self.reaching.now = now;
            self.apply_reach();
        }
    }

    fn apply_reach(&mut self) {
        let reach = self.reaching.now;
        self.tell_reach(reach);
        let mode = if reach.serves() {
            kad::Mode::Server
        } else {
            kad::Mode::Client
        };
        self.swarm.behaviour_mut().kad.set_mode(Some(mode));
        if reach.provides() {
            self.reaching.to_provide = self.reaching.provided.iter().cloned().collect();
        } else {
            self.withdraw();
        }
        if reach.needs_relay() {
            self.ask_relays();
        } else if reach != Reach::Unknown {
            for (listener, _) in std::mem::take(&mut self.reaching.listeners) {
                self.swarm.remove_listener(listener);
            }
        }
        self.metrics
            .set("gym_net_provides", &[], u64::from(reach.provides()));
    }

    fn tell_reach(&mut self, reach: Reach) {
        match reach.advice().filter(|_| reach.needs_relay()) {
            Some(advice) if !self.reaching.advised.contains(&reach) => {
                self.reaching.advised.push(reach);
                tracing::warn!("{advice}");
            }
            _ => tracing::info!(reach = reach.name(), "whether others can reach this node"),
        }
    }

    /// Looks after places at relays and announcements that wait.
    pub(super) fn tick_reach(&mut self) {
        self.leave_old_addresses();
        self.settle_reach();
        if self.reaching.seen.wants_relay(Instant::now()) {
            self.ask_relays();
        }
        self.test_again();
        self.announce_some();
    }

    /// Has addresses that failed tested again once in a while: a port may have been forwarded since.
    fn test_again(&mut self) {
        let now = Instant::now();
        let failed = self.reaching.seen.failed(now);
        if !self.reaching.retests.is_due(now, &failed) {
            return;
        }
        tracing::debug!(
            addresses = failed.len(),
            "tests again whether others reach this node"
        );
        self.swarm.behaviour_mut().reach_client.begin_anew(&failed);
        let testers: Vec<(PeerId, Multiaddr)> = self
            .bootstrap
            .addresses()
            .filter_map(|address| Some((peer_of(address)?, address.clone())))
            .filter(|(peer, _)| self.swarm.is_connected(peer))
            .take(TESTERS)
            .collect();
        for (peer, address) in testers {
            // Beside the connection that there is, which the new round does not know.
            let options = DialOpts::peer_id(peer)
                .condition(PeerCondition::Always)
                .addresses(vec![address])
                .allocate_new_port()
                .build();
            if let Err(error) = self.swarm.dial(options) {
                tracing::debug!(%peer, %error, "cannot ask the bootstrap node for another test");
            }
        }
    }

    /// Asks connected bootstrap nodes for a place, as many as are lacking.
    fn ask_relays(&mut self) {
        let now = Instant::now();
        for address in self.bootstrap.addresses().cloned().collect::<Vec<_>>() {
            let Some(relay) = peer_of(&address) else { continue };
            let waits = self
                .reaching
                .pauses
                .get(&relay)
                .is_some_and(|(until, _)| now < *until);
            let is_asked = self.reaching.listeners.iter().any(|(_, asked)| *asked == relay);
            if waits
                || is_asked
                || self.reaching.listeners.len() >= RELAYS
                || !self.swarm.is_connected(&relay)
            {
                continue;
            }
            match self.swarm.listen_on(address.with(Protocol::P2pCircuit)) {
                Ok(listener) => {
                    self.reaching.listeners.push((listener, relay));
                }
                Err(error) => tracing::warn!(%relay, %error, "cannot ask the relay for a place"),
            }
        }
    }

    /// Announces content now, or once others can reach this node.
    pub(super) fn provide(&mut self, key: &[u8]) -> Announcement {
        let provided = &mut self.reaching.provided;
        if provided.len() >= MAX_OWN && !provided.contains(key) {
            return Announcement::Refused {
                reason: format!(
                    "this node announces {MAX_OWN} roots already; unpin some that need not be found"
                ),
            };
        }
        provided.insert(key.to_vec());
        if !self.reaching.now.provides() {
            return Announcement::Waiting;
        }
        match self.announce(key) {
            Ok(()) => Announcement::Begun,
            Err(error) => Announcement::Refused {
                reason: error.to_string(),
            },
        }
    }

    fn announce(&mut self, key: &[u8]) -> Result<(), NetError> {
        let key = kad::RecordKey::new(&key);
        match self.swarm.behaviour_mut().kad.start_providing(key) {
            Ok(_) => Ok(()),
            Err(error) => Err(NetError::Provide(error.to_string())),
        }
    }

    fn announce_some(&mut self) {
        for _ in 0..ANNOUNCE_AT_ONCE {
            let Some(key) = self.reaching.to_provide.pop_front() else {
                return;
            };
            if let Err(error) = self.announce(&key) {
                tracing::warn!("{error}");
            }
        }
    }

    pub(super) fn stop_providing(&mut self, key: &[u8]) {
        self.reaching.provided.remove(key);
        self.reaching.to_provide.retain(|other| other != key);
        let key = kad::RecordKey::new(&key);
        self.swarm.behaviour_mut().kad.stop_providing(&key);
    }

    /// Renews no record any longer; what others hold runs out.
    fn withdraw(&mut self) {
        self.reaching.to_provide.clear();
        for key in self.reaching.provided.clone() {
            let key = kad::RecordKey::new(&key);
            self.swarm.behaviour_mut().kad.stop_providing(&key);
        }
    }

    /// Dials a peer whose address nobody knows through the bootstrap nodes: it may have a place at one of them. Once for
    /// each who waits; whether there was anything to try.
    pub(super) fn try_relays(&mut self, peer: PeerId) -> bool {
        if !self.waiting.wants(&peer) || !self.waiting.relayed.insert(peer) {
            return false;
        }
        let through = |address: &Multiaddr| {
            let relay = peer_of(address)?;
            let is_other = relay != peer && relay != *self.swarm.local_peer_id();
            is_other.then(|| {
                address
                    .clone()
                    .with(Protocol::P2pCircuit)
                    .with(Protocol::P2p(peer))
            })
        };
        let addresses: Vec<Multiaddr> = self.bootstrap.addresses().filter_map(through).collect();
        if addresses.is_empty() {
            return false;
        }
        let options = DialOpts::peer_id(peer)
            .condition(PeerCondition::DisconnectedAndNotDialing)
            .addresses(addresses)
            .build();
        tracing::debug!(%peer, "nobody knows its address: trying the relays");
        self.swarm.dial(options).is_ok()
    }

    /// A peer that is connected through a relay alone said where it listens: a direct connection is tried from here, which
    /// a node behind a router can make to one that is not. Hole punching goes on beside it.
    pub(super) fn go_direct(&mut self, peer: PeerId, listens: &[Multiaddr]) {
        let Some(info) = self.peers.get(&peer) else { return };
        if info.addresses.is_empty() || !info.addresses.iter().all(is_circuit) {
            return;
        }
        let is_local = self.reaching.now == Reach::Local || self.any_local_bootstrap();
        let addresses: Vec<Multiaddr> = listens
            .iter()
            .filter(|address| !is_circuit(address) && (is_local || is_public(address)))
            .take(8)
            .cloned()
            .collect();
        if addresses.is_empty() {
            return;
        }
        let options = DialOpts::peer_id(peer)
            .condition(PeerCondition::Always)
            .addresses(addresses)
            .build();
        if let Err(error) = self.swarm.dial(options) {
            tracing::debug!(%peer, %error, "no direct connection");
        }
    }

    /// In a network of private addresses those are worth a try.
    fn any_local_bootstrap(&self) -> bool {
        self.bootstrap.addresses().any(|address| !is_public(address))
    }

    /// A direct connection takes a relayed one's place, which would be cut off soon anyway.
    pub(super) fn leave_relays(&mut self, peer: &PeerId, made: &Multiaddr) {
        if is_circuit(made) {
            return;
        }
        let relayed: Vec<ConnectionId> = self.peers.connections_at(peer, is_circuit);
        for connection in relayed {
            tracing::debug!(%peer, "connected directly: leaving the relay");
            self.swarm.close_connection(connection);
        }
    }
}

impl Reaching {
    /// Announcements that wait until others can reach this node.
    fn waiting(&self) -> usize {
        if self.now.provides() {
            self.to_provide.len()
        } else {
            self.provided.len()
        }
    }
}
