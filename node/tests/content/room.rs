//! Stores that are full: of what nobody keeps, which makes room for anything new, and of what is pinned, which does not.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use cid::Cid;
use hanzod::content::bitswap;
use hanzod::content::command::{Command, CommandError, Moved};
use hanzod::content::{ContentPath, FetchError, FetchRequest, Pin, block, car};
use tokio::sync::watch;

use crate::support::{MIB, Node, noise_bytes, request};
use crate::wicked::Dag;

const LIMIT: u64 = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

/// A node whose store has room for less than 300 KiB more, all of it unpinned.
async fn full(root: &Path) -> Node {
    let node = Node::start_with(root, bitswap::Config::default(), LIMIT).await;
    for seed in 0..15 {
        let bytes = noise_bytes(MIB / 4, 1000 + seed);
        node.content.add_bytes(bytes, Pin::No).await.unwrap();
    }
    let stat = node.content.stat().await.unwrap();
    assert!(stat.limit - stat.bytes < 300 << 10, "{stat:?}");
    node
}

fn meter() -> watch::Sender<Moved> {
    watch::channel(Moved::default()).0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_new_takes_the_room_of_what_nobody_keeps() {
    let directory = tempfile::tempdir().unwrap();
    let giver = Node::start(&directory.path().join("giver"), bitswap::Config::default()).await;
    let bytes = noise_bytes(MIB, 7);
    let file = directory.path().join("file");
    std::fs::write(&file, &bytes).unwrap();
    let folder = directory.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("large"), &bytes).unwrap();
    let files = BTreeMap::from([("large".to_owned(), bytes.clone())]);
    let given = giver.content.add_map(files.clone(), Pin::No).await.unwrap().cid;
    let archive = directory.path().join("content.car");
    car::write_file(giver.content.store(), given, &archive).unwrap();
    // A sharded directory: its names alone are over what is left.
    let many = (0..9000).map(|i| (format!("{i:060}"), vec![b'x'])).collect();
    let many = giver.content.add_map(many, Pin::No).await.unwrap().cid;

    for way in [
        "bytes", "file", "folder", "map", "block", "import", "add", "range", "ls",
    ] {
        let node = full(&directory.path().join(format!("store-{way}"))).await;
        node.dial(&giver).await;
        let content = &node.content;
        let keep = Pin::Named(way.to_owned());
        match way {
            "bytes" => _ = content.add_bytes(bytes.clone(), keep).await.unwrap(),
            "file" => _ = content.add_file(file.clone(), keep).await.unwrap(),
            "folder" => _ = content.add_dir(folder.clone(), keep).await.unwrap(),
            "map" => _ = content.add_map(files.clone(), keep).await.unwrap(),
            "block" => _ = content.put_block(block::RAW, bytes.clone()).await.unwrap(),
            "import" => {
                let file = archive.clone();
                _ = content.run(Command::Import { file }, meter()).await.unwrap();
                assert_eq!(content.pins().await.unwrap()[0].0, given);
            }
            "add" => {
                let (path, layout) = (folder.clone(), hanzod::content::unixfs::Layout::default());
                _ = content.run(Command::Add { path, layout }, meter()).await.unwrap();
            }
            "range" => {
                let path = ContentPath::from(given).join("large");
                let mut stream = content.stream(path, 0..MIB as u64, PATIENCE).await.unwrap();
                let mut came = Vec::new();
                while let Some(chunk) = stream.next().await.unwrap() {
                    came.extend_from_slice(&chunk);
                }
                assert!(came == bytes, "{} bytes came", came.len());
            }
            "ls" => {
                let entries = content.on_demand(PATIENCE).ls(many.into()).await.unwrap();
                assert_eq!(entries.len(), 9000);
            }
            other => panic!("{other}"),
        }
        let stat = content.stat().await.unwrap();
        assert!(stat.bytes <= LIMIT, "{way}: {stat:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_pinned_makes_no_room() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start_with(directory.path(), bitswap::Config::default(), LIMIT).await;
    let kept = noise_bytes(7 * MIB / 2, 1);
    let keep = Pin::Named("kept".to_owned());
    let kept = node.content.add_bytes(kept, keep.clone()).await.unwrap();
    let error = node
        .content
        .add_bytes(noise_bytes(MIB, 2), keep)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("content.limit_mib"), "{error}");
    assert!(node.content.cat(kept.cid.into(), u64::MAX).await.is_ok());
    assert_eq!(node.content.pins().await.unwrap().len(), 1);
}

/// What a stranger declares costs nothing that is here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_that_would_never_fit_drives_nothing_out() {
    let directory = tempfile::tempdir().unwrap();
    let mut dag = Dag::default();
    let leaf = dag.raw(b"little");
    let root = dag.directory(&[("huge", leaf, 1 << 40)]);
    let giver = crate::wicked::serve(dag.blocks);
    let node = full(&directory.path().join("node")).await;
    let held = node.content.stat().await.unwrap();
    node.dial_at(giver).await;
    let error = node
        .content
        .fetch_dag(request(root, &[]))
        .finish()
        .await
        .unwrap_err();
    assert!(matches!(error, FetchError::NoRoom { .. }), "{error}");
    let now = node.content.stat().await.unwrap();
    assert_eq!(now.blocks, held.blocks + 1, "only the root came");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_that_stands_several_times_is_counted_once() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path(), bitswap::Config::default()).await;
    let zeros = vec![0; 20 * MIB];
    let noise = noise_bytes(MIB, 3);
    let files = BTreeMap::from([
        ("a".to_owned(), zeros.clone()),
        ("b".to_owned(), zeros),
        ("c".to_owned(), noise),
    ]);
    let root = node.content.add_map(files, Pin::No).await.unwrap().cid;
    let progress = node.content.fetch_dag(request(root, &[])).finish().await.unwrap();
    assert!(progress.declared.unwrap() > 40 * MIB as u64, "{progress:?}");
    assert_eq!(progress.total(), Some(progress.bytes), "{progress:?}");
}

