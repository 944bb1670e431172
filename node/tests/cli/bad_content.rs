//! Content that a stranger made to do harm, served by a peer over bitswap to a real node: bombs, names that leave the
//! directory, links in circles. Each is refused with its name, counted, and costs next to nothing.

use crate::support::{Node, genesis, init, json, run};
use crate::wicked::{self, Dag, Declared};
use cid::Cid;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

/// A node that knows nobody but the peer that serves `dag`.
fn victim(dir: &Path, dag: Dag) -> Node {
    let address = wicked::serve(dag.blocks).to_string();
    let peer = address.rsplit('/').next().unwrap().to_owned();
    let home = init(dir, "victim", &genesis(dir, "lab"));
    let node = Node::start(&home, &["--bootstrap", &address]);
    node.wait(
        |node| node.standing(&peer).as_deref() == Some("content"),
        "the stranger",
    );
    node
}

/// What a content command that must fail says.
fn refused(node: &Node, args: &[&str]) -> String {
    let output = run(&node.home, &[&["content"], args].concat());
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {words}");
    words
}

fn ask(node: &Node, args: &[&str]) -> Value {
    json(&node.home, &[&["content"], args].concat())
}

/// Status and body of the gateway's answer to a path that no client has tidied.
fn gateway(node: &Node, path: &str) -> (u16, Vec<u8>) {
    let file: Value = serde_json::from_slice(&fs::read(node.home.join("api.json")).unwrap()).unwrap();
    let mut socket = TcpStream::connect(file["address"].as_str().unwrap()).unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
    socket.write_all(head.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).unwrap();
    let split = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    let status = std::str::from_utf8(&bytes[9..12]).unwrap().parse().unwrap();
    (status, bytes[split + 4..].to_vec())
}

fn refusals(node: &Node) -> u64 {
    let metrics = &node.status()["metrics"];
    metrics["gym_offences_total{kind=\"refused_content\"}"]
        .as_u64()
        .unwrap_or(0)
}

/// The most memory the process ever had, in MiB, where the system tells.
fn peak_mib(node: &Node) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", node.pid())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|kib| kib.trim().trim_end_matches(" kB").parse::<u64>().ok())
        .unwrap_or(0)
        / 1024
}

#[test]
fn bombs_are_refused_or_cost_what_their_blocks_cost() {
    let dir = tempfile::tempdir().unwrap();
    let mut dag = Dag::default();
    // 240 terabytes, told and untold.
    let told = dag.file_bomb(4, Declared::Truly);
    let lying = dag.file_bomb(4, Declared::AsOneByte);
    let (mut wide, mut sharded) = (dag.directory(&[]), dag.shard(&[]));
    let mut deep = wide;
    let names: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    let slots: Vec<String> = (0..=255).map(|n| format!("{n:02X}")).collect();
    for _ in 0..8 {
        let links: Vec<_> = names.iter().map(|name| (name.as_str(), wide, 1)).collect();
        wide = dag.directory(&links);
        let links: Vec<_> = slots.iter().map(|slot| (slot.as_str(), sharded, 1)).collect();
        sharded = dag.shard(&links);
    }
    for _ in 0..100 {
        deep = dag.directory(&[("d", deep, 1)]);
    }
    let node = victim(dir.path(), dag);
    let before = peak_mib(&node);
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    let target = out.join("target");
    let get = |cid: Cid| refused(&node, &["get", &cid.to_string(), "-o", target.to_str().unwrap()]);

    // What tells its size is not even fetched.
    let told = told.to_string();
    for command in [
        &["get", &told, "-o", target.to_str().unwrap()][..],
        &["pin", &told],
        &["export", &told, "-o", target.to_str().unwrap()],
    ] {
        let words = refused(&node, command);
        assert!(
            words.contains(&told) && words.contains("declares"),
            "{command:?}: {words}"
        );
    }
    // What lies about it is found out before a byte is written.
    for (cid, what) in [(lying, "bytes"), (wide, "entries"), (deep, "nested directories")] {
        let words = get(cid);
        assert!(
            words.contains(&cid.to_string()) && words.contains("unfolds to more than"),
            "{words}"
        );
        assert!(words.contains(what), "{words}");
    }
    assert!(get(sharded).contains("as a bomb does"));
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
    let counted = refusals(&node);
    assert_eq!(counted, 7);

    // Reading it out, a part of it too.
    let cid = lying.to_string();
    assert!(refused(&node, &["cat", &cid]).contains("unfolds to more than"));
    assert!(refused(&node, &["cat", &cid, "--length", "10"]).contains("unfolds to more than"));
    let (status, body) = gateway(&node, &format!("/ipfs/{cid}"));
    assert_eq!(status, 422);
    assert!(String::from_utf8_lossy(&body).contains("unfolds to more than"));
    assert_eq!(gateway(&node, &format!("/ipfs/{sharded}/")).0, 422);
    assert!(refused(&node, &["ls", &sharded.to_string()]).contains("as a bomb does"));
    assert_eq!(refusals(&node), counted + 5);
    assert!(node.log().contains("content is refused"), "{}", node.log());

    // The rest goes by blocks, of which there are few.
    for root in [lying, wide, sharded, deep] {
        let root = root.to_string();
        ask(&node, &["pin", &root]);
        let file = out.join(format!("{root}.car"));
        let written = ask(&node, &["export", &root, "-o", file.to_str().unwrap()]);
        assert!(written["blocks"].as_u64().unwrap() <= 101, "{written}");
        let (status, car) = gateway(&node, &format!("/ipfs/{root}?format=car"));
        assert!(
            status == 200 && car.len() < 1 << 20,
            "{status}, {} bytes",
            car.len()
        );
    }
    assert_eq!(
        ask(&node, &["ls", &wide.to_string()]).as_array().unwrap().len(),
        100
    );
    assert_eq!(gateway(&node, &format!("/ipfs/{wide}/")).0, 200);
    let verified = ask(&node, &["verify"]);
    assert_eq!(verified["incomplete"], Value::Array(vec![]));
    let held = ask(&node, &["stat"]);
    assert!(held["bytes"].as_u64().unwrap() < 1 << 20, "{held}");
    assert!(ask(&node, &["gc"])["kept"].as_u64().unwrap() > 100);
    let grown = peak_mib(&node) - before;
    assert!(grown < 96, "the node grew by {grown} MiB");
}

