//! The libp2p behaviour: carries events to the two machines and their actions out.

mod links;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use cid::Cid;
use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::swarm::behaviour::{ConnectionClosed, ConnectionEstablished, DialFailure};
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{
    CloseConnection, ConnectionDenied, ConnectionId, DialError, FromSwarm, NetworkBehaviour, PeerAddresses,
    THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Sleep;

use crate::content::bitswap::buffers::Buffers;
use crate::content::bitswap::client::{Action, Client, Event as ClientEvent};
use crate::content::bitswap::fetcher::{Arrival, Command};
use crate::content::bitswap::handler::{
    Command as HandlerCommand, FrameKind, FromHandler, Handler, Keep, Report, ToHandler,
};
use crate::content::bitswap::jobs::{self, Done};
use crate::content::bitswap::ledger::Ledger;
use crate::content::bitswap::line::{Line, Receiving};
use crate::content::bitswap::message::{Entry, Message};
use crate::content::bitswap::reply::Reply;
use crate::content::bitswap::{Config, Counters, Event, Fetcher, MAX_WANTS, SessionId};
use crate::content::store::Store;

/// Replies being read from disk at once.
const MAX_ANSWERS: usize = 8;
/// Look-ups under way for people.
const MAX_FINDERS: usize = 64;
/// How often sessions and connections are looked over.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

type Out = ToSwarm<Event, ToHandler>;

/// Bitswap for a swarm. Must be polled inside a tokio runtime.
#[derive(Debug)]
pub struct Behaviour {
    config: Config,
    store: Arc<Store>,
    client: Client,
    ledger: Ledger,
    commands: mpsc::Receiver<Command>,
    sessions: BTreeMap<SessionId, mpsc::Sender<Arrival>>,
    /// People who want to know who has something.
    finders: Vec<(Cid, oneshot::Sender<Vec<PeerId>>)>,
    peers: BTreeMap<PeerId, Peer>,
    /// Where peers said they are, for dials of our own.
    addresses: PeerAddresses,
    /// Memory of messages that come and go.
    buffers: Buffers,
    /// What the connections of each peer share, held by their handlers.
    lines: BTreeMap<PeerId, Weak<Line>>,
    receiving: Receiving,
    jobs: JoinSet<Done>,
    answers: usize,
    out: VecDeque<Out>,
    timer: Option<Pin<Box<Sleep>>>,
    housekeeping: Instant,
    counters: Counters,
}

/// A connected peer.
#[derive(Debug, Default)]
struct Peer {
    /// Connections, the one in use first.
    connections: Vec<ConnectionId>,
    /// Wants and cancels to send once the frame before has left.
    outbox: Vec<Entry>,
    /// The frame before.
    in_flight: Option<Vec<Entry>>,
    keep: Option<Keep>,
    /// Its wants that were over the limit.
    dropped_wants: u64,
}

impl Behaviour {
    /// A behaviour that serves from and fetches into `store`, and the handle to ask it for blocks.
    #[must_use]
    pub fn new(store: Arc<Store>, config: Config) -> (Self, Fetcher) {
        let (fetcher, commands) = Fetcher::new();
        let behaviour = Self {
            config,
            store,
            client: Client::new(config, rand::random()),
            ledger: Ledger::new(config.replies),
            commands,
            sessions: BTreeMap::new(),
            finders: Vec::new(),
            peers: BTreeMap::new(),
            addresses: PeerAddresses::default(),
            buffers: Buffers::default(),
            lines: BTreeMap::new(),
            receiving: Receiving::default(),
            jobs: JoinSet::new(),
            answers: 0,
            out: VecDeque::new(),
            timer: None,
            housekeeping: Instant::now(),
            counters: Counters::default(),
        };
        (behaviour, fetcher)
    }

    /// The answer to [`Event::FindProviders`]. They are dialled, and asked by every fetch that wants `cid`.
    pub fn providers_found(&mut self, cid: Cid, peers: Vec<PeerId>) {
        for (_, found) in self.finders.extract_if(.., |(wanted, _)| *wanted == cid) {
            let _ = found.send(peers.clone());
        }
        self.client_event(ClientEvent::Found { cid, peers });
    }

    /// Whom those who want `cid` ask already.
    #[must_use]
    pub fn providers_of(&self, cid: &Cid) -> BTreeSet<PeerId> {
        self.client.providers_of(cid)
    }

    /// What has passed since the start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            receiving: self.receiving.bytes() as u64,
            ..self.counters
        }
    }

    fn client_event(&mut self, event: ClientEvent) {
        let mut actions = Vec::new();
        self.client.handle(Instant::now(), event, &mut actions);
        self.timer = None;
        actions.into_iter().for_each(|action| self.run(action));
    }

    fn run(&mut self, action: Action) {
        match action {
            Action::Tell { peer, entries } => self.tell(peer, entries),
            Action::Dial(peer) => {
                let condition = PeerCondition::DisconnectedAndNotDialing;
                let opts = DialOpts::peer_id(peer).condition(condition).build();
                self.out.push_back(ToSwarm::Dial { opts });
            }
            Action::Find(cid) => self
                .out
                .push_back(ToSwarm::GenerateEvent(Event::FindProviders { cid })),
            Action::Store { blocks } => jobs::store(&mut self.jobs, &self.store, blocks),
            Action::Deliver { session, arrival } => self.deliver(session, arrival),
            Action::Penalise { peer, offence } => {
                tracing::warn!(%peer, %offence, "closing the connection to a peer that broke bitswap");
                self.counters.offences += 1;
                self.out
                    .push_back(ToSwarm::GenerateEvent(Event::Offence { peer, offence }));
                self.out.push_back(ToSwarm::CloseConnection {
                    peer_id: peer,
                    connection: CloseConnection::All,
                });
            }
            Action::Duplicate => self.counters.duplicates += 1,
            Action::Stalled(peer) => {
                tracing::info!(%peer, after = ?self.config.stall, "a peer sends none of the blocks it was asked for");
                self.counters.stalls += 1;
            }
        }
    }

    fn deliver(&mut self, session: SessionId, arrival: Arrival) {
        if let Some(arrivals) = self.sessions.get(&session)
            && arrivals.try_send(arrival).is_err()
        {
            // Gone, or over the number of wants it may have: its deadline ends it.
            self.sessions.remove(&session);
        }
    }

    fn on_report(&mut self, peer: PeerId, connection: ConnectionId, report: Report) {
        match report {
            Report::Message(message) => self.on_message(peer, message),
            Report::Progress => self.client_event(ClientEvent::Progress(peer)),
            Report::Unsupported => self.client_event(ClientEvent::Mute(peer)),
            Report::Slow(after) => {
                tracing::info!(%peer, ?after, "a peer began a message and did not finish it: its stream is closed");
                self.counters.slow += 1;
            }
            Report::Uncalled(bytes) => {
                tracing::info!(%peer, bytes, "a peer that was asked for nothing sends a large message: its stream is closed");
                self.counters.uncalled += 1;
            }
            Report::Misconduct(error) => {
                self.client_event(ClientEvent::Misconduct {
                    peer,
                    offence: error.into(),
                });
            }
            // What happened on a connection that is not in use any more was dealt with when that changed.
            Report::Sent(_) | Report::Lost(_) if !self.uses(&peer, connection) => {}
            Report::Sent(FrameKind::Reply) => self.ledger.on_sent(Instant::now(), peer),
            Report::Lost(FrameKind::Reply) => {
                self.counters.unread += 1;
                self.ledger.on_lost(Instant::now(), peer);
            }
            Report::Sent(FrameKind::Wants) => self.wants_left(peer),
            Report::Lost(FrameKind::Wants) => {
                self.client_event(ClientEvent::Lost(peer));
                self.wants_left(peer);
            }
        }
    }

    fn on_message(&mut self, peer: PeerId, message: Message) {
        if self.client.is_banned(Instant::now(), &peer) {
            return;
        }
        let dropped = self.ledger.on_entries(peer, message.scope, &message.entries);
        self.on_dropped(peer, dropped as u64);
        if !message.presences.is_empty() {
            self.client_event(ClientEvent::Presences {
                peer,
                presences: message.presences,
            });
        }
        if !message.blocks.is_empty() {
            self.client_event(ClientEvent::Blocks {
                peer,
                blocks: message.blocks,
            });
        }
    }

    /// Said once for as long as the peer stays: it may go on and on.
    fn on_dropped(&mut self, id: PeerId, dropped: u64) {
        let Some(peer) = self.peers.get_mut(&id).filter(|_| dropped > 0) else {
            return;
        };
        if peer.dropped_wants == 0 {
            tracing::info!(peer = %id, dropped, "a peer wants more than {MAX_WANTS} blocks at once: the rest is dropped");
        }
        peer.dropped_wants += dropped;
        self.counters.dropped_wants += dropped;
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Open {
                session,
                providers,
                arrivals,
            } => {
                self.sessions.insert(session, arrivals);
                self.client_event(ClientEvent::Open { session, providers });
            }
            Command::Want { session, wanted } => self.client_event(ClientEvent::Want { session, wanted }),
            Command::Providers { session, peers } => {
                self.client_event(ClientEvent::Providers { session, peers });
            }
            Command::Close { session } => self.close(session),
            Command::Provide { cid, done } => self
                .out
                .push_back(ToSwarm::GenerateEvent(Event::Provide { cid, done })),
            Command::StopProviding { cid } => {
                self.out
                    .push_back(ToSwarm::GenerateEvent(Event::StopProviding { cid }));
            }
            Command::Find { cid, found } => self.find(cid, found),
            Command::Added => self.ledger.look_again(),
        }
    }

    /// Beyond the bound the question is dropped, which its asker sees.
    fn find(&mut self, cid: Cid, found: oneshot::Sender<Vec<PeerId>>) {
        self.finders.retain(|(_, found)| !found.is_closed());
        if self.finders.len() < MAX_FINDERS {
            self.finders.push((cid, found));
            self.out
                .push_back(ToSwarm::GenerateEvent(Event::FindProviders { cid }));
        }
    }

    fn close(&mut self, session: SessionId) {
        self.sessions.remove(&session);
        self.client_event(ClientEvent::Close { session });
    }

    fn on_done(&mut self, done: Done) {
        match done {
            Done::Stored(results) => {
                for (cid, result) in &results {
                    if let Ok(size) = result {
                        self.counters.blocks_received += 1;
                        self.counters.bytes_received += size;
                        self.ledger.on_block(cid);
                    }
                }
                self.client_event(ClientEvent::Stored(results));
            }
            Done::Answered {
                peer,
                answered,
                reply,
            } => {
                self.answers -= 1;
                let reply = reply.filter(|_| self.peers.contains_key(&peer));
                let bytes = reply.as_ref().map(|reply| reply.frame.len());
                self.ledger.on_answered(Instant::now(), peer, &answered, bytes);
                if let Some(reply) = reply {
                    self.send_reply(peer, reply);
                }
            }
        }
    }

    fn send_reply(&mut self, peer: PeerId, reply: Reply) {
        self.counters.blocks_sent += reply.blocks;
        self.counters.bytes_sent += reply.bytes;
        self.notify(
            peer,
            HandlerCommand::Send {
                frame: reply.frame,
                kind: FrameKind::Reply,
            },
        );
    }

    fn begin_answers(&mut self) {
        while self.answers < MAX_ANSWERS {
            let Some(turn) = self.ledger.next_turn(Instant::now()) else {
                return;
            };
            self.answers += 1;
            jobs::answer(&mut self.jobs, &self.store, &self.buffers, turn);
        }
    }

    fn keep_house(&mut self) {
        self.housekeeping = Instant::now();
        let closed: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|(_, arrivals)| arrivals.is_closed())
            .map(|(id, _)| *id)
            .collect();
        closed.into_iter().for_each(|session| self.close(session));
        if self.sessions.is_empty() && self.answers == 0 {
            self.buffers.clear();
        }
        self.keep_lines();
        let mut changed = Vec::new();
        for (id, peer) in &mut self.peers {
            let needed = self.client.needs(id) || self.ledger.has_wants(id);
            let keep = if needed { Keep::Connection } else { Keep::Nothing };
            if peer.keep.replace(keep) != Some(keep) {
                changed.push((*id, keep));
            }
        }
        changed
            .into_iter()
            .for_each(|(peer, keep)| self.notify_all(peer, keep));
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self.timer.get_or_insert_with(|| {
            let now = Instant::now();
            let housekeeping = (
                self.housekeeping + HOUSEKEEPING,
                "sessions and connections are looked over",
            );
            let (at, why) = self
                .client
                .deadline(now)
                .into_iter()
                .chain([housekeeping])
                .min()
                .unwrap_or(housekeeping);
            tracing::trace!(why, after = ?at.saturating_duration_since(now), "bitswap waits");
            Box::pin(tokio::time::sleep_until(at.into()))
        });
        timer.as_mut().poll(cx).map(|()| self.timer = None)
    }

    fn on_timer(&mut self) {
        self.client_event(ClientEvent::Tick);
        if self.housekeeping.elapsed() >= HOUSEKEEPING {
            self.keep_house();
        }
    }

    /// Takes in one thing that happened, if any did.
    fn poll_inputs(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Poll::Ready(Some(done)) = self.jobs.poll_join_next(cx) {
            match done {
                Ok(done) => self.on_done(done),
                Err(error) => tracing::error!(%error, "a job of the content store failed"),
            }
            return Poll::Ready(());
        }
        if let Poll::Ready(Some(command)) = self.commands.poll_recv(cx) {
            self.on_command(command);
            return Poll::Ready(());
        }
        self.poll_timer(cx).map(|()| self.on_timer())
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Event;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler(peer))
    }

    fn handle_pending_outbound_connection(
        &mut self,
        _: ConnectionId,
        peer: Option<PeerId>,
        _: &[Multiaddr],
        _: Endpoint,
    ) -> Result<Vec<Multiaddr>, ConnectionDenied> {
        Ok(peer
            .map(|peer| self.addresses.get(&peer).collect())
            .unwrap_or_default())
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler(peer))
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "most events concern other behaviours"
    )]
    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        self.addresses.on_swarm_event(&event);
        match event {
            FromSwarm::ConnectionEstablished(ConnectionEstablished {
                peer_id,
                connection_id,
                ..
            }) => {
                self.on_connected(peer_id, connection_id);
            }
            FromSwarm::ConnectionClosed(ConnectionClosed {
                peer_id,
                connection_id,
                ..
            }) => {
                self.on_closed(peer_id, connection_id);
            }
            // When the condition was false somebody else's dial is under way, and its end is reported too.
            FromSwarm::DialFailure(DialFailure {
                peer_id: Some(peer),
                error,
                ..
            }) if !matches!(error, DialError::DialPeerConditionFalse(_)) => {
                self.client_event(ClientEvent::DialFailed(peer));
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        FromHandler(report): THandlerOutEvent<Self>,
    ) {
        self.on_report(peer, connection, report);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        loop {
            self.begin_answers();
            if let Some(out) = self.out.pop_front() {
                return Poll::Ready(out);
            }
            if self.poll_inputs(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}
