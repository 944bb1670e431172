//! The task that owns the swarm. It translates: a swarm event or a command in, calls on the behaviours and
//! [`NetEvent`]s out. What to think of it all is for others.

mod bootstrap;
mod commands;
mod dht;
mod greet;
mod reach;
mod swarm_events;

use self::bootstrap::Bootstrap;
use self::dht::Dht;
use self::reach::Reaching;
use super::behaviour::{Behaviour, Parts};
use super::command::{Command, Done};
use super::direct::Doors;
use super::hello::{Hello, VERSION};
use super::peers::PeerTable;
use super::{Config, EVENT_QUEUE, NetEvent, NetHandle, SYNC_DEADLINE, StartError, transport};
use crate::content::bitswap;
use crate::identity::{NodeIdentity, PeerIdentity};
use crate::metrics::Metrics;
use crate::role::Roles;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use libp2p::request_response::{OutboundRequestId, ResponseChannel};
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId, Swarm};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

const COMMAND_QUEUE: usize = 256;
/// How often lost bootstrap connections are renewed and waits given up on are forgotten.
const TICK: Duration = Duration::from_secs(5);
/// How long a refused peer is not called again.
const REFUSED_FOR: Duration = Duration::from_secs(120);
/// Sync requests of others that wait for an answer, all peers together.
const MAX_SYNC_WAITING: usize = 256;

/// What the network starts from.
#[derive(Debug)]
pub struct Setup {
    /// The `[network]` section.
    pub config: Config,
    /// What this node does.
    pub roles: Roles,
    /// Who this node is.
    pub identity: Arc<NodeIdentity>,
    /// Where things are counted.
    pub metrics: Metrics,
    /// Addresses to join through: the configuration's and the genesis file's.
    pub bootstrap: Vec<Multiaddr>,
    /// Exchanges the content store's blocks.
    pub content: bitswap::Behaviour,
}

/// A started network, before its task runs.
pub struct Driver {
    swarm: Swarm<Behaviour>,
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<NetEvent>,
    identity: Arc<NodeIdentity>,
    metrics: Metrics,
    hello: Hello,
    bootstrap: Bootstrap,
    peers: PeerTable,
    dht: Dht,
    reaching: Reaching,
    waiting: Waiting,
    /// Peers of other networks, and when they were refused.
    refused: HashMap<PeerId, tokio::time::Instant>,
    /// Refused peers whose connections are about to be closed, and since when.
    leaving: HashMap<PeerId, tokio::time::Instant>,
    replies: FuturesUnordered<BoxFuture<'static, SyncReply>>,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("local", self.swarm.local_peer_id())
            .finish_non_exhaustive()
    }
}

/// Who waits for what. Every waiter has a deadline of its own; [`Driver::tick`] forgets those that gave up.
#[derive(Default)]
struct Waiting {
    connection: HashMap<PeerId, Vec<Done<()>>>,
    record: HashMap<PeerId, Vec<Done<Arc<PeerIdentity>>>>,
    /// Peers whose known addresses failed, so that the DHT was asked for others.
    searched: HashSet<PeerId>,
    /// Peers that the relays were tried for.
    relayed: HashSet<PeerId>,
    sync: HashMap<OutboundRequestId, Done<Vec<u8>>>,
    /// Connections whose peer is to be sent away once the words of refusal are delivered.
    farewell: HashMap<libp2p::request_response::InboundRequestId, (PeerId, ConnectionId)>,
}

struct SyncReply {
    channel: ResponseChannel<Vec<u8>>,
    bytes: Option<Vec<u8>>,
}

/// What [`Driver::start`] hands out.
#[allow(missing_debug_implementations)] // libp2p's control has none
pub struct Started {
    /// The task, to be run.
    pub driver: Driver,
    /// Talks to it.
    pub handle: NetHandle,
    /// Hears from it.
    pub events: mpsc::Receiver<NetEvent>,
    /// Sends it what happens on sealed links.
    pub event_sender: mpsc::Sender<NetEvent>,
    /// Opens and accepts streams.
    pub streams: libp2p_stream::Control,
    /// Where links' direct sockets come in.
    pub doors: Doors,
}

impl Driver {
    /// Builds the swarm, listens, and starts to join.
    ///
    /// # Errors
    /// When a port is in use or a protocol cannot be set up.
    pub fn start(setup: Setup) -> Result<Started, StartError> {
        let key = setup
            .identity
            .keypair()
            .map_err(|e| StartError::Protocols(e.to_string()))?;
        let parts = Parts {
            config: &setup.config,
            roles: &setup.roles,
            genesis: setup.identity.genesis(),
        };
        let hello = own_hello(&setup)?;
        let doors = Doors::default();
        let mut swarm = transport::build(key, &parts, setup.content, &doors)?;
        transport::listen(&mut swarm, &setup.config.listen)?;
        for address in &setup.config.external {
            swarm.add_external_address(address.clone());
        }
        let (command_sender, commands) = mpsc::channel(COMMAND_QUEUE);
        let (events, event_receiver) = mpsc::channel(EVENT_QUEUE);
        let local = *swarm.local_peer_id();
        let handle = NetHandle::new(command_sender, local);
        let streams = swarm.behaviour().streams.new_control();
        let mut driver = Self {
            swarm,
            commands,
            events: events.clone(),
            identity: setup.identity,
            metrics: setup.metrics,
            hello,
            bootstrap: Bootstrap::new(setup.bootstrap, local),
            peers: PeerTable::default(),
            dht: Dht::default(),
            reaching: Reaching::new(&setup.config, &setup.roles),
            waiting: Waiting::default(),
            refused: HashMap::new(),
            leaving: HashMap::new(),
            replies: FuturesUnordered::new(),
        };
        driver.begin_reach();
        driver.join();
        Ok(Started {
            driver,
            handle,
            events: event_receiver,
            event_sender: events,
            streams,
            doors,
        })
    }

