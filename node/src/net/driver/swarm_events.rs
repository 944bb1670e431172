//! Events of the swarm.

use super::super::behaviour::BehaviourEvent;
use super::super::{Acceptance, GossipId, NetError, NetEvent, Standing, Topic, peer_bytes};
use super::reach::remote_address;
use super::{Driver, answer_all};
use libp2p::request_response::{Event, Message};
use libp2p::swarm::SwarmEvent;
use libp2p::{PeerId, gossipsub, identify, mdns};

impl Driver {
    #[allow(clippy::wildcard_enum_match_arm)] // libp2p adds events that ask nothing of us
    pub(super) fn on_swarm(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::Behaviour(event) => self.on_behaviour(event),
            SwarmEvent::ConnectionEstablished {
                peer_id,
                connection_id,
                endpoint,
                ..
            } => {
                let remote = remote_address(peer_id, &endpoint);
                self.peers.connected(peer_id, connection_id, remote.clone());
                self.bootstrap.connected(&peer_id);
                self.leave_relays(&peer_id, &remote);
                self.waiting.searched.remove(&peer_id);
                self.waiting.relayed.remove(&peer_id);
                answer_all(self.waiting.connection.remove(&peer_id), &Ok(()));
            }
            SwarmEvent::ConnectionClosed {
                peer_id,
                connection_id,
                ..
            } => {
                if let Some(gone) = self.peers.disconnected(&peer_id, connection_id) {
                    self.on_view_gone(&peer_id);
                    self.on_gone(peer_id, &gone.standing);
                }
            }
            SwarmEvent::OutgoingConnectionError {
                peer_id: Some(peer),
                error,
                ..
            } => {
                tracing::debug!(%peer, %error, "could not connect");
                self.on_bootstrap_failed(&peer, &error);
                self.on_dial_failed(peer, &error.to_string());
            }
            SwarmEvent::NewListenAddr { address, .. } => {
                tracing::info!(%address, "listening");
                self.on_new_listener(&address);
            }
            SwarmEvent::NewExternalAddrCandidate { address } => self.on_candidate(address),
            SwarmEvent::ExternalAddrConfirmed { address } => self.on_address_confirmed(address),
            SwarmEvent::ExternalAddrExpired { address } => self.on_address_expired(&address),
            SwarmEvent::ListenerClosed { listener_id, .. } if self.on_relay_lost(listener_id) => {}
            SwarmEvent::ListenerError { error, .. } => tracing::warn!(%error, "a listener reports an error"),
            SwarmEvent::ListenerClosed {
                addresses,
                reason: Err(error),
                ..
            } => {
                tracing::error!(?addresses, %error, "a listener has closed: this node is no longer reached there");
            }
            _ => {}
        }
    }

    /// A peer may have moved: its addresses are looked up once before it counts as unreachable.
    fn on_dial_failed(&mut self, peer: PeerId, reason: &str) {
        if self.swarm.is_connected(&peer) || !self.waiting.wants(&peer) || self.dht.seeks(&peer) {
            return;
        }
        if self.waiting.searched.insert(peer) {
            self.find_peer(peer);
        } else if !self.try_relays(peer) {
            self.unreachable(&peer, reason);
        }
    }

    fn on_gone(&mut self, peer: PeerId, standing: &Standing) {
        let error = NetError::Unreachable {
            peer,
            reason: "the connection was closed".to_owned(),
        };
        answer_all(self.waiting.record.remove(&peer), &Err(error));
        if *standing == Standing::Member {
            tracing::info!(%peer, "a peer left");
            self.emit(NetEvent::PeerLeft(peer_bytes(&peer)));
        }
    }

    fn on_behaviour(&mut self, event: BehaviourEvent) {
        match event {
            BehaviourEvent::Identify(identify::Event::Received { peer_id, info, .. }) => {
                self.on_identified(peer_id, &info);
                self.on_observed(&peer_id, &info.observed_addr);
                self.go_direct(peer_id, &info.listen_addrs);
            }
            BehaviourEvent::ReachClient(event) => self.on_tested(&event),
            BehaviourEvent::HolePunch(event) => {
                tracing::debug!(peer = %event.remote_peer_id, result = ?event.result, "hole punching");
            }
            BehaviourEvent::Ping(event) => {
                if let Ok(rtt) = event.result {
                    self.peers.set_rtt(&event.peer, rtt);
                }
            }
            BehaviourEvent::Kad(event) => self.on_kad(event),
            BehaviourEvent::Gossip(event) => self.on_gossip(event),
            BehaviourEvent::Hello(event) => self.on_hello(event),
            BehaviourEvent::Sync(event) => self.on_sync(event),
            BehaviourEvent::Content(event) => self.on_content(event),
            BehaviourEvent::Mdns(mdns::Event::Discovered(found)) => {
                for (peer, address) in found {
                    self.swarm.behaviour_mut().kad.add_address(&peer, address);
                }
            }
            BehaviourEvent::Identify(_)
            | BehaviourEvent::Mdns(_)
            | BehaviourEvent::Relay(_)
            | BehaviourEvent::Relayed(_)
            | BehaviourEvent::ReachServer(_)
            | BehaviourEvent::Limits(_)
            | BehaviourEvent::Streams(()) => {}
        }
    }

    fn on_gossip(&mut self, event: gossipsub::Event) {
        let gossipsub::Event::Message {
            propagation_source,
            message_id,
            message,
        } = event
        else {
            return;
        };
        let id = GossipId {
            message: message_id,
            source: propagation_source,
        };
        let known = self.peers.get(&propagation_source);
        // Whoever knows the topic's name knows the genesis hash; hello may still be under way.
        let heard = known.is_some_and(|info| matches!(info.standing, Standing::Member | Standing::New));
        let topic = Topic::from_hash(&message.topic, &self.identity.genesis());
        let (Some(topic), true) = (topic, heard) else {
            return self.report(&id, Acceptance::Ignore);
        };
        self.metrics
            .add("gym_gossip_received_total", &[("topic", topic.name())], 1);
        let source = peer_bytes(&propagation_source);
        if !self.emit(NetEvent::Gossip {
            topic,
            source,
            bytes: message.data,
            id: id.clone(),
        }) {
            self.report(&id, Acceptance::Ignore);
        }
    }

    fn on_sync(&mut self, event: Event<Vec<u8>, Vec<u8>>) {
        match event {
            Event::Message {
                peer,
                message: Message::Request { request, channel, .. },
                ..
            } => {
                self.on_sync_request(peer, request, channel);
            }
            Event::Message {
                message: Message::Response { request_id, response },
                ..
            } => {
                if let Some(done) = self.waiting.sync.remove(&request_id) {
                    let _ = done.send(Ok(response));
                }
            }
            Event::OutboundFailure {
                peer,
                request_id,
                error,
                ..
            } => {
                if let Some(done) = self.waiting.sync.remove(&request_id) {
                    let _ = done.send(Err(NetError::NoAnswer {
                        peer,
                        reason: error.to_string(),
                    }));
                }
            }
            Event::InboundFailure { .. } | Event::ResponseSent { .. } => {}
        }
    }
}
