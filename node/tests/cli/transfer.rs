//! Content from one process to another, found over the DHT and fetched over bitswap by CID.

use crate::support::{Node, failure, genesis, init, json};
use std::fs;

#[test]
fn a_directory_travels_by_its_cid() {
    let dir = tempfile::tempdir().unwrap();
    let genesis = genesis(dir.path(), "lab");
    let hub = Node::start(&init(dir.path(), "hub", &genesis), &["--role", "bootstrap"]);
    let join = hub.address();
    let giver = Node::start(&init(dir.path(), "giver", &genesis), &["--bootstrap", &join]);
    let taker = Node::start(&init(dir.path(), "taker", &genesis), &["--bootstrap", &join]);
    giver.wait(
        |node| node.standing(&hub.peer()).as_deref() == Some("member"),
        "the hub",
    );
    taker.wait(
        |node| node.standing(&hub.peer()).as_deref() == Some("member"),
        "the hub",
    );

    let source = dir.path().join("source");
    fs::create_dir_all(source.join("inner")).unwrap();
    let large: Vec<u8> = (0..700_000u32).flat_map(|i| i.to_le_bytes()).collect();
    fs::write(source.join("large.bin"), &large).unwrap();
    fs::write(source.join("inner/small.txt"), "hello").unwrap();
    let added = json(&giver.home, &["content", "add", source.to_str().unwrap()]);
    let cid = added["cid"].as_str().unwrap().to_owned();

    let target = dir.path().join("target");
    let got = json(
        &taker.home,
        &["content", "get", &cid, "--out", target.to_str().unwrap()],
    );
    assert_eq!(fs::read(target.join("large.bin")).unwrap(), large);
    assert_eq!(
        fs::read_to_string(target.join("inner/small.txt")).unwrap(),
        "hello"
    );
    assert!(got["fetched"].as_u64().unwrap() as usize >= large.len(), "{got}");

    let pins = json(&giver.home, &["content", "ls"]);
    assert_eq!(
        (pins[0]["cid"].as_str(), pins[0]["name"].as_str()),
        (Some(cid.as_str()), Some("source"))
    );
    let words = failure(&taker.home, &["content", "get", "nonsense!"], 1);
    assert!(words.contains("nonsense"), "{words}");
    let words = failure(&giver.home, &["content", "add", "/no/such/file"], 1);
    assert!(words.contains("/no/such/file"), "{words}");
}