#[test]
fn names_that_leave_the_directory_reach_no_disk() {
    let dir = tempfile::tempdir().unwrap();
    let mut dag = Dag::default();
    let file = dag.raw(b"evil");
    let long = "x".repeat(256);
    let unsafe_names = [
        "..",
        ".",
        "",
        "/",
        "/etc/cron.d/evil",
        "../evil",
        "a/b",
        "a/../../evil",
        "..\\evil",
        "C:\\evil",
        "nul\0byte",
        "\u{1b}[2J",
        "line\nbreak",
        &long,
    ];
    let foreign_names = [
        "CON", "aux.txt", "com1", "C:", "C:evil", "a:stream", "dot.", "space ",
    ];
    let mut roots: Vec<(String, Cid, bool)> = Vec::new();
    for name in unsafe_names {
        roots.push((name.to_owned(), dag.directory(&[(name, file, 4)]), false));
    }
    roots.push((
        "twice".to_owned(),
        dag.directory(&[("twice", file, 4), ("twice", file, 4)]),
        false,
    ));
    roots.push(("../evil".to_owned(), dag.shard(&[("00../evil", file, 4)]), false));
    // Below an honest directory.
    let inner = dag.directory(&[("../../evil", file, 4)]);
    roots.push((
        "../../evil".to_owned(),
        dag.directory(&[("fine", inner, 50)]),
        true,
    ));
    for name in foreign_names {
        roots.push((name.to_owned(), dag.directory(&[(name, file, 4)]), true));
    }
    let node = victim(dir.path(), dag);
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    let target = out.join("target");
    let mut expected = 0;
    for (name, root, is_listed) in &roots {
        let words = refused(&node, &["get", &root.to_string(), "-o", target.to_str().unwrap()]);
        assert!(words.contains(&format!("{name:?}")), "{name:?}: {words}");
        assert_eq!(fs::read_dir(&out).unwrap().count(), 0, "{name:?}");
        let (status, _) = gateway(&node, &format!("/ipfs/{root}/"));
        assert_eq!(status, if *is_listed { 200 } else { 422 }, "{name:?}");
        expected += if *is_listed { 1 } else { 2 };
    }
    assert_eq!(refusals(&node), expected);
    let names: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 3, "nothing was written beside: {names:?}");

    // A path of the asker's, which no client has tidied.
    let root = roots[0].1;
    for path in [
        "/..",
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/..%5c..%5cevil",
        "/a%00b",
        "//etc/passwd",
        "/%2fetc%2fpasswd",
        "/./x",
    ] {
        let (status, body) = gateway(&node, &format!("/ipfs/{root}{path}"));
        assert!(status == 400 || status == 404, "{path}: {status}");
        assert!(!String::from_utf8_lossy(&body).contains("root:"), "{path}");
    }
    for path in ["/..", "/../x", "/a/../../x", "/./x", "//x"] {
        let words = refused(&node, &["cat", &format!("{root}{path}")]);
        assert!(words.contains("is no content path"), "{path}: {words}");
    }
}

#[test]
fn links_in_circles_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let mut dag = Dag::default();
    let (to_b, to_a, up) = (dag.symlink("b"), dag.symlink("a"), dag.symlink("../.."));
    let file = dag.raw(b"fine");
    let circle = dag.directory(&[
        ("a", to_b, 20),
        ("b", to_a, 20),
        ("file", file, 4),
        ("up", up, 20),
    ]);
    // Names that repeat the way back to the root.
    let name = circle.to_string();
    let named = dag.directory(&[(&name, circle, 200), ("ipfs", circle, 200)]);
    let node = victim(dir.path(), dag);
    let target = dir.path().join("target");
    for root in [circle, named] {
        let words = refused(&node, &["get", &root.to_string(), "-o", target.to_str().unwrap()]);
        assert!(words.contains("is a symbolic link, which is refused"), "{words}");
        assert!(!target.exists());
    }
    for name in ["a", "b", "up", "a/b/a/b", "up/up"] {
        let words = refused(&node, &["cat", &format!("{circle}/{name}")]);
        assert!(words.contains("is a symbolic link"), "{name}: {words}");
        let (status, _) = gateway(&node, &format!("/ipfs/{circle}/{name}"));
        assert_eq!(status, 422, "{name}");
    }
    // What is honest in it can be had.
    assert_eq!(
        ask(&node, &["ls", &circle.to_string()]).as_array().unwrap().len(),
        4
    );
    let path = format!("/ipfs/{named}/{name}/file");
    assert_eq!(gateway(&node, &path), (200, b"fine".to_vec()));
    ask(&node, &["pin", &named.to_string()]);
    assert_eq!(ask(&node, &["verify"])["incomplete"], Value::Array(vec![]));
    assert_eq!(refusals(&node), 12);
}