    /// Runs until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                event = self.swarm.select_next_some() => self.on_swarm(event),
                Some(reply) = self.replies.next() => self.on_reply(reply),
                Some(command) = self.commands.recv() => self.on_command(command),
                _ = ticks.tick() => self.tick(),
            }
        }
        tracing::debug!("the network task has stopped");
    }

    /// Sends an event on without waiting: the swarm must go on. What does not fit is counted and lost.
    fn emit(&self, event: NetEvent) -> bool {
        let kind = match &event {
            NetEvent::PeerJoined(_) | NetEvent::PeerLeft(_) => "peer",
            NetEvent::Gossip { .. } => "gossip",
            NetEvent::SyncRequest { .. } => "sync",
            NetEvent::Sealed { .. } | NetEvent::LinkOffence { .. } | NetEvent::LinkFailed { .. } => "link",
        };
        let sent = self.events.try_send(event).is_ok();
        if !sent {
            self.metrics.add("gym_net_dropped_total", &[("kind", kind)], 1);
        }
        sent
    }

    fn on_reply(&mut self, reply: SyncReply) {
        if let Some(bytes) = reply.bytes {
            // A requester that went away needs no answer.
            let _ = self
                .swarm
                .behaviour_mut()
                .sync
                .send_response(reply.channel, bytes);
        }
    }

    /// Passes a sync request on, and its answer back when it comes.
    fn on_sync_request(&mut self, peer: PeerId, bytes: Vec<u8>, channel: ResponseChannel<Vec<u8>>) {
        if !self.peers.is_member(&peer) || self.replies.len() >= MAX_SYNC_WAITING {
            self.metrics.add("gym_net_dropped_total", &[("kind", "sync")], 1);
            return;
        }
        let (reply, answer) = oneshot::channel();
        if self.emit(NetEvent::SyncRequest {
            peer: super::peer_bytes(&peer),
            bytes,
            reply,
        }) {
            self.replies.push(Box::pin(async move {
                let bytes = tokio::time::timeout(SYNC_DEADLINE, answer).await;
                SyncReply {
                    channel,
                    bytes: bytes.ok().and_then(Result::ok),
                }
            }));
        }
    }

    fn tick(&mut self) {
        self.waiting.forget_abandoned();
        self.dht.forget_abandoned();
        self.swarm
            .behaviour_mut()
            .kad
            .store_mut()
            .sweep(std::time::Instant::now());
        self.send_away_the_refused();
        self.refused.retain(|_, since| since.elapsed() < REFUSED_FOR);
        self.join();
        self.tick_reach();
        self.metrics
            .set("gym_peers", &[], self.peers.all().count() as u64);
        self.metrics.set("gym_members", &[], self.peers.members() as u64);
        self.count_content();
    }
}

fn own_hello(setup: &Setup) -> Result<Hello, StartError> {
    let record = setup.identity.record_bytes().to_vec();
    Ok(Hello {
        version: VERSION,
        genesis: setup.identity.genesis(),
        roles: setup.roles.to_bits(),
        record: record
            .try_into()
            .map_err(|e| StartError::Protocols(format!("identity record: {e}")))?,
        agent: super::behaviour::AGENT.to_owned().try_into().unwrap_or_default(),
        started: crate::job::unix_ms(),
    })
}

impl Waiting {
    fn forget_abandoned(&mut self) {
        self.connection.retain(|_, waiters| retain_open(waiters));
        self.record.retain(|_, waiters| retain_open(waiters));
        let (connection, record) = (&self.connection, &self.record);
        let is_wanted = |peer: &PeerId| connection.contains_key(peer) || record.contains_key(peer);
        self.searched.retain(is_wanted);
        self.relayed.retain(is_wanted);
    }

    fn wants(&self, peer: &PeerId) -> bool {
        self.connection.contains_key(peer) || self.record.contains_key(peer)
    }
}

fn retain_open<T>(waiters: &mut Vec<Done<T>>) -> bool {
    waiters.retain(|waiter| !waiter.is_closed());
    !waiters.is_empty()
}

/// Gives the same answer to all; who stopped waiting misses nothing.
fn answer_all<T: Clone>(waiters: Option<Vec<Done<T>>>, answer: &Result<T, super::NetError>) {
    for waiter in waiters.into_iter().flatten() {
        let _ = waiter.send(answer.clone());
    }
}
