//! The network as the rest of the node uses it, between two swarms over loopback TCP: hello, gossip, sync, sealed links
//! and what becomes of spoilt frames.

#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)] // a panic is how a test fails

use gym_protocol::buffers::Buffers;
use gym_protocol::ids::{CidBytes, Hash32, PeerBytes};
use gym_protocol::message::LinkHeader;
use hanzod::content::{self, bitswap, unixfs::Layout};
use hanzod::home::Home;
use hanzod::identity::NodeIdentity;
use hanzod::link::{Acceptor, Damage, LinkContext, LinkOffence, LinkPool, MAX_PAYLOAD, Members, Rates};
use hanzod::metrics::Metrics;
use hanzod::net::{self, Acceptance, DirectSockets, Driver, Mdns, NetEvent, NetHandle, Topic};
use hanzod::role::{Role, Roles};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const GENESIS: Hash32 = Hash32([7; 32]);

struct Peer {
    net: NetHandle,
    events: mpsc::Receiver<NetEvent>,
    links: LinkPool,
    metrics: Metrics,
    identity: Arc<NodeIdentity>,
    stop: CancellationToken,
    _dir: tempfile::TempDir,
}

impl Peer {
    fn start(role: Role) -> Self {
        Self::start_with(role, loopback())
    }

    fn start_with(role: Role, config: net::Config) -> Self {
        let direct = config.direct_sockets;
        let dir = tempfile::tempdir().unwrap();
        let home = Home::locate(Some(dir.path())).unwrap();
        home.create().unwrap();
        let identity = Arc::new(NodeIdentity::create(&home, GENESIS).unwrap());
        let metrics = Metrics::default();
        let store = content::Config {
            root: home.content(),
            limit: 1 << 30,
            layout: Layout::default(),
            bitswap: bitswap::Config::default(),
        };
        let (_, exchange) = content::open(store).unwrap();
        let started = Driver::start(net::Setup {
            config,
            roles: Roles::from_iter([role]),
            identity: Arc::clone(&identity),
            metrics: metrics.clone(),
            bootstrap: Vec::new(),
            content: exchange,
        })
        .unwrap();
        let stop = CancellationToken::new();
        let context = LinkContext {
            identity: Arc::clone(&identity),
            net: started.handle.clone(),
            streams: started.streams,
            doors: started.doors,
            direct,
            events: started.event_sender,
            metrics: metrics.clone(),
            stop: stop.clone(),
            config: gym_crypto::link::Config::default(),
            epoch: Instant::now(),
            buffers: Buffers::default(),
            rates: Rates::default(),
            members: Members::default(),
        };
        tokio::spawn(started.driver.run(stop.clone()));
        tokio::spawn(Acceptor::new(context.clone()).unwrap().run());
        let (net, events, links) = (started.handle, started.events, LinkPool::new(context));
        Self {
            net,
            events,
            links,
            metrics,
            identity,
            stop,
            _dir: dir,
        }
    }

    fn peer(&self) -> PeerBytes {
        self.identity.peer()
    }

    async fn joined(&mut self) {
        self.next(|event| matches!(event, NetEvent::PeerJoined(_)).then_some(()))
            .await;
    }

