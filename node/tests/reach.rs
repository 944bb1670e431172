//! Who can be reached, between real swarms on loopback: tested by AutoNAT, kept from announcing what nobody reaches, and
//! reached through a relay where there is no other way.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use cid::Cid;
use futures::StreamExt;
use gym_protocol::ids::{CidBytes, Hash32, PeerBytes};
use gym_protocol::message::LinkHeader;
use hanzod::connected::{Connected, default_limits};
use hanzod::content::bitswap::Announcement;
use hanzod::content::command::{Command, Moved};
use hanzod::content::{self, Content, FetchRequest, Pin, bitswap, unixfs::Layout};
use hanzod::home::Home;
use hanzod::identity::NodeIdentity;
use hanzod::metrics::Metrics;
use hanzod::net::{self, Mdns, NetEvent, Reach, Reachability};
use hanzod::role::{Role, Roles};
use libp2p::identity::Keypair;
use libp2p::kad::store::{MemoryStore, RecordStore};
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{Multiaddr, PeerId, StreamProtocol, SwarmBuilder, autonat, identify, kad, noise, tcp, yamux};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(90);

struct Node {
    at: Connected,
    content: Content,
    peer: PeerId,
    stop: CancellationToken,
    _tasks: JoinSet<()>,
    _dir: tempfile::TempDir,
}

/// Where a node listens.
#[derive(Clone, Copy)]
enum Listens {
    OnLoopback,
    Nowhere,
}