/// Pins whose content nobody has do not stand in the way of those that somebody has, and roots of a CAR that lacks blocks are
/// completed or refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partial_archives_are_completed_from_peers() {
    let directory = tempfile::tempdir().unwrap();
    let [giver, node] = [
        Node::start(&directory.path().join("giver"), bitswap::Config::default()).await,
        Node::start(&directory.path().join("node"), bitswap::Config::default()).await,
    ];
    let bytes = noise_bytes(MIB, 5);
    let root = giver.content.add_bytes(bytes.clone(), Pin::No).await.unwrap().cid;
    let archive = directory.path().join("content.car");
    car::write_file(giver.content.store(), root, &archive).unwrap();
    let whole = std::fs::read(&archive).unwrap();
    // Its last leaf is cut off: two bytes of length, a CID, a chunk.
    std::fs::write(&archive, &whole[..whole.len() - (3 + 36 + MIB / 4)]).unwrap();
    node.dial(&giver).await;
    let file = archive.clone();
    let answer = node.content.run(Command::Import { file }, meter()).await.unwrap();
    assert_eq!(
        (&answer["roots"][0], &answer["fetched"]),
        (&root.to_string().into(), &(MIB / 4).into())
    );
    assert_eq!(node.content.cat(root.into(), u64::MAX).await.unwrap(), bytes);
    assert_eq!(node.content.pins().await.unwrap()[0].0, root);

    let (alone, network) = hanzod::content::open(hanzod::content::Config {
        root: directory.path().join("alone"),
        limit: 1 << 30,
        layout: hanzod::content::unixfs::Layout::default(),
        bitswap: bitswap::Config::default(),
    })
    .unwrap();
    drop(network);
    let file = archive.clone();
    let error = alone.run(Command::Import { file }, meter()).await.unwrap_err();
    assert!(
        matches!(&error, CommandError::Incomplete { missing: 1, .. }) && error.is_offline(),
        "{error}"
    );
    assert!(alone.pins().await.unwrap().is_empty());
}

