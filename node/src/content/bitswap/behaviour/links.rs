//! Connections, and what is sent over them.

use std::sync::{Arc, Weak};
use std::time::Instant;

use libp2p::PeerId;
use libp2p::swarm::{CloseConnection, ConnectionId, NotifyHandler, ToSwarm};

use super::{Behaviour, Peer};
use crate::content::bitswap::MAX_WANTS;
use crate::content::bitswap::client::Event as ClientEvent;
use crate::content::bitswap::handler::{Command, FrameKind, Handler, Keep, Times, ToHandler};
use crate::content::bitswap::line::Line;
use crate::content::bitswap::message::{Entry, EntryKind, Message};

impl Behaviour {
    pub(super) fn on_connected(&mut self, peer: PeerId, connection: ConnectionId) {
        if self.client.is_banned(Instant::now(), &peer) {
            self.hang_up(peer);
        }
        let known = self.peers.entry(peer).or_default();
        let first = known.connections.is_empty();
        known.connections.insert(0, connection);
        known.keep = None;
        if first {
            self.client_event(ClientEvent::Connected(peer));
            return;
        }
        // The newest is used: an older one may be a process that is gone, which a transport notices late.
        known.keep_cancels();
        let before = known.connections.iter().skip(1).copied().collect::<Vec<_>>();
        for connection in before {
            self.notify_one(peer, connection, Command::DropReplies);
        }
        self.ledger.on_moved(peer);
        self.client_event(ClientEvent::Reset(peer));
        self.send_wants(peer);
    }

    /// What was under way on a connection is lost with it. The two sides may use different ones, so wants are sent
    /// again whichever closed.
    pub(super) fn on_closed(&mut self, peer: PeerId, connection: ConnectionId) {
        let Some(known) = self.peers.get_mut(&peer) else {
            return;
        };
        let was_in_use = known.connections.first() == Some(&connection);
        known.connections.retain(|other| *other != connection);
        if known.connections.is_empty() {
            self.peers.remove(&peer);
            self.ledger.on_gone(&peer);
            self.client_event(ClientEvent::Disconnected(peer));
            return;
        }
        if was_in_use {
            known.keep_cancels();
            self.ledger.on_moved(peer);
        }
        self.client_event(ClientEvent::Reset(peer));
        self.send_wants(peer);
    }

    /// Wants to one peer go out as one message while another is under way.
    pub(super) fn tell(&mut self, peer: PeerId, entries: Vec<Entry>) {
        if let Some(known) = self.peers.get_mut(&peer) {
            known.outbox.extend(entries);
            self.send_wants(peer);
        }
    }

    pub(super) fn send_wants(&mut self, peer: PeerId) {
        let Some(known) = self.peers.get_mut(&peer) else {
            return;
        };
        if known.in_flight.is_some() || known.outbox.is_empty() {
            return;
        }
        let count = known.outbox.len().min(MAX_WANTS);
        let entries: Vec<Entry> = known.outbox.drain(..count).collect();
        known.in_flight = Some(entries.clone());
        if entries.iter().any(|entry| entry.kind == EntryKind::Block) {
            self.expect_blocks(&peer);
        }
        let frame = Message {
            entries,
            ..Message::default()
        }
        .encode_frame();
        self.notify(
            peer,
            Command::Send {
                frame,
                kind: FrameKind::Wants,
            },
        );
    }

    pub(super) fn wants_left(&mut self, peer: PeerId) {
        if let Some(known) = self.peers.get_mut(&peer) {
            known.in_flight = None;
        }
        self.send_wants(peer);
    }

    pub(super) fn uses(&self, peer: &PeerId, connection: ConnectionId) -> bool {
        self.peers
            .get(peer)
            .is_some_and(|known| known.connections.first() == Some(&connection))
    }

    pub(super) fn notify(&mut self, peer_id: PeerId, command: Command) {
        if let Some(connection) = self.peers.get(&peer_id).and_then(|peer| peer.connections.first()) {
            self.notify_one(peer_id, *connection, command);
        }
    }

    fn notify_one(&mut self, peer_id: PeerId, connection: ConnectionId, command: Command) {
        self.out.push_back(ToSwarm::NotifyHandler {
            peer_id,
            handler: NotifyHandler::One(connection),
            event: ToHandler(command),
        });
    }

    /// The other side may use another connection than we do, so all are kept or none.
    pub(super) fn notify_all(&mut self, peer_id: PeerId, keep: Keep) {
        for connection in self
            .peers
            .get(&peer_id)
            .into_iter()
            .flat_map(|peer| &peer.connections)
        {
            let event = ToHandler(Command::Keep(keep));
            self.out.push_back(ToSwarm::NotifyHandler {
                peer_id,
                handler: NotifyHandler::One(*connection),
                event,
            });
        }
    }

    /// The handler of a new connection.
    pub(super) fn handler(&mut self, peer: PeerId) -> Handler {
        let known = self.lines.get(&peer).and_then(Weak::upgrade);
        let line = known.unwrap_or_else(|| {
            let line = Arc::new(Line::new(self.config.message, self.receiving.clone()));
            self.lines.insert(peer, Arc::downgrade(&line));
            line
        });
        let times = Times {
            message: self.config.message,
            quiet: self.config.quiet,
        };
        Handler::new(line, times, self.buffers.clone())
    }

    fn expect_blocks(&self, peer: &PeerId) {
        if let Some(line) = self.lines.get(peer).and_then(Weak::upgrade) {
            line.expect_blocks();
        }
    }

    /// Looks which peers read what they are sent, and makes those that do not give way.
    pub(super) fn keep_lines(&mut self) {
        let now = Instant::now();
        self.lines.retain(|_, line| line.strong_count() > 0);
        for (peer, line) in &self.lines {
            let Some(line) = line.upgrade() else { continue };
            self.ledger.on_taken(now, peer, line.written());
            if self.client.awaits_blocks(peer) {
                line.expect_blocks();
            }
        }
        while let Some(peer) = self.ledger.drop_quietest(now) {
            tracing::info!(%peer, "a peer does not read what it asked for: others are served first");
            self.counters.unread += 1;
            self.notify(peer, Command::DropReplies);
        }
    }

    pub(super) fn hang_up(&mut self, peer_id: PeerId) {
        self.out.push_back(ToSwarm::CloseConnection {
            peer_id,
            connection: CloseConnection::All,
        });
    }
}

impl Peer {
    /// Another connection is used from now on. Wants are asked anew, as far as they still are; cancels are not, and may not
    /// have arrived.
    fn keep_cancels(&mut self) {
        let mut entries = self.in_flight.take().unwrap_or_default();
        entries.append(&mut self.outbox);
        entries.retain(|entry| entry.kind == EntryKind::Cancel);
        self.outbox = entries;
    }
}