impl Node {
    fn start(role: Role, listens: Listens, reachability: Reachability, bootstrap: &[Multiaddr]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::locate(Some(dir.path())).unwrap();
        home.create().unwrap();
        let identity = Arc::new(NodeIdentity::create(&home, Hash32([7; 32])).unwrap());
        let (content, exchange) = content::open(content::Config {
            root: home.content(),
            limit: 1 << 30,
            layout: Layout::default(),
            bitswap: bitswap::Config::default(),
        })
        .unwrap();
        let listen = match listens {
            Listens::OnLoopback => vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()],
            Listens::Nowhere => Vec::new(),
        };
        let setup = net::Setup {
            config: net::Config {
                listen,
                reachability,
                mdns: Mdns::Off,
                ..net::Config::default()
            },
            roles: Roles::from_iter([role]),
            identity,
            metrics: Metrics::default(),
            bootstrap: bootstrap.to_vec(),
            content: exchange,
        };
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let at = Connected::start(setup, default_limits(), &stop, &mut tasks).unwrap();
        Self {
            peer: at.net.local_peer(),
            at,
            content,
            stop,
            _tasks: tasks,
            _dir: dir,
        }
    }

    async fn bootstrap() -> (Self, Multiaddr) {
        let node = Self::start(Role::Bootstrap, Listens::OnLoopback, Reachability::Auto, &[]);
        let address = loop {
            if let Some(address) = node.at.net.listeners().await.unwrap().first() {
                break address.clone();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        (node, address)
    }

    async fn until_reached(&self, wanted: Reach) {
        let reached = async {
            while self.at.net.reach().await.unwrap().reach != wanted {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, reached).await.is_err() {
            panic!("not {wanted:?} but {:?}", self.at.net.reach().await);
        }
    }

    /// The addresses at which `peer` is connected, once they are as wanted.
    async fn until_connected(
        &self,
        peer: &PeerBytes,
        wanted: impl Fn(&[Multiaddr]) -> bool,
    ) -> Vec<Multiaddr> {
        let connected = async {
            loop {
                let info = self.at.net.peer(peer).await.unwrap();
                let addresses = info.map(|info| info.addresses).unwrap_or_default();
                if wanted(&addresses) {
                    return addresses;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, connected)
            .await
            .expect("connected as wanted")
    }

    /// Waits until a look-up from here finds `peer`.
    async fn until_provided(&self, cid: &Cid, peer: PeerId) {
        let found = async {
            let key = cid.hash().to_bytes();
            while !self
                .at
                .net
                .providers(key.clone(), 4)
                .await
                .unwrap()
                .contains(&peer)
            {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(PATIENCE, found)
            .await
            .expect("it is announced");
    }

    /// Sends bytes over a sealed link and sees them arrive.
    async fn send_sealed(&self, to: &mut Self, bytes: Vec<u8>) {
        let header = LinkHeader {
            kind: 0,
            job: CidBytes::new(vec![1; 36]).unwrap(),
            round: 3,
            view: 0,
            manifest: Hash32([2; 32]),
            phase: 2,
            step: 0,
            chunk: 0,
            segment: 0,
            slot: 0,
            sender: self.at.identity.peer(),
            receiver: to.at.identity.peer(),
        };
        let sent = self.at.links.send(header.receiver.clone(), header, bytes.clone());
        let arrived = async {
            loop {
                if let NetEvent::Sealed { payload, .. } = to.at.events.recv().await.unwrap() {
                    return payload;
                }
            }
        };
        let (sent, arrived) = tokio::time::timeout(PATIENCE, async { tokio::join!(sent, arrived) })
            .await
            .expect("a sealed frame");
        sent.unwrap();
        assert_eq!(arrived, bytes);
    }

    async fn fetch(&self, root: Cid, providers: Vec<PeerId>) {
        let request = FetchRequest {
            root,
            providers,
            deadline: PATIENCE,
            pin: Pin::No,
        };
        self.content.fetch_dag(request).finish().await.unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn is_circuit(address: &Multiaddr) -> bool {
    address.to_string().contains("/p2p-circuit")
}

/// A stranger that keeps the DHT and tests others' addresses, and relays nothing.
struct Tester {
    address: Multiaddr,
    questions: mpsc::Sender<(Cid, oneshot::Sender<Vec<PeerId>>)>,
}

#[derive(NetworkBehaviour)]
struct TesterBehaviour {
    identify: identify::Behaviour,
    kad: kad::Behaviour<MemoryStore>,
    autonat: autonat::v2::server::Behaviour,
}

impl Tester {
    async fn start() -> Self {
        let mut swarm = SwarmBuilder::with_existing_identity(Keypair::generate_ed25519())
            .with_tokio()
            .with_tcp(tcp::Config::default(), noise::Config::new, yamux::Config::default)
            .unwrap()
            .with_behaviour(|key| {
                let local = key.public().to_peer_id();
                let config = kad::Config::new(StreamProtocol::new("/ipfs/kad/1.0.0"));
                let mut kad = kad::Behaviour::with_config(local, MemoryStore::new(local), config);
                kad.set_mode(Some(kad::Mode::Server));
                TesterBehaviour {
                    identify: identify::Behaviour::new(identify::Config::new(
                        "ipfs/0.1.0".into(),
                        key.public(),
                    )),
                    kad,
                    autonat: autonat::v2::server::Behaviour::default(),
                }
            })
            .unwrap()
            .with_swarm_config(|config| config.with_idle_connection_timeout(PATIENCE))
            .build();
        swarm.listen_on("/ip4/127.0.0.1/tcp/0".parse().unwrap()).unwrap();
        let address = loop {
            if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
                break address.with_p2p(*swarm.local_peer_id()).unwrap();
            }
        };
        let (questions, mut asked) = mpsc::channel::<(Cid, oneshot::Sender<Vec<PeerId>>)>(4);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = swarm.select_next_some() => {}
                    question = asked.recv() => {
                        let Some((cid, answer)) = question else { return };
                        let key = kad::RecordKey::new(&cid.hash().to_bytes());
                        let found = swarm.behaviour_mut().kad.store_mut().providers(&key);
                        let _ = answer.send(found.into_iter().map(|record| record.provider).collect());
                    }
                }
            }
        });
        Self { address, questions }
    }

    /// Who has put a provider record for `cid` here.
    async fn providers(&self, cid: Cid) -> Vec<PeerId> {
        let (answer, answered) = oneshot::channel();
        self.questions.send((cid, answer)).await.unwrap();
        answered.await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_reaches_is_not_announced() {
    let tester = Tester::start().await;
    let join = [tester.address.clone()];
    let reached = Node::start(Role::Worker, Listens::OnLoopback, Reachability::Tested, &join);
    // Its only address is the port that its dial left from, where nobody answers.
    let hidden = Node::start(Role::Worker, Listens::Nowhere, Reachability::Tested, &join);
    let bytes = vec![5; 1000];
    let root = reached
        .content
        .add_bytes(bytes.clone(), Pin::No)
        .await
        .unwrap()
        .cid;
    hidden.content.add_bytes(bytes, Pin::No).await.unwrap();
    for node in [&reached, &hidden] {
        assert_eq!(node.content.provide(root).await.unwrap(), Announcement::Waiting);
        assert_eq!(node.at.net.reach().await.unwrap().reach, Reach::Unknown);
    }
    reached.until_reached(Reach::Public).await;
    hidden.until_reached(Reach::Private).await;
    let (seen, unseen) = (
        reached.at.net.reach().await.unwrap(),
        hidden.at.net.reach().await.unwrap(),
    );
    assert_eq!((seen.dht, unseen.dht), ("server", "client"));
    assert_eq!(unseen.waiting, 1);
    assert!(unseen.reach.advice().unwrap().contains("--external"));
    assert_eq!(unseen.to_json()["provides"], false);
    let announced = async {
        while tester.providers(root).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, announced)
        .await
        .expect("the node that is reached announces");
    // What is asked for later is not announced either.
    let order = Command::Provide {
        cid: root.to_string(),
    };
    let meter = tokio::sync::watch::channel(Moved::default()).0;
    let told = hidden.content.run(order, meter).await.unwrap();
    assert_eq!(told["announced"], false);
    assert!(
        told["reason"]
            .as_str()
            .unwrap()
            .contains("once others can reach this node")
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(tester.providers(root).await, [reached.peer]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_laboratory_needs_no_tests() {
    let (_hub, join) = Node::bootstrap().await;
    let join = [join];
    let giver = Node::start(Role::Worker, Listens::OnLoopback, Reachability::Auto, &join);
    let taker = Node::start(Role::Worker, Listens::OnLoopback, Reachability::Auto, &join);
    let root = giver.content.add_bytes(vec![6; 1000], Pin::No).await.unwrap().cid;
    giver
        .until_connected(&taker.at.identity.peer(), |at| !at.is_empty())
        .await;
    assert!(giver.content.provide(root).await.unwrap().is_begun());
    let reach = giver.at.net.reach().await.unwrap();
    assert_eq!((reach.reach, reach.dht), (Reach::Local, "server"));
    taker.until_provided(&root, giver.peer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_listens_on_nothing_is_reached_through_a_relay() {
    let (hub, join) = Node::bootstrap().await;
    let join = [join];
    // Neither can reach the other directly.
    let mut one = Node::start(Role::Worker, Listens::Nowhere, Reachability::Tested, &join);
    let other = Node::start(Role::Worker, Listens::Nowhere, Reachability::Private, &join);
    one.until_reached(Reach::Relayed).await;
    other.until_reached(Reach::Relayed).await;
    let reach = one.at.net.reach().await.unwrap();
    assert_eq!(reach.dht, "client");
    assert!(is_circuit(&reach.relays[0]), "{reach:?}");
    let listens = one.at.net.listeners().await.unwrap();
    assert!(
        listens.iter().all(is_circuit) && !listens.is_empty(),
        "{listens:?}"
    );

    let peer = one.at.identity.peer();
    other.at.net.dial(&peer).await.unwrap();
    let addresses = other.until_connected(&peer, |at| !at.is_empty()).await;
    assert!(addresses.iter().all(is_circuit), "{addresses:?}");
    // Both sides know that it is a relay's.
    let back = one
        .until_connected(&other.at.identity.peer(), |at| !at.is_empty())
        .await;
    assert!(back.iter().all(is_circuit), "{back:?}");
    other.at.net.record(&peer).await.unwrap();
    other.send_sealed(&mut one, vec![7; 10_000]).await;

    // Found by its CID alone: the record at the hub has the address through the relay.
    let root = one.content.add_bytes(vec![8; 20_000], Pin::No).await.unwrap().cid;
    one.content.provide(root).await.unwrap();
    hub.until_provided(&root, one.peer).await;
    let third = Node::start(Role::Worker, Listens::Nowhere, Reachability::Private, &join);
    third.until_reached(Reach::Relayed).await;
    third.fetch(root, Vec::new()).await;
    assert_eq!(
        third.content.cat(root.into(), 1 << 20).await.unwrap(),
        vec![8; 20_000]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relayed_connection_becomes_a_direct_one_where_one_side_can_be_reached() {
    let (_hub, join) = Node::bootstrap().await;
    let join = [join];
    let mut hidden = Node::start(Role::Worker, Listens::Nowhere, Reachability::Tested, &join);
    hidden.until_reached(Reach::Relayed).await;
    // Nothing but the relay leads from here to there at first: this one does not tell the DHT where it listens.
    let open = Node::start(Role::Worker, Listens::OnLoopback, Reachability::Private, &join);
    open.until_reached(Reach::Relayed).await;
    let peer = hidden.at.identity.peer();
    open.at.net.dial(&peer).await.unwrap();
    open.until_connected(&peer, |at| !at.is_empty() && !at.iter().any(is_circuit))
        .await;
    open.at.net.record(&peer).await.unwrap();
    // More than a relay carries.
    open.send_sealed(&mut hidden, vec![9; 1 << 20]).await;
    let bytes: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let root = hidden.content.add_bytes(bytes, Pin::No).await.unwrap().cid;
    open.fetch(root, vec![hidden.peer]).await;
}
