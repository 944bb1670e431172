//! The `hello` exchange: who is a member, who gets content only, who is refused.

use super::super::behaviour::HELLO;
use super::super::hello::{Hello, Reply};
use super::super::{NetError, NetEvent, Standing, peer_bytes};
use super::{Driver, answer_all};
use crate::identity::{PeerIdentity, unix_now};
use libp2p::request_response::{Event, Message};
use libp2p::swarm::ConnectionId;
use libp2p::{PeerId, identify};
use std::sync::Arc;

/// How long a refused peer's connection stays, so that it hears why.
const FAREWELL: std::time::Duration = std::time::Duration::from_secs(1);

impl Driver {
    /// A peer said what it speaks and where it listens.
    pub(super) fn on_identified(&mut self, peer: PeerId, info: &identify::Info) {
        self.peers.set_agent(&peer, &info.agent_version);
        if info.protocols.iter().any(|p| p.as_ref() == "/ipfs/kad/1.0.0") {
            for address in &info.listen_addrs {
                self.swarm.behaviour_mut().kad.add_address(&peer, address.clone());
            }
        }
        let new = self
            .peers
            .get(&peer)
            .is_some_and(|known| known.standing == Standing::New);
        if !new {
            return;
        }
        if info.protocols.contains(&HELLO) {
            self.greet(peer);
        } else {
            self.peers.set_standing(&peer, Standing::Content);
            self.not_member(&peer, "it speaks no GYM");
        }
    }

    fn greet(&mut self, peer: PeerId) {
        match self.hello.encode() {
            Ok(bytes) => {
                self.swarm.behaviour_mut().hello.send_request(&peer, bytes);
            }
            Err(error) => tracing::error!(%error, "this node's own hello cannot be encoded"),
        }
    }

    pub(super) fn on_hello(&mut self, event: Event<Vec<u8>, Vec<u8>>) {
        match event {
            Event::Message {
                peer,
                connection_id,
                message,
            } => match message {
                Message::Request {
                    request,
                    channel,
                    request_id,
                } => {
                    let (reply, refused) = self.answer_hello(&peer, connection_id, &request);
                    if refused {
                        self.waiting.farewell.insert(request_id, (peer, connection_id));
                    }
                    if let Ok(bytes) = reply.encode() {
                        let _ = self.swarm.behaviour_mut().hello.send_response(channel, bytes);
                    }
                }
                Message::Response { response, .. } => self.on_hello_reply(&peer, connection_id, &response),
            },
            Event::ResponseSent { request_id, .. } | Event::InboundFailure { request_id, .. } => {
                if let Some((peer, _)) = self.waiting.farewell.remove(&request_id) {
                    self.send_away_soon(peer);
                }
            }
            Event::OutboundFailure { peer, error, .. } => {
                tracing::debug!(%peer, %error, "hello was not answered");
                self.not_member(&peer, &format!("hello was not answered: {error}"));
            }
        }
    }

    /// The reply to a hello, and whether it is a refusal.
    fn answer_hello(&mut self, peer: &PeerId, connection: ConnectionId, bytes: &[u8]) -> (Reply, bool) {
        let checked = Hello::decode(bytes)
            .map_err(|e| e.to_string())
            .and_then(|hello| self.consider(peer, connection, &hello));
        match checked {
            Ok(()) => (Reply::Welcome(self.hello.clone()), false),
            Err(reason) => {
                self.refuse(peer, "refused a peer", &reason);
                (Reply::refuse(&reason), true)
            }
        }
    }

    fn on_hello_reply(&mut self, peer: &PeerId, connection: ConnectionId, bytes: &[u8]) {
        let result = match Reply::decode(bytes) {
            Ok(Reply::Welcome(hello)) => self.consider(peer, connection, &hello),
            Ok(Reply::Refused(reason)) => {
                let reason: String = reason.chars().filter(|c| !c.is_control()).collect();
                self.refuse(peer, "was refused by a peer", &reason);
                return self.send_away_soon(*peer);
            }
            Err(error) => Err(error.to_string()),
        };
        if let Err(reason) = result {
            self.refuse(peer, "refused a peer", &reason);
            self.send_away_soon(*peer);
        }
    }

