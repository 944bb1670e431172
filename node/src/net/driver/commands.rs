//! Commands of the rest of the node.

use super::super::command::{Command, Done};
use super::super::{Acceptance, GossipId, NetError, Standing, Topic};
use super::{Driver, answer_all};
use crate::content::bitswap::Announcement;
use crate::identity::PeerIdentity;
use libp2p::gossipsub::{MessageAcceptance, PublishError};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::DialError;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::{Multiaddr, PeerId};
use std::sync::Arc;

impl Driver {
    pub(super) fn on_command(&mut self, command: Command) {
        match command {
            Command::Publish { topic, bytes, done } => answer(done, self.publish(topic, bytes)),
            Command::Validation { id, acceptance } => self.report(&id, acceptance),
            Command::Sync { peer, bytes, done } => {
                let id = self.swarm.behaviour_mut().sync.send_request(&peer, bytes);
                self.waiting.sync.insert(id, done);
            }
            Command::Dial { peer, done } => self.dial(peer, done),
            Command::DialAddress { address, done } => answer(done, self.dial_address(address)),
            Command::Peers { done } => answer(done, Ok(self.peers.all().cloned().collect())),
            Command::Peer { peer, done } => answer(done, Ok(self.peers.get(&peer).cloned())),
            Command::Record { peer, done } => self.record(peer, done),
            Command::Provide { key, done } => answer(
                done,
                match self.provide(&key) {
                    Announcement::Begun | Announcement::Waiting => Ok(()),
                    Announcement::Refused { reason } => Err(NetError::Provide(reason)),
                },
            ),
            Command::StopProviding { key } => self.stop_providing(&key),
            Command::Providers { key, limit, done } => self.find_providers(&key, limit, done),
            Command::Listeners { done } => answer(done, Ok(self.listeners())),
            Command::Reach { done } => answer(done, Ok(self.reach_info())),
            Command::Bootstrap { done } => answer(done, Ok(self.bootstrap_info())),
        }
    }

    fn publish(&mut self, topic: Topic, bytes: Vec<u8>) -> Result<(), NetError> {
        let len = bytes.len();
        let full = topic.full(&self.identity.genesis());
        match self.swarm.behaviour_mut().gossip.publish(full, bytes) {
            Ok(_) => {
                self.metrics
                    .add("gym_gossip_sent_total", &[("topic", topic.name())], 1);
                Ok(())
            }
            Err(PublishError::Duplicate) => Ok(()),
            Err(PublishError::NoPeersSubscribedToTopic) => Err(NetError::NoPeers(topic.name())),
            Err(PublishError::MessageTooLarge) => Err(NetError::TooLong {
                what: "a gossip message",
                len,
                limit: gym_protocol::message::MAX_ENVELOPE,
            }),
            Err(
                error @ (PublishError::SigningError(_)
                | PublishError::TransformFailed(_)
                | PublishError::AllQueuesFull(_)),
            ) => Err(NetError::Gossip {
                topic: topic.name(),
                reason: error.to_string(),
            }),
        }
    }

    pub(super) fn report(&mut self, id: &GossipId, acceptance: Acceptance) {
        let acceptance = match acceptance {
            Acceptance::Accept => MessageAcceptance::Accept,
            Acceptance::Reject => {
                self.metrics.offence("invalid_gossip");
                MessageAcceptance::Reject
            }
            Acceptance::Ignore => MessageAcceptance::Ignore,
        };
        self.swarm
            .behaviour_mut()
            .gossip
            .report_message_validation_result(&id.message, &id.source, acceptance);
    }

    /// Connects to a peer; without an address for it, asks the DHT first.
    fn dial(&mut self, peer: PeerId, done: Done<()>) {
        if self.swarm.is_connected(&peer) {
            return answer(done, Ok(()));
        }
        self.waiting.connection.entry(peer).or_default().push(done);
        self.reach(peer, Vec::new());
    }

    /// Dials `peer`, at `addresses` too; falls back on the DHT where there are none.
    pub(super) fn reach(&mut self, peer: PeerId, addresses: Vec<Multiaddr>) {
        let first = addresses.is_empty() && self.waiting.searched.insert(peer);
        let options = DialOpts::peer_id(peer)
            .condition(PeerCondition::DisconnectedAndNotDialing)
            .addresses(addresses)
            .extend_addresses_through_behaviour()
            .build();
        match self.swarm.dial(options) {
            Ok(()) | Err(DialError::DialPeerConditionFalse(_)) => {
                if first {
                    self.waiting.searched.remove(&peer);
                }
            }
            Err(DialError::NoAddresses) if first || self.dht.seeks(&peer) => self.find_peer(peer),
            Err(error) => self.unreachable(&peer, &error.to_string()),
        }
    }

    pub(super) fn unreachable(&mut self, peer: &PeerId, reason: &str) {
        self.waiting.searched.remove(peer);
        self.waiting.relayed.remove(peer);
        let error = NetError::Unreachable {
            peer: *peer,
            reason: reason.to_owned(),
        };
        answer_all(self.waiting.connection.remove(peer), &Err(error.clone()));
        if !self.swarm.is_connected(peer) {
            answer_all(self.waiting.record.remove(peer), &Err(error));
        }
    }

    fn dial_address(&mut self, address: Multiaddr) -> Result<(), NetError> {
        let local = *self.swarm.local_peer_id();
        self.swarm
            .dial(address.clone())
            .map_err(|error| NetError::Unreachable {
                peer: super::super::peer_of(&address).unwrap_or(local),
                reason: format!("{address}: {error}"),
            })
    }

    fn record(&mut self, peer: PeerId, done: Done<Arc<PeerIdentity>>) {
        let info = self.peers.get(&peer);
        if let Some(identity) = info.and_then(|info| info.identity.clone()) {
            return answer(done, Ok(identity));
        }
        match info.map(|info| info.standing.clone()) {
            Some(Standing::Content) => {
                answer(
                    done,
                    Err(NetError::NotMember {
                        peer,
                        reason: "it speaks no GYM".to_owned(),
                    }),
                );
            }
            Some(Standing::Refused { reason }) => answer(done, Err(NetError::NotMember { peer, reason })),
            Some(Standing::New | Standing::Member) | None => {
                self.waiting.record.entry(peer).or_default().push(done);
                if info_is_absent(&self.peers, &peer) {
                    self.reach(peer, Vec::new());
                }
            }
        }
    }

    fn listeners(&self) -> Vec<Multiaddr> {
        let local = *self.swarm.local_peer_id();
        let mut all: Vec<Multiaddr> = Vec::new();
        for address in self.swarm.listeners().chain(self.swarm.external_addresses()) {
            let full = address
                .clone()
                .with_p2p(local)
                .unwrap_or_else(|a| a.with(Protocol::P2p(local)));
            if !all.contains(&full) {
                all.push(full);
            }
        }
        all
    }
}

fn info_is_absent(peers: &super::PeerTable, peer: &PeerId) -> bool {
    peers.get(peer).is_none()
}

fn answer<T>(done: Done<T>, result: Result<T, NetError>) {
    // Who stopped waiting misses nothing.
    let _ = done.send(result);
}