    /// The first event that `pick` takes; others are dropped.
    async fn next<T>(&mut self, mut pick: impl FnMut(NetEvent) -> Option<T>) -> T {
        let wait = async {
            loop {
                if let Some(found) = pick(self.events.recv().await.unwrap()) {
                    return found;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), wait)
            .await
            .expect("an event")
    }

    fn header(&self, to: &PeerBytes, segment: u32) -> LinkHeader {
        LinkHeader {
            kind: 0,
            job: CidBytes::new(vec![1; 36]).unwrap(),
            round: 3,
            view: 0,
            manifest: Hash32([2; 32]),
            phase: 2,
            step: 0,
            chunk: 0,
            segment,
            slot: 0,
            sender: self.peer(),
            receiver: to.clone(),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn loopback() -> net::Config {
    net::Config {
        listen: vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()],
        mdns: Mdns::Off,
        ..net::Config::default()
    }
}

/// As many frames as fill what a node's task has waiting, and a few that stay with the reader.
const FULL: u32 = hanzod::net::EVENT_QUEUE as u32 + 8;

async fn pair() -> (Peer, Peer) {
    pair_of([loopback(), loopback()]).await
}

/// The first dials the second.
async fn pair_of([a, b]: [net::Config; 2]) -> (Peer, Peer) {
    let mut a = Peer::start_with(Role::Worker, a);
    let mut b = Peer::start_with(Role::Validator, b);
    let address = loop {
        let own = b.net.listeners().await.unwrap();
        if let Some(address) = own.into_iter().find(|a| !a.to_string().contains("/tcp/1/")) {
            break address;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    a.net.dial_address(address).await.unwrap();
    a.joined().await;
    b.joined().await;
    (a, b)
}

fn sealed(event: NetEvent) -> Option<(PeerBytes, LinkHeader, Vec<u8>)> {
    match event {
        NetEvent::Sealed {
            from,
            header,
            payload,
        } => Some((from, *header, payload)),
        _ => None,
    }
}

fn offence(event: NetEvent) -> Option<LinkOffence> {
    match event {
        NetEvent::LinkOffence { what, .. } => Some(what),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_exchange_records_gossip_and_sync() {
    let (a, mut b) = pair().await;
    let known = a.net.peer(&b.peer()).await.unwrap().unwrap();
    assert!(known.roles.has(Role::Validator));
    assert_eq!(known.identity.unwrap().record_hash(), b.identity.record_hash());

    // The mesh forms within a heartbeat or two.
    let deadline = Instant::now() + Duration::from_secs(30);
    while a.net.publish(Topic::Rounds, b"hello".to_vec()).await.is_err() {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (source, bytes, id) = b
        .next(|event| match event {
            NetEvent::Gossip {
                topic: Topic::Rounds,
                source,
                bytes,
                id,
            } => Some((source, bytes, id)),
            _ => None,
        })
        .await;
    assert_eq!((source, bytes.as_slice()), (a.peer(), b"hello".as_slice()));
    b.net.report_validation(id, Acceptance::Accept).await;

    let (net, to) = (a.net.clone(), b.peer());
    let asked = tokio::spawn(async move { net.sync_request(&to, b"what".to_vec()).await });
    let reply = b
        .next(|event| match event {
            NetEvent::SyncRequest { bytes, reply, .. } if bytes == b"what" => Some(reply),
            _ => None,
        })
        .await;
    reply.send(b"that".to_vec()).unwrap();
    assert_eq!(asked.await.unwrap().unwrap(), b"that");
}

/// Every way a link can go: the sender's and the receiver's settings, and what comes of them.
fn ways() -> [([net::Config; 2], &'static str); 4] {
    let without = || net::Config {
        direct_sockets: DirectSockets::Off,
        ..loopback()
    };
    // Says that it is reached at another port, where nobody listens.
    let astray = net::Config {
        external: vec!["/ip4/127.0.0.1/tcp/1".parse().unwrap()],
        ..loopback()
    };
    [
        ([loopback(), loopback()], "socket"),
        ([loopback(), without()], "stream"),
        ([without(), loopback()], "stream"),
        ([loopback(), astray], "stream"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_arrive_in_order_sealed_and_counted() {
    for (settings, way) in ways() {
        let (a, b) = pair_of(settings).await;
        frames_arrive(&a, b).await;
        assert_eq!(a.metrics.get("gym_link_opened_total", &[("way", way)]), 1);
    }
}

async fn frames_arrive(a: &Peer, mut b: Peer) {
    let payloads: Vec<Vec<u8>> = vec![vec![], vec![1; 10], vec![2; MAX_PAYLOAD], vec![3; 1 << 20]];
    let total: usize = payloads.iter().map(Vec::len).sum();
    let (to, links) = (b.peer(), a.links.clone());
    let frames: Vec<_> = (0..)
        .zip(payloads.clone())
        .map(|(i, payload)| (a.header(&to, i), payload))
        .collect();
    let sent = frames.clone();
    let sending = tokio::spawn(async move {
        for (header, payload) in sent {
            links.send(to.clone(), header, payload).await.unwrap();
        }
    });
    for (header, payload) in frames {
        assert_eq!(b.next(sealed).await, (a.peer(), header, payload));
    }
    sending.await.unwrap();
    // Tag and nonce on each, the confirmation on the first.
    let expected = (total + 4 * 28 + 32) as u64;
    let ring = [("kind", "ring")];
    assert_eq!(a.metrics.get("gym_link_sent_bytes_total", &ring), expected);
    assert_eq!(b.metrics.get("gym_link_received_bytes_total", &ring), expected);
}

/// Whoever dialled: the port at which the other listens is called, at the host it is connected from.
#[tokio::test(flavor = "multi_thread")]
async fn a_dialled_peer_calls_back() {
    let (mut a, b) = pair().await;
    let to = a.peer();
    let header = b.header(&to, 0);
    b.links.send(to, header, vec![5; 100]).await.unwrap();
    assert_eq!(a.next(sealed).await.2, vec![5; 100]);
    assert_eq!(b.metrics.get("gym_link_opened_total", &[("way", "socket")]), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn long_sends_tell_a_bandwidth() {
    let (a, mut b) = pair().await;
    let (to, links, rates) = (b.peer(), a.links.clone(), a.links.rates());
    assert_eq!((rates.to(&to), rates.best()), (None, None));
    let header = a.header(&to, 0);
    let taking = tokio::spawn(async move { while b.events.recv().await.is_some() {} });
    // A busy machine may tear a burst apart before it is long enough.
    let measured = async {
        while rates.to(&to).is_none() {
            for _ in 0..32 {
                let frame = links.send(to.clone(), header.clone(), vec![3; 1 << 20]);
                frame.await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), measured)
        .await
        .unwrap();
    assert!(rates.to(&to).is_some_and(|rate| rate > 0));
    assert_eq!(rates.best(), rates.to(&to));
    taking.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn spoilt_frames_are_offences_and_the_link_recovers() {
    for (settings, _) in ways() {
        let (a, b) = pair_of(settings).await;
        spoilt_frames(&a, b).await;
    }
}

async fn spoilt_frames(a: &Peer, mut b: Peer) {
    let to = b.peer();
    for (segment, damage, what, metric) in [
        (0, Damage::BadTag, LinkOffence::BadTag, "bad_tag"),
        (1, Damage::Truncated, LinkOffence::Truncated, "truncated_frame"),
    ] {
        a.links
            .send_damaged(to.clone(), a.header(&to, segment), vec![9; 5000], damage)
            .await
            .unwrap();
        assert_eq!(b.next(offence).await, what);
        assert_eq!(b.metrics.get("gym_offences_total", &[("kind", metric)]), 1);
        let deadline = Instant::now() + Duration::from_secs(30);
        while a.metrics.get("gym_link_refused_total", &[]) <= u64::from(segment) {
            assert!(Instant::now() < deadline, "the sender is told");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        a.links
            .send(to.clone(), a.header(&to, 10 + segment), vec![4; 100])
            .await
            .unwrap();
        assert_eq!(b.next(sealed).await.1.segment, 10 + segment);
    }
}

/// The link opens again, so that the frame that was cut off has been looked at, and nobody is named for it.
async fn assert_no_cut_is_named(a: &Peer, b: &mut Peer) {
    let to = b.peer();
    a.links
        .send(to.clone(), a.header(&to, 7), vec![4; 100])
        .await
        .unwrap();
    let next = b.next(|event| match event {
        NetEvent::LinkOffence { what, .. } => Some(Err(what)),
        event => sealed(event).map(|(_, header, _)| Ok(header.segment)),
    });
    assert_eq!(next.await, Ok(7));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let offences = b
        .metrics
        .get("gym_offences_total", &[("kind", "truncated_frame")]);
    assert_eq!(offences, 0);
}

/// A sender that gives a frame up at its own deadline on a slow network looks like this.
#[tokio::test(flavor = "multi_thread")]
async fn a_frame_given_up_after_it_came_slowly_is_no_offence() {
    for (settings, _) in ways() {
        let (a, mut b) = pair_of(settings).await;
        let to = b.peer();
        let damage = Damage::Stalled(Duration::from_secs(3));
        a.links
            .send_damaged(to.clone(), a.header(&to, 0), vec![9; 5_000], damage)
            .await
            .unwrap();
        assert_no_cut_is_named(&a, &mut b).await;
    }
}

/// A node whose task has other things to do takes nothing from its links: who gives up a frame then is not to blame.
#[tokio::test(flavor = "multi_thread")]
async fn a_frame_given_up_while_the_receiver_was_busy_is_no_offence() {
    let (a, mut b) = pair().await;
    let to = b.peer();
    let (links, header) = (a.links.clone(), a.header(&to, 0));
    let sending = tokio::spawn({
        let to = to.clone();
        async move {
            for _ in 0..FULL {
                links
                    .send(to.clone(), header.clone(), vec![1; 100])
                    .await
                    .unwrap();
            }
            links
                .send_damaged(to, header, vec![9; 5_000], Damage::Truncated)
                .await
                .unwrap();
        }
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    let come = || {
        b.metrics
            .get("gym_link_received_frames_total", &[("kind", "ring")])
    };
    while come() <= hanzod::net::EVENT_QUEUE as u64 {
        assert!(
            Instant::now() < deadline,
            "the receiver's task has more waiting than it can"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    for _ in 0..FULL {
        b.next(sealed).await;
    }
    sending.await.unwrap();
    assert_no_cut_is_named(&a, &mut b).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_in_anothers_name_is_not_sent() {
    let (a, b) = pair().await;
    let mut header = a.header(&b.peer(), 0);
    header.sender = b.peer();
    assert!(a.links.send(b.peer(), header, vec![1]).await.is_err());
    let long = a
        .links
        .send(b.peer(), a.header(&b.peer(), 0), vec![0; MAX_PAYLOAD + 1])
        .await
        .unwrap_err();
    assert!(long.to_string().contains("cut it into segments"), "{long}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_absent_peer_is_unreachable_not_awaited() {
    let (a, b) = pair().await;
    let stranger = Peer::start(Role::Worker);
    let error = a.net.dial(&stranger.peer()).await.unwrap_err().to_string();
    assert!(error.contains("nobody in the DHT knows its address"), "{error}");
    drop(b);
}
