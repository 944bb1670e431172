//! A peer that breaks bitswap is refused and named.

use std::time::Duration;

use cid::Cid;
use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use hanzod::content::bitswap::{self, Event, MessageError, Offence, PROTOCOL};
use hanzod::content::block::{MAX_BLOCK, RAW, cid_of};
use hanzod::content::{FetchError, Pin};
use libp2p::{Multiaddr, PeerId};
use tokio::sync::oneshot;

use crate::support::{Node, Stranger, listen, noise_bytes, request, swarm, until};
use crate::wicked::{field, frame, message_with_block, raw_cid, varint, want};

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
async fn a_message_of_a_byte_too_many_is_refused_before_it_arrives() {
    let declared = (4 << 20) + 1;
    let offence = fetch_from(|_| varint(declared)).await;
    assert_eq!(offence, Offence::Message(MessageError::TooLong { declared }));
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

/// Answers what it is asked with the start of a long message and then a byte now and again; tells when it was cut off.
async fn drip() -> (PeerId, Multiaddr, oneshot::Receiver<()>) {
    let mut swarm = swarm(libp2p_stream::Behaviour::new());
    let (peer, address) = (*swarm.local_peer_id(), listen(&mut swarm).await);
    let mut control = swarm.behaviour().new_control();
    let mut incoming = control.accept(PROTOCOL).unwrap();
    tokio::spawn(async move { while swarm.next().await.is_some() {} });
    let (cut_off, heard) = oneshot::channel();
    tokio::spawn(async move {
        let (asker, mut asked) = incoming.next().await.unwrap();
        asked.read_exact(&mut [0; 16]).await.unwrap();
        let mut stream = control.open_stream(asker, PROTOCOL).await.unwrap();
        let mut next = varint(1 << 20);
        while stream.write_all(&next).await.is_ok() && stream.flush().await.is_ok() {
            next = vec![0];
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let _ = cut_off.send(());
    });
    (peer, address, heard)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drip_is_a_stall_and_others_take_over() {
    let directory = tempfile::tempdir().unwrap();
    let config = bitswap::Config {
        stall: Duration::from_millis(500),
        message: Duration::from_secs(2),
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
    let (peer, address, cut_off) = drip().await;
    node.know_at(peer, address).await;
    let mut wanted = request(root, &[]);
    wanted.providers = vec![peer];
    let fetch = node.content.fetch_dag(wanted);
    until(&node, |counters| counters.stalls > 0).await;
    node.dial(&honest).await;
    fetch.finish().await.unwrap();
    // The message is given up too, whoever waits for it.
    tokio::time::timeout(Duration::from_secs(60), cut_off)
        .await
        .expect("the stream is closed")
        .unwrap();
    until(&node, |counters| counters.slow == 1).await;
}

/// Sends these frames to a node on one stream, from a peer that asks for nothing else.
async fn send(node: &Node, frames: impl IntoIterator<Item = Vec<u8>>) -> PeerId {
    let stranger = Stranger::connect(node);
    let mut stream = stranger.open(node.peer).await;
    for frame in frames {
        // The other side may hang up.
        if stream.write_all(&frame).await.is_err() || stream.flush().await.is_err() {
            break;
        }
    }
    // The stream must outlive what was written to it.
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(90)).await;
        drop(stream);
    });
    stranger.peer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_wants_in_one_message_are_refused() {
    // The shortest entries there are, with identity CIDs: a million make eight megabytes, and too many fit one.
    let tiny = field(1, &field(1, &[1, 0x55, 0, 0]));
    let cases = [
        (1_000_000, None),
        (100_000, Some(MessageError::TooManyEntries)),
        (16_385, Some(MessageError::TooManyEntries)),
    ];
    for (count, expected) in cases {
        let directory = tempfile::tempdir().unwrap();
        let mut node = Node::start(directory.path(), bitswap::Config::default()).await;
        let body = field(1, &tiny.repeat(count));
        let expected = expected.unwrap_or(MessageError::TooLong {
            declared: body.len() as u64,
        });
        let sender = send(&node, [frame(&body)]).await;
        let Event::Offence { peer, offence } = node.event().await else {
            panic!("expected an offence")
        };
        assert_eq!((peer, offence), (sender, Offence::Message(expected)));
        assert_eq!(node.counters().await.offences, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_million_wants_in_many_messages_a_thousand_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(&directory.path().join("node"), bitswap::Config::default()).await;
    let frames = (0..62_u64).map(|message| {
        let wants: Vec<u8> = (0..16_384_u64)
            .flat_map(|entry| want(&raw_cid(&(message << 32 | entry).to_le_bytes())))
            .collect();
        frame(&field(1, &wants))
    });
    send(&node, frames).await;
    until(&node, |counters| counters.dropped_wants == 62 * 16_384 - 1024).await;
    // Others are served meanwhile.
    let root = node
        .content
        .add_bytes(noise_bytes(1000, 1), Pin::No)
        .await
        .unwrap()
        .cid;
    let other = Node::start(&directory.path().join("other"), bitswap::Config::default()).await;
    other.know(&node).await;
    other
        .content
        .fetch_dag(request(root, &[&node]))
        .finish()
        .await
        .unwrap();
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