    /// Admits a peer, or says (to it) why not.
    fn consider(&mut self, peer: &PeerId, connection: ConnectionId, hello: &Hello) -> Result<(), String> {
        if let Some(reason) = hello.misfit(&self.hello) {
            return Err(reason);
        }
        let identity = PeerIdentity::open(&hello.record, &peer_bytes(peer), &hello.genesis, unix_now())
            .map_err(|e| e.to_string())?;
        self.peers
            .may_be(peer, &identity, hello)
            .map_err(|e| e.to_string())?;
        self.on_restart(peer, connection, hello.started);
        if let Some(info) = self.peers.admit(peer, hello, identity) {
            tracing::info!(%peer, roles = %info.roles, "a peer joined");
            let identity = info.identity.clone();
            self.emit(NetEvent::PeerJoined(Box::new(info)));
            if let Some(identity) = identity {
                self.record_known(peer, identity);
            }
        }
        Ok(())
    }

    /// A peer that came back as another process: its earlier connections are closed at once, since a transport may take
    /// half a minute to see that nobody is there.
    fn on_restart(&mut self, peer: &PeerId, current: ConnectionId, started: u64) {
        let Some(stale) = self.peers.on_process(peer, started, current) else {
            return;
        };
        tracing::info!(%peer, "a peer has restarted");
        for connection in stale {
            self.swarm.close_connection(connection);
        }
        self.emit(NetEvent::PeerLeft(peer_bytes(peer)));
    }

    fn record_known(&mut self, peer: &PeerId, identity: Arc<PeerIdentity>) {
        answer_all(self.waiting.record.remove(peer), &Ok(identity));
    }

    /// Says it once for as long as the peer is remembered: it may come back every second.
    fn refuse(&mut self, peer: &PeerId, what: &str, reason: &str) {
        if self.is_refused(peer) {
            tracing::debug!(%peer, "{what}: {reason}");
        } else {
            tracing::warn!(%peer, "{what}: {reason}");
        }
        self.metrics.offence("refused_hello");
        self.peers.set_standing(
            peer,
            Standing::Refused {
                reason: reason.to_owned(),
            },
        );
        self.refused.insert(*peer, tokio::time::Instant::now());
        self.not_member(peer, reason);
    }

    fn not_member(&mut self, peer: &PeerId, reason: &str) {
        let error = NetError::NotMember {
            peer: *peer,
            reason: reason.to_owned(),
        };
        answer_all(self.waiting.record.remove(peer), &Err(error));
    }

    /// Lets what was said reach the peer first: both sides ask at once, and a connection that closes under the other's
    /// answer leaves it without a reason.
    fn send_away_soon(&mut self, peer: PeerId) {
        self.leaving.entry(peer).or_insert_with(tokio::time::Instant::now);
    }

    /// Closes the connections of those that were refused a while ago.
    pub(super) fn send_away_the_refused(&mut self) {
        let due = |since: &tokio::time::Instant| since.elapsed() >= FAREWELL;
        let peers: Vec<PeerId> = self
            .leaving
            .iter()
            .filter(|(_, since)| due(since))
            .map(|(p, _)| *p)
            .collect();
        for peer in peers {
            self.leaving.remove(&peer);
            self.send_away(peer);
        }
    }

    /// Closes all connections to a peer that is not of this network, and forgets where it is.
    fn send_away(&mut self, peer: PeerId) {
        self.swarm.behaviour_mut().kad.remove_peer(&peer);
        let _ = self.swarm.disconnect_peer_id(peer);
    }

    /// Whether a peer was refused within the last minutes: it is not called again until then.
    pub(super) fn is_refused(&self, peer: &PeerId) -> bool {
        self.refused.contains_key(peer)
    }
}
