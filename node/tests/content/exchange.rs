use std::collections::BTreeMap;
use std::time::Duration;

use hanzod::content::bitswap::{self, Event};
use hanzod::content::unixfs::Limits;
use hanzod::content::{FetchError, Pin};

use crate::support::{MIB, Node, noise_bytes, request};

fn quick() -> bitswap::Config {
    bitswap::Config {
        stall: Duration::from_millis(800),
        rest: Duration::from_millis(200),
        refusal: Duration::from_millis(500),
        search: Duration::from_millis(500),
        ..bitswap::Config::default()
    }
}

async fn nodes<const N: usize>(directory: &tempfile::TempDir) -> [Node; N] {
    let mut nodes = Vec::new();
    for index in 0..N {
        nodes.push(Node::start(&directory.path().join(index.to_string()), quick()).await);
    }
    for node in &nodes {
        for other in nodes.iter().filter(|other| other.peer != node.peer) {
            node.know(other).await;
        }
    }
    nodes.try_into().unwrap_or_else(|_| unreachable!())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_mebibytes_pass_between_two_nodes() {
    let directory = tempfile::tempdir().unwrap();
    let [a, b] = nodes(&directory).await;
    let bytes = noise_bytes(20 * MIB, 1);
    let root = a.content.add_bytes(bytes.clone(), Pin::No).await.unwrap().cid;
    let fetch = b.content.fetch_dag(request(root, &[&a]));
    let seen = fetch.progress();
    let progress = fetch.finish().await.unwrap();
    assert_eq!(progress.blocks, 81);
    assert_eq!(progress.fetched, progress.bytes);
    assert_eq!(*seen.borrow(), progress);
    assert_eq!(b.content.cat(root.into(), 1 << 30).await.unwrap(), bytes);
    assert_eq!(b.counters().await.blocks_received, 81);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_of_small_files_passes_and_is_pinned() {
    let directory = tempfile::tempdir().unwrap();
    let [a, b] = nodes(&directory).await;
    let files: BTreeMap<String, Vec<u8>> = (0..200)
        .map(|n| (format!("part/{n:03}"), noise_bytes(100 + n, n as u64)))
        .collect();
    let root = a.content.add_map(files.clone(), Pin::No).await.unwrap().cid;
    let mut wanted = request(root, &[&a]);
    wanted.pin = Pin::Named("test".to_owned());
    assert_eq!(b.content.fetch_dag(wanted).finish().await.unwrap().blocks, 202);
    b.content.gc().await.unwrap();
    let target = directory.path().join("out");
    b.content
        .export(root.into(), target.clone(), Limits::default())
        .await
        .unwrap();
    for (name, bytes) in files {
        assert_eq!(std::fs::read(target.join(&name)).unwrap(), bytes, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_providers_share_the_work() {
    let directory = tempfile::tempdir().unwrap();
    let [a, b, c] = nodes(&directory).await;
    let bytes = noise_bytes(20 * MIB, 2);
    let root = a.content.add_bytes(bytes.clone(), Pin::No).await.unwrap().cid;
    assert_eq!(
        b.content.add_bytes(bytes.clone(), Pin::No).await.unwrap().cid,
        root
    );
    c.content
        .fetch_dag(request(root, &[&a, &b]))
        .finish()
        .await
        .unwrap();
    assert_eq!(c.content.cat(root.into(), 1 << 30).await.unwrap(), bytes);
    let (from_a, from_b) = (a.counters().await.bytes_sent, b.counters().await.bytes_sent);
    assert!(from_a > 2 << 20 && from_b > 2 << 20, "{from_a} and {from_b}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_goes_on_from_what_is_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    let [a, b] = nodes(&directory).await;
    let bytes = noise_bytes(10 * MIB, 3);
    let root = a.content.add_bytes(bytes.clone(), Pin::No).await.unwrap().cid;
    b.content.fetch_dag(request(root, &[&a])).finish().await.unwrap();
    let held = b.content.store().list().unwrap();
    for (cid, _) in held.iter().take(10) {
        b.content.store().delete(cid).unwrap();
    }
    drop(b);
    let b = Node::start(&directory.path().join("1"), quick()).await;
    b.know(&a).await;
    let progress = b.content.fetch_dag(request(root, &[&a])).finish().await.unwrap();
    assert_eq!(progress.blocks, 41);
    assert!(
        progress.fetched > 0 && progress.fetched <= 10 * (256 << 10),
        "{progress:?}"
    );
    assert_eq!(b.content.cat(root.into(), 1 << 30).await.unwrap(), bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_vanishes_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let [a, b, c] = nodes(&directory).await;
    let bytes = noise_bytes(20 * MIB, 4);
    let root = a.content.add_bytes(bytes.clone(), Pin::No).await.unwrap().cid;
    b.content.add_bytes(bytes, Pin::No).await.unwrap();
    let fetch = c.content.fetch_dag(request(root, &[&a, &b]));
    let mut progress = fetch.progress();
    progress.wait_for(|now| now.blocks > 10).await.unwrap();
    drop(a);
    assert_eq!(fetch.finish().await.unwrap().blocks, 81);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_breaks_is_made_again() {
    let directory = tempfile::tempdir().unwrap();
    let [a, b] = nodes(&directory).await;
    let root = a
        .content
        .add_bytes(noise_bytes(20 * MIB, 5), Pin::No)
        .await
        .unwrap()
        .cid;
    let fetch = b.content.fetch_dag(request(root, &[&a]));
    let mut progress = fetch.progress();
    for blocks in [10, 40] {
        progress.wait_for(|now| now.blocks > blocks).await.unwrap();
        a.disconnect(b.peer).await;
    }
    assert_eq!(fetch.finish().await.unwrap().blocks, 81);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn providers_are_looked_for_and_used() {
    let directory = tempfile::tempdir().unwrap();
    let [a, mut b] = nodes(&directory).await;
    let root = a
        .content
        .add_bytes(noise_bytes(MIB, 6), Pin::No)
        .await
        .unwrap()
        .cid;
    let fetch = b.content.fetch_dag(request(root, &[]));
    let Event::FindProviders { cid } = b.event().await else {
        panic!("expected a search")
    };
    assert_eq!(cid, root);
    b.providers_found(cid, vec![a.peer]).await;
    assert_eq!(fetch.finish().await.unwrap().blocks, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_that_is_added_later_reaches_who_waits_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let [a, b, c] = nodes(&directory).await;
    let bytes = noise_bytes(MIB, 7);
    let root = c.content.add_bytes(bytes.clone(), Pin::No).await.unwrap().cid;
    b.dial(&a).await;
    let fetch = b.content.fetch_dag(request(root, &[&a]));
    tokio::time::sleep(Duration::from_millis(300)).await;
    a.content.add_bytes(bytes, Pin::No).await.unwrap();
    assert_eq!(fetch.finish().await.unwrap().blocks, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_has_ends_at_the_deadline() {
    let directory = tempfile::tempdir().unwrap();
    let [a, b] = nodes(&directory).await;
    let root = hanzod::content::block::cid_of(0x55, b"nobody has this");
    let mut wanted = request(root, &[&a]);
    wanted.deadline = Duration::from_millis(700);
    let error = b.content.fetch_dag(wanted).finish().await.unwrap_err();
    assert!(
        matches!(
            error,
            FetchError::Deadline {
                blocks: 0,
                wanted: 1,
                ..
            }
        ),
        "{error}"
    );
}
