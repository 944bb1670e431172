//! Many peers at once that take a node's memory and turns: others are served, and serve it, all the same.

use std::time::Duration;

use hanzod::content::Pin;
use hanzod::content::bitswap;

use crate::support::{MIB, Node, Stranger, noise_bytes, request, until};
use crate::wicked::{field, frame, varint, want};

/// Wants of everything under 20 MiB of a node's content.
fn wants(node: &Node) -> Vec<u8> {
    let held = node.content.store().list().unwrap();
    let wants: Vec<u8> = held.iter().flat_map(|(cid, _)| want(cid)).collect();
    frame(&field(1, &wants))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_do_not_read_leave_room_for_those_who_do() {
    let directory = tempfile::tempdir().unwrap();
    // Nobody is given up for being slow, and the first replies alone fill the room.
    let config = bitswap::Config {
        message: Duration::from_secs(600),
        quiet: Duration::from_secs(600),
        replies: 24 * MIB,
        ..bitswap::Config::default()
    };
    let node = Node::start(&directory.path().join("node"), config).await;
    let bytes = noise_bytes(20 * MIB, 1);
    let root = node.content.add_bytes(bytes, Pin::No).await.unwrap().cid;
    let wants = wants(&node);
    let mut silent = Vec::new();
    for _ in 0..16 {
        let stranger = Stranger::connect(&node);
        stranger.begin(node.peer, wants.clone()).await;
        silent.push(stranger);
    }
    until(&node, |counters| counters.bytes_sent >= 20 << 20).await;
    let other = Node::start(&directory.path().join("other"), bitswap::Config::default()).await;
    other.know(&node).await;
    let fetch = other.content.fetch_dag(request(root, &[&node]));
    assert_eq!(fetch.finish().await.unwrap().blocks, 81);
    assert!(node.counters().await.unread > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_that_nobody_reads_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let config = bitswap::Config {
        quiet: Duration::from_millis(500),
        ..bitswap::Config::default()
    };
    let node = Node::start(&directory.path().join("node"), config).await;
    let bytes = noise_bytes(20 * MIB, 2);
    node.content.add_bytes(bytes, Pin::No).await.unwrap();
    let stranger = Stranger::connect(&node);
    stranger.begin(node.peer, wants(&node)).await;
    until(&node, |counters| counters.unread >= 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_are_begun_take_bounded_memory() {
    const PEERS: usize = 8;
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(&directory.path().join("node"), bitswap::Config::default()).await;
    let begun = |declared: usize, sent: usize| [varint(declared as u64), vec![0; sent]].concat();
    let mut strangers = Vec::new();
    for _ in 0..PEERS {
        let stranger = Stranger::connect(&node);
        for _ in 0..6 {
            stranger.begin(node.peer, begun(900 << 10, 800 << 10)).await;
        }
        strangers.push(stranger);
    }
    until(&node, |counters| {
        counters.receiving >= ((PEERS * 800) << 10) as u64
    })
    .await;
    for stranger in &strangers {
        stranger.begin(node.peer, begun(4 * MIB, 3 * MIB)).await;
    }
    until(&node, |counters| counters.uncalled == PEERS as u64).await;
    // An honest provider sends large messages meanwhile: it was asked for them.
    let honest = Node::start(&directory.path().join("honest"), bitswap::Config::default()).await;
    let root = honest
        .content
        .add_bytes(noise_bytes(20 * MIB, 3), Pin::No)
        .await
        .unwrap()
        .cid;
    node.know(&honest).await;
    let fetch = node.content.fetch_dag(request(root, &[&honest]));
    let seen = fetch.progress();
    let finished = fetch.finish();
    tokio::pin!(finished);
    loop {
        let receiving = node.counters().await.receiving as usize;
        assert!(receiving <= PEERS * MIB + 4 * MIB, "{receiving}");
        tokio::select! {
            done = &mut finished => break assert_eq!(done.unwrap().blocks, 81),
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
        }
    }
    assert!(seen.borrow().fetched > 0);
}
