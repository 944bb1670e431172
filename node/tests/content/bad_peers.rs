//! A peer that breaks bitswap is refused and named.

use std::time::Duration;

use cid::Cid;
use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use hanzod::content::bitswap::{self, Event, MessageError, Offence, PROTOCOL};
use hanzod::content::block::{MAX_BLOCK, RAW, cid_of};
use hanzod::content::{FetchError, Pin};
use libp2p::{Multiaddr, PeerId};

use crate::support::{Node, listen, noise_bytes, request, swarm};

/// Answers every stream with these bytes, once something was asked on it.
async fn liar(answer: Vec<u8>) -> (PeerId, Multiaddr) {
    let mut swarm = swarm(libp2p_stream::Behaviour::new());
    let (peer, address) = (*swarm.local_peer_id(), listen(&mut swarm).await);
    let mut control = swarm.behaviour().new_control();
    let mut incoming = control.accept(PROTOCOL).unwrap();
    tokio::spawn(async move { while swarm.next().await.is_some() {} });
    tokio::spawn(async move {
        while let Some((asker, mut asked)) = incoming.next().await {
            let mut some = [0; 16];
            asked.read_exact(&mut some).await.unwrap();
            let mut stream = control.open_stream(asker, PROTOCOL).await.unwrap();
            // The other side may hang up in the middle.
            let _ = stream.write_all(&answer).await;
            let _ = stream.flush().await;
            tokio::time::sleep(Duration::from_secs(90)).await;
        }
    });
    (peer, address)
}

/// Fetches one block from the liar and from an honest node; returns the offence that was reported.
async fn fetch_from(answer: impl Fn(Cid) -> Vec<u8>) -> Offence {
    let directory = tempfile::tempdir().unwrap();
    let honest = Node::start(&directory.path().join("honest"), bitswap::Config::default()).await;
    let mut node = Node::start(&directory.path().join("node"), bitswap::Config::default()).await;
    let added = honest
        .content
        .add_bytes(noise_bytes(1000, 1), Pin::No)
        .await
        .unwrap();
    let (peer, address) = liar(answer(added.cid)).await;
    node.know_at(peer, address).await;
    let mut wanted = request(added.cid, &[]);
    wanted.providers = vec![peer];
    let fetch = node.content.fetch_dag(wanted);
    let offence = loop {
        if let Event::Offence { peer: named, offence } = node.event().await {
            assert_eq!(named, peer);
            break offence;
        }
    };
    // The honest node still serves it.
    node.know(&honest).await;
    node.providers_found(added.cid, vec![honest.peer]).await;
    fetch.finish().await.unwrap();
    assert_eq!(
        node.content.cat(added.cid.into(), 1000).await.unwrap(),
        noise_bytes(1000, 1)
    );
    assert_eq!(node.counters().await.offences, 1);
    offence
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_block_is_refused() {
    let offence = fetch_from(|cid| frame(&message_with_block(&cid, b"not what was asked"))).await;
    assert_eq!(
        offence,
        Offence::UnwantedBlock {
            cid: cid_of(RAW, b"not what was asked")
        }
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_oversized_message_is_refused_by_its_length() {
    let offence = fetch_from(|_| varint(1 << 40)).await;
    assert_eq!(
        offence,
        Offence::Message(MessageError::TooLong { declared: 1 << 40 })
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_over_the_limit_is_refused() {
    let offence = fetch_from(|cid| frame(&message_with_block(&cid, &vec![0; MAX_BLOCK + 1]))).await;
    assert_eq!(
        offence,
        Offence::Message(MessageError::BlockTooLarge { size: MAX_BLOCK + 1 })
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_none_is_refused() {
    let offence = fetch_from(|_| frame(&[0xff; 40])).await;
    assert!(
        matches!(offence, Offence::Message(MessageError::Wire(_))),
        "{offence}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drip_is_a_stall_and_others_take_over() {
    let directory = tempfile::tempdir().unwrap();
    let config = bitswap::Config {
        stall: Duration::from_millis(500),
        ..bitswap::Config::default()
    };
    let honest = Node::start(&directory.path().join("honest"), config).await;
    let node = Node::start(&directory.path().join("node"), config).await;
    let root = honest
        .content
        .add_bytes(noise_bytes(1000, 1), Pin::No)
        .await
        .unwrap()
        .cid;
    // The start of a long message, and then nothing more.
    let (peer, address) = liar([varint(1 << 20), vec![0; 10]].concat()).await;
    node.know_at(peer, address).await;
    let mut wanted = request(root, &[]);
    wanted.providers = vec![peer];
    let fetch = node.content.fetch_dag(wanted);
    tokio::time::timeout(Duration::from_secs(60), async {
        while node.counters().await.stalls == 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .expect("the drip is noticed");
    node.dial(&honest).await;
    fetch.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_from_a_liar_alone_ends_at_its_deadline() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(&directory.path().join("node"), bitswap::Config::default()).await;
    let root = cid_of(RAW, b"never given");
    let (peer, address) = liar(frame(&message_with_block(&root, b"forged"))).await;
    node.know_at(peer, address).await;
    let mut wanted = request(root, &[]);
    (wanted.providers, wanted.deadline) = (vec![peer], Duration::from_secs(1));
    let error = node.content.fetch_dag(wanted).finish().await.unwrap_err();
    assert!(matches!(error, FetchError::Deadline { .. }), "{error}");
    assert!(
        node.content.store().list().unwrap().is_empty(),
        "nothing forged is stored"
    );
}

/// The wire format, written apart from the code under test.
fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            out.push(low);
            return out;
        }
        out.push(low | 0x80);
    }
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [vec![number << 3 | 2], varint(bytes.len() as u64), bytes.to_vec()].concat()
}

fn frame(body: &[u8]) -> Vec<u8> {
    [varint(body.len() as u64), body.to_vec()].concat()
}

fn message_with_block(cid: &Cid, data: &[u8]) -> Vec<u8> {
    let prefix = [vec![1], varint(cid.codec()), vec![0x12, 0x20]].concat();
    let block = [field(1, &prefix), field(2, data)].concat();
    [field(1, &[]), field(3, &block)].concat()
}
