//! Nodes with nothing but bitswap, over TCP, Noise and yamux.

use std::path::Path;
use std::time::Duration;

use cid::Cid;
use futures::{AsyncWriteExt, StreamExt};
use hanzod::content::bitswap::{self, Behaviour, Counters, Event, PROTOCOL};
use hanzod::content::unixfs::Layout;
use hanzod::content::{Config, Content, FetchRequest, Pin, open};
use libp2p::identity::Keypair;
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, PeerId, Stream, Swarm, SwarmBuilder, noise, tcp, yamux};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

pub(crate) const MIB: usize = 1 << 20;

/// A running node; its swarm ends when it is dropped.
pub(crate) struct Node {
    pub(crate) content: Content,
    pub(crate) peer: PeerId,
    pub(crate) address: Multiaddr,
    orders: mpsc::Sender<Order>,
    events: mpsc::Receiver<Event>,
    task: JoinHandle<()>,
}

enum Order {
    Dial(Multiaddr),
    Know(PeerId, Multiaddr),
    Disconnect(PeerId),
    Found(Cid, Vec<PeerId>),
    Counters(oneshot::Sender<Counters>),
}

impl Drop for Node {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Node {
    pub(crate) async fn start(root: &Path, config: bitswap::Config) -> Self {
        Self::start_with(root, config, 1 << 30).await
    }

    /// The same, with a store of at most `limit` bytes.
    pub(crate) async fn start_with(root: &Path, config: bitswap::Config, limit: u64) -> Self {
        let config = Config {
            root: root.to_owned(),
            limit,
            layout: Layout::default(),
            bitswap: config,
        };
        let (content, behaviour) = open(config).unwrap();
        let mut swarm = swarm(behaviour);
        let peer = *swarm.local_peer_id();
        let address = listen(&mut swarm).await;
        let (orders, inbox) = mpsc::channel(16);
        let (outbox, events) = mpsc::channel(64);
        let task = tokio::spawn(drive(swarm, inbox, outbox));
        Self {
            content,
            peer,
            address,
            orders,
            events,
            task,
        }
    }

    pub(crate) async fn dial(&self, other: &Self) {
        self.dial_at(other.address.clone()).await;
    }

    pub(crate) async fn dial_at(&self, address: Multiaddr) {
        self.order(Order::Dial(address)).await;
    }

    /// Tells the swarm another's address, as identify or the DHT would.
    pub(crate) async fn know(&self, other: &Self) {
        self.know_at(other.peer, other.address.clone()).await;
    }

    pub(crate) async fn know_at(&self, peer: PeerId, address: Multiaddr) {
        self.order(Order::Know(peer, address)).await;
    }

    pub(crate) async fn disconnect(&self, peer: PeerId) {
        self.order(Order::Disconnect(peer)).await;
    }

    pub(crate) async fn providers_found(&self, cid: Cid, peers: Vec<PeerId>) {
        self.order(Order::Found(cid, peers)).await;
    }

    pub(crate) async fn counters(&self) -> Counters {
        let (sender, receiver) = oneshot::channel();
        self.order(Order::Counters(sender)).await;
        receiver.await.unwrap()
    }

    /// The next event of bitswap.
    pub(crate) async fn event(&mut self) -> Event {
        tokio::time::timeout(Duration::from_secs(60), self.events.recv())
            .await
            .expect("no event")
            .unwrap()
    }

    async fn order(&self, order: Order) {
        self.orders
            .send(order)
            .await
            .unwrap_or_else(|_| panic!("the swarm has ended"));
    }
}

/// A peer without bitswap of its own, whose streams a test writes as it likes.
pub(crate) struct Stranger {
    pub(crate) peer: PeerId,
    control: libp2p_stream::Control,
}

impl Stranger {
    /// Connects to a node. Streams that the node opens are accepted, and nothing is read from them.
    pub(crate) fn connect(node: &Node) -> Self {
        let mut swarm = swarm(libp2p_stream::Behaviour::new());
        let mut control = swarm.behaviour().new_control();
        let peer = *swarm.local_peer_id();
        let mut incoming = control.accept(PROTOCOL).unwrap();
        swarm.dial(node.address.clone()).unwrap();
        tokio::spawn(async move { while swarm.next().await.is_some() {} });
        tokio::spawn(async move {
            let mut held = Vec::new();
            while let Some((_, stream)) = incoming.next().await {
                held.push(stream);
            }
        });
        Self { peer, control }
    }

    /// A stream to the node, once there is a connection.
    pub(crate) async fn open(&self, node: PeerId) -> Stream {
        let mut control = self.control.clone();
        loop {
            match control.open_stream(node, PROTOCOL).await {
                Ok(stream) => return stream,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Writes on a stream of its own for as long as the node takes it, and leaves it open.
    pub(crate) async fn begin(&self, node: PeerId, bytes: Vec<u8>) {
        let mut stream = self.open(node).await;
        tokio::spawn(async move {
            // The node may close it.
            let _ = stream.write_all(&bytes).await;
            let _ = stream.flush().await;
            tokio::time::sleep(Duration::from_secs(120)).await;
        });
    }
}

pub(crate) async fn until(node: &Node, done: impl Fn(&Counters) -> bool) {
    let counted = async {
        while !done(&node.counters().await) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), counted)
        .await
        .expect("it is noticed and counted");
}

pub(crate) fn swarm<B: libp2p::swarm::NetworkBehaviour>(behaviour: B) -> Swarm<B> {
    SwarmBuilder::with_existing_identity(Keypair::generate_ed25519())
        .with_tokio()
        .with_tcp(
            tcp::Config::default().nodelay(true),
            noise::Config::new,
            yamux::Config::default,
        )
        .unwrap()
        .with_behaviour(|_| behaviour)
        .unwrap()
        .with_swarm_config(|config| config.with_idle_connection_timeout(Duration::from_secs(5)))
        .build()
}

pub(crate) async fn listen<B: libp2p::swarm::NetworkBehaviour>(swarm: &mut Swarm<B>) -> Multiaddr {
    swarm.listen_on("/ip4/127.0.0.1/tcp/0".parse().unwrap()).unwrap();
    loop {
        if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
            return address.with(libp2p::multiaddr::Protocol::P2p(*swarm.local_peer_id()));
        }
    }
}

pub(crate) fn request(root: Cid, providers: &[&Node]) -> FetchRequest {
    let providers = providers.iter().map(|node| node.peer).collect();
    FetchRequest {
        root,
        providers,
        deadline: Duration::from_secs(90),
        pin: Pin::No,
    }
}

/// Bytes that do not repeat from block to block.
pub(crate) fn noise_bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

async fn drive(mut swarm: Swarm<Behaviour>, mut inbox: mpsc::Receiver<Order>, outbox: mpsc::Sender<Event>) {
    loop {
        tokio::select! {
            event = swarm.select_next_some() => {
                if let SwarmEvent::Behaviour(event) = event {
                    let _ = outbox.try_send(event);
                }
            }
            order = inbox.recv() => match order {
                Some(order) => obey(&mut swarm, order),
                None => return,
            },
        }
    }
}

fn obey(swarm: &mut Swarm<Behaviour>, order: Order) {
    match order {
        Order::Dial(address) => swarm.dial(address).unwrap(),
        Order::Know(peer, address) => swarm.add_peer_address(peer, address),
        Order::Disconnect(peer) => _ = swarm.disconnect_peer_id(peer),
        Order::Found(cid, peers) => swarm.behaviour_mut().providers_found(cid, peers),
        Order::Counters(sender) => _ = sender.send(swarm.behaviour().counters()),
    }
}