/// While room is made, which may take long, it is the disk that is waited for and not a peer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_that_waits_for_room_waits_for_no_peer() {
    let directory = tempfile::tempdir().unwrap();
    let giver = Node::start(&directory.path().join("giver"), bitswap::Config::default()).await;
    let bytes = noise_bytes(MIB, 9);
    let root = giver.content.add_bytes(bytes.clone(), Pin::No).await.unwrap().cid;
    let node = full(&directory.path().join("node")).await;
    // An add that goes on holds collection off.
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let store = std::sync::Arc::clone(node.content.store());
    let adding = std::thread::spawn(move || {
        let _adding = store.adding();
        begun.send(()).unwrap();
        ended.recv().unwrap();
    });
    has_begun.await.unwrap();
    node.dial(&giver).await;
    let fetch = node.content.fetch_dag(request(root, &[&giver]));
    let mut progress = fetch.progress();
    let seen = progress.wait_for(|now| now.blocks > 0).await.unwrap().to_owned();
    assert_eq!((seen.blocks, seen.pending, seen.declared), (1, 0, None));
    end.send(()).unwrap();
    adding.join().unwrap();
    fetch.finish().await.unwrap();
    assert_eq!(node.content.cat(root.into(), u64::MAX).await.unwrap(), bytes);
}

/// One pin that cannot be repaired does not keep the others from being tried, and each is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_pin_that_is_not_whole_is_tried() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(&directory.path().join("node"), bitswap::Config::default()).await;
    let mut roots = Vec::new();
    for seed in 0..3 {
        let keep = Pin::Named(seed.to_string());
        let bytes = noise_bytes(MIB, 20 + seed);
        let root = node.content.add_bytes(bytes.clone(), keep).await.unwrap().cid;
        let leaf = block::cid_of(block::RAW, &bytes[..MIB / 4]);
        node.content.store().delete(&leaf).unwrap();
        roots.push(root);
    }
    drop(node);
    // The store alone, without a network.
    let (alone, network) = hanzod::content::open(hanzod::content::Config {
        root: directory.path().join("node"),
        limit: 1 << 30,
        layout: hanzod::content::unixfs::Layout::default(),
        bitswap: bitswap::Config::default(),
    })
    .unwrap();
    drop(network);
    let missing = hanzod::content::command::Missing::Fetch;
    let report = alone.run(Command::Verify { missing }, meter()).await.unwrap();
    let mut failed: Vec<_> = report["failed"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["cid"].clone())
        .collect();
    failed.sort_by_key(ToString::to_string);
    let mut expected: Vec<_> = roots
        .iter()
        .map(|root| serde_json::Value::from(root.to_string()))
        .collect();
    expected.sort_by_key(ToString::to_string);
    assert_eq!(
        (failed, report["repaired"].as_array().unwrap().len()),
        (expected, 0)
    );
}

/// What a root declares is only a hint, and others may take the room that there was: a fetch that meets the limit on its way
/// goes on in the room of what nobody keeps, and pins nothing when there is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_that_meets_the_limit_on_its_way_makes_room() {
    let directory = tempfile::tempdir().unwrap();
    for (megabytes, fits) in [(2, true), (6, false)] {
        let mut dag = Dag::default();
        let leaves: Vec<Cid> = (0..megabytes)
            .map(|seed| dag.raw(&noise_bytes(MIB, 40 + seed)))
            .collect();
        // It declares 10 bytes for each.
        let names: Vec<String> = (0..leaves.len()).map(|number| number.to_string()).collect();
        let links: Vec<_> = names
            .iter()
            .zip(&leaves)
            .map(|(name, leaf)| (name.as_str(), *leaf, 10))
            .collect();
        let root = dag.directory(&links);
        let giver = crate::wicked::serve(dag.blocks);
        let node = full(&directory.path().join(megabytes.to_string())).await;
        let mine = noise_bytes(MIB / 8, 1);
        let keep = Pin::Named("mine".to_owned());
        let mine = node.content.add_bytes(mine, keep).await.unwrap().cid;
        node.dial_at(giver).await;
        let pin = Pin::Named("fetched".to_owned());
        let request = FetchRequest {
            pin,
            ..request(root, &[])
        };
        let ended = node.content.fetch_dag(request).finish().await;
        let pins: Vec<Cid> = node
            .content
            .pins()
            .await
            .unwrap()
            .into_iter()
            .map(|(cid, _)| cid)
            .collect();
        if fits {
            assert!(ended.unwrap().fetched >= 2 * MIB as u64);
            assert!(pins.contains(&root));
        } else {
            let error = ended.unwrap_err();
            assert!(error.to_string().contains("content.limit_mib"), "{error}");
            assert_eq!(pins, [mine]);
            // Nothing holds on to what came.
            node.content.gc().await.unwrap();
            assert_eq!(node.content.stat().await.unwrap().blocks, 1);
        }
        assert!(node.content.cat(mine.into(), u64::MAX).await.is_ok());
    }
}
