//! Content commands, with and without a running node, and the gateway.

use crate::support::{Node, failure, genesis, init, json, run};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap().to_owned()
}

/// A directory of a large and two small files.
fn source(dir: &Path) -> (std::path::PathBuf, Vec<u8>) {
    let source = dir.join("source");
    fs::create_dir_all(source.join("inner")).unwrap();
    let large: Vec<u8> = (0..300_000u32).flat_map(|i| i.to_le_bytes()).collect();
    fs::write(source.join("large.bin"), &large).unwrap();
    fs::write(source.join("inner/small.txt"), "hello").unwrap();
    fs::write(source.join("a b#ü.html"), "<p>page").unwrap();
    (source, large)
}

#[test]
fn a_store_without_a_node_does_what_needs_no_network() {
    let dir = tempfile::tempdir().unwrap();
    let (source, large) = source(dir.path());
    // Nothing was set up there.
    let home = dir.path().join("home");
    let added = json(&home, &["content", "add", source.to_str().unwrap()]);
    let cid = text(&added, "cid");
    assert_eq!(added["announced"], false);
    let entries = json(&home, &["content", "ls", &cid]);
    let names: Vec<_> = entries
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["a b#ü.html", "inner", "large.bin"]);

    let path = format!("/ipfs/{cid}/large.bin");
    assert_eq!(run(&home, &["content", "cat", &path]).stdout, large);
    let part = run(
        &home,
        &["content", "cat", &path, "--offset", "300000", "--length", "70000"],
    )
    .stdout;
    assert_eq!(part, large[300_000..370_000]);
    assert_eq!(
        run(&home, &["content", "cat", &path, "--offset", "9000000"]).stdout,
        b""
    );

    let target = dir.path().join("target");
    let got = json(
        &home,
        &[
            "content",
            "get",
            &format!("{cid}/inner"),
            "-o",
            target.to_str().unwrap(),
        ],
    );
    assert_eq!(fs::read_to_string(target.join("small.txt")).unwrap(), "hello");
    assert_eq!(
        (got["bytes"].as_u64(), got["fetched"].as_u64()),
        (Some(5), Some(0))
    );

    let file = dir.path().join("content.car");
    let written = json(&home, &["content", "export", &cid, "-o", file.to_str().unwrap()]);
    let other = dir.path().join("other");
    let taken = json(&other, &["content", "import", file.to_str().unwrap()]);
    assert_eq!(
        (&taken["roots"][0], &taken["blocks"]),
        (&written["root"], &written["blocks"])
    );
    assert_eq!(run(&other, &["content", "cat", &path]).stdout, large);

    json(&home, &["content", "unpin", &cid]);
    assert!(failure(&home, &["content", "unpin", &cid], 1).contains("is not pinned"));
    let kept = json(&home, &["content", "gc"])["kept"].as_u64();
    assert_eq!(
        (kept, json(&home, &["content", "stat"])["blocks"].as_u64()),
        (Some(0), Some(0))
    );
    // What needs a network says so, and how to get one.
    for command in [
        ["content", "find", &cid],
        ["content", "get", &cid],
        ["content", "cat", &path],
    ] {
        let words = failure(&home, &command, 3);
        assert!(words.contains("hanzod run"), "{command:?}: {words}");
    }
}

/// Scripts take the CID from standard output; whoever looks on hears on standard error that others will not find it.
#[test]
fn who_keeps_content_hears_that_it_is_not_announced() {
    let dir = tempfile::tempdir().unwrap();
    let genesis = genesis(dir.path(), "lab");
    let file = dir.path().join("file");
    fs::write(&file, "content").unwrap();
    let file = file.to_str().unwrap();
    let home = init(dir.path(), "node", &genesis);
    let cid = text(&json(&home, &["content", "add", file]), "cid");
    let car = dir.path().join("file.car");
    let car = car.to_str().unwrap();
    json(&home, &["content", "export", &cid, "--out", car]);
    let commands = [
        (["content", "add", file], cid.clone()),
        (["content", "pin", &cid], format!("pinned {cid} as {cid}")),
        (
            ["content", "import", car],
            format!("pinned {cid}\n1 blocks (7 B)"),
        ),
    ];
    let hears = |reason: &str| {
        for (command, answer) in &commands {
            let told = json(&home, command);
            assert_eq!(told["announced"], false, "{command:?}: {told}");
            let plain = run(&home, command);
            let (out, words) = (String::from_utf8(plain.stdout), String::from_utf8(plain.stderr));
            assert_eq!(out.unwrap().trim_end(), answer, "{command:?}");
            let words = words.unwrap();
            let line = format!("not announced: {}", text(&told, "reason"));
            assert!(
                words.trim_end() == line && line.contains(reason),
                "{command:?}: {words}"
            );
        }
    };
    hears("`hanzod run`");
    let node = Node::start(&home, &["--reachability", "private"]);
    hears("once others can reach this node");
    drop(node);
    let _open = Node::start(&home, &["--role", "bootstrap"]);
    for (command, _) in &commands {
        let told = json(&home, command);
        assert_eq!(
            (&told["announced"], &told["reason"]),
            (&true.into(), &Value::Null)
        );
        assert_eq!(
            String::from_utf8(run(&home, command).stderr).unwrap(),
            "",
            "{command:?}"
        );
    }
}

#[test]
fn the_newer_profile_gives_other_cids() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, vec![5; 3 << 20]).unwrap();
    let add = |profile: &str| {
        let answer = json(
            dir.path(),
            &["content", "add", file.to_str().unwrap(), "--profile", profile],
        );
        text(&answer, "cid")
    };
    assert_ne!(add("cidv1-raw-256k-174"), add("unixfs-v1-2025"));
    let words = failure(dir.path(), &["content", "add", "x", "--profile", "mine"], 2);
    assert!(words.contains("unixfs-v1-2025"), "{words}");
}

#[test]
fn a_directory_is_no_file_to_cat_with_a_node_and_without() {
    let dir = tempfile::tempdir().unwrap();
    let (source, _) = source(dir.path());
    fs::write(source.join("index.html"), "<p>index").unwrap();
    let home = init(dir.path(), "home", &genesis(dir.path(), "lab"));
    // Kubo's habit is understood.
    let cid = text(
        &json(&home, &["content", "add", "-r", source.to_str().unwrap()]),
        "cid",
    );
    let paths = [cid.clone(), format!("{cid}/inner")];
    let says = || {
        paths
            .each_ref()
            .map(|path| failure(&home, &["content", "cat", path], 1))
    };
    let without = says();
    assert!(
        without[0].contains(&format!("{cid} is a directory; name a file in it")),
        "{without:?}"
    );
    let node = Node::start(&home, &[]);
    assert_eq!(says(), without);
    let file = run(&node.home, &["content", "cat", &format!("{cid}/inner/small.txt")]);
    assert_eq!(file.stdout, b"hello");
    let listing = get(&home, &format!("/ipfs/{cid}/inner/"), &[]);
    assert!(String::from_utf8_lossy(&listing.body).contains("href=\"..\""));

    let words = failure(
        &home,
        &["content", "import", source.join("index.html").to_str().unwrap()],
        1,
    );
    assert!(
        words.contains("index.html: the CAR file ends at offset"),
        "{words}"
    );
}

#[test]
fn verification_finds_damage_and_repair_fetches_it_again() {
    let dir = tempfile::tempdir().unwrap();
    let genesis = genesis(dir.path(), "lab");
    let (source, large) = source(dir.path());
    let giver = Node::start(&init(dir.path(), "giver", &genesis), &["--role", "bootstrap"]);
    let cid = text(
        &json(&giver.home, &["content", "add", source.to_str().unwrap()]),
        "cid",
    );
    let home = init(dir.path(), "taker", &genesis);
    let join = giver.address();
    let taker = Node::start(&home, &["--bootstrap", &join]);
    taker.wait(
        |node| node.standing(&giver.peer()).as_deref() == Some("member"),
        "the giver",
    );
    let pinned = json(&home, &["content", "pin", &cid, "--name", "mine"]);
    assert!(
        pinned["fetched"].as_u64().unwrap() >= large.len() as u64,
        "{pinned}"
    );

    let victim = largest_block(&home.join("content/blocks"));
    let mut bytes = fs::read(&victim).unwrap();
    bytes[1000] ^= 1;
    fs::write(&victim, bytes).unwrap();
    let output = run(&home, &["content", "verify", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        (
            report["removed"].as_array().unwrap().len(),
            &report["incomplete"][0]
        ),
        (1, &cid.clone().into())
    );
    let report = json(&home, &["content", "verify", "--repair"]);
    assert_eq!(report["repaired"][0], cid);
    let report = json(&home, &["content", "verify"]);
    assert_eq!(
        (&report["removed"], &report["incomplete"]),
        (&Value::Array(vec![]), &Value::Array(vec![]))
    );
    let found = json(&home, &["content", "find", &cid]);
    assert_eq!(found["providers"][0], giver.peer());
}

fn largest_block(blocks: &Path) -> std::path::PathBuf {
    let shards = fs::read_dir(blocks).unwrap().map(|shard| shard.unwrap().path());
    let files = shards.flat_map(|shard| fs::read_dir(shard).unwrap().map(|file| file.unwrap().path()));
    files
        .max_by_key(|file| fs::metadata(file).unwrap().len())
        .unwrap()
}

/// One answer of the gateway: status, headers, body.
struct Answer {
    status: u16,
    headers: String,
    body: Vec<u8>,
}

impl Answer {
    fn has(&self, header: &str) -> bool {
        self.headers.lines().any(|line| line.eq_ignore_ascii_case(header))
    }
}

fn get(home: &Path, path: &str, headers: &[&str]) -> Answer {
    request(home, "GET", path, "127.0.0.1", headers)
}

fn request(home: &Path, method: &str, path: &str, host: &str, headers: &[&str]) -> Answer {
    let file: Value = serde_json::from_slice(&fs::read(home.join("api.json")).unwrap()).unwrap();
    let mut socket = TcpStream::connect(file["address"].as_str().unwrap()).unwrap();
    let more: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n");
    socket.write_all(head.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).unwrap();
    let split = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    let headers = String::from_utf8(bytes[..split].to_vec()).unwrap();
    Answer {
        status: headers[9..12].parse().unwrap(),
        headers,
        body: bytes[split + 4..].to_vec(),
    }
}

#[test]
fn the_gateway_serves_what_the_network_has() {
    let dir = tempfile::tempdir().unwrap();
    let genesis = genesis(dir.path(), "lab");
    let (source, large) = source(dir.path());
    let giver = Node::start(&init(dir.path(), "giver", &genesis), &["--role", "bootstrap"]);
    let cid = text(
        &json(&giver.home, &["content", "add", source.to_str().unwrap()]),
        "cid",
    );
    let home = init(dir.path(), "taker", &genesis);
    let taker = Node::start(&home, &["--bootstrap", &giver.address()]);
    taker.wait(
        |node| node.standing(&giver.peer()).as_deref() == Some("member"),
        "the giver",
    );

    // A range of what is not here yet brings only its blocks.
    let file = format!("/ipfs/{cid}/large.bin");
    let part = get(&home, &file, &["Range: bytes=600000-600009"]);
    assert_eq!(
        (part.status, part.body.as_slice()),
        (206, &large[600_000..600_010])
    );
    assert!(
        part.has(&format!("content-range: bytes 600000-600009/{}", large.len())),
        "{}",
        part.headers
    );
    let held = json(&home, &["content", "stat"])["bytes"].as_u64().unwrap();
    assert!(held < 300_000, "{held} bytes came for a range of ten");

    let whole = get(&home, &file, &[]);
    assert_eq!((whole.status, &whole.body), (200, &large));
    assert!(
        whole.has("accept-ranges: bytes") && whole.has("content-type: application/octet-stream"),
        "{}",
        whole.headers
    );
    let tag = whole
        .headers
        .lines()
        .find_map(|line| line.strip_prefix("etag: "))
        .unwrap()
        .to_owned();
    assert_eq!(get(&home, &file, &[&format!("If-None-Match: {tag}")]).status, 304);
    let tail = get(&home, &file, &["Range: bytes=-5", &format!("If-Range: {tag}")]);
    assert_eq!(
        (tail.status, tail.body.as_slice()),
        (206, &large[large.len() - 5..])
    );
    assert_eq!(
        get(&home, &file, &["Range: bytes=0-4", "If-Range: \"other\""]).status,
        200
    );
    let beyond = get(&home, &file, &["Range: bytes=99999999-"]);
    assert_eq!(beyond.status, 416);
    assert!(
        beyond.has(&format!("content-range: bytes */{}", large.len())),
        "{}",
        beyond.headers
    );
    let head = request(&home, "HEAD", &file, "localhost:1", &[]);
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert!(
        head.has(&format!("content-length: {}", large.len())),
        "{}",
        head.headers
    );

    let moved = get(&home, &format!("/ipfs/{cid}"), &[]);
    assert!(
        moved.status == 308 && moved.has(&format!("location: /ipfs/{cid}/")),
        "{}",
        moved.headers
    );
    let listing = get(&home, &format!("/ipfs/{cid}/"), &[]);
    let page = String::from_utf8(listing.body).unwrap();
    assert!(
        page.contains("a%20b%23%C3%BC.html") && page.contains("inner"),
        "{page}"
    );
    assert!(
        listing.headers.contains("content-security-policy: sandbox"),
        "{}",
        listing.headers
    );
    let rows = get(&home, &format!("/ipfs/{cid}/"), &["Accept: application/json"]);
    let rows: Value = serde_json::from_slice(&rows.body).unwrap();
    assert_eq!(rows[1]["name"], "inner");
    let named = get(&home, &format!("/ipfs/{cid}/a%20b%23%C3%BC.html"), &[]);
    assert_eq!(named.body, b"<p>page");
    assert!(
        named.has("content-type: text/html; charset=utf-8"),
        "{}",
        named.headers
    );

    let raw = get(&home, &format!("/ipfs/{cid}?format=raw"), &[]);
    assert!(
        raw.has("content-type: application/vnd.ipld.raw") && raw.body.len() > 100,
        "{}",
        raw.headers
    );
    let car = get(&home, &format!("/ipfs/{cid}?format=car"), &[]);
    let path = dir.path().join("from-gateway.car");
    fs::write(&path, unchunked(&car)).unwrap();
    let taken = json(
        &dir.path().join("third"),
        &["content", "import", path.to_str().unwrap()],
    );
    assert_eq!(taken["roots"][0], cid);

    assert_eq!(get(&home, &format!("/ipfs/{cid}/nothing"), &[]).status, 404);
    assert_eq!(get(&home, "/ipfs/nonsense", &[]).status, 400);
    assert_eq!(get(&home, &format!("/ipfs/{cid}/%2e%2e/x"), &[]).status, 400);
    let rebound = request(&home, "GET", &file, "evil.example", &[]);
    assert_eq!(rebound.status, 400, "{}", rebound.headers);
    // Everything else still needs the token.
    assert_eq!(get(&home, "/v1/content", &[]).status, 401);
    let other = run(
        &home,
        &["content", "cat", &format!("{cid}/a b#ü.html"), "--offset", "3"],
    );
    assert_eq!(other.stdout, b"page");
}

/// The body of a chunked answer.
fn unchunked(answer: &Answer) -> Vec<u8> {
    assert!(answer.has("transfer-encoding: chunked"), "{}", answer.headers);
    let (mut out, mut rest) = (Vec::new(), answer.body.as_slice());
    loop {
        let end = rest.windows(2).position(|w| w == b"\r\n").unwrap();
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        if length == 0 {
            return out;
        }
        out.extend(&rest[end + 2..end + 2 + length]);
        rest = &rest[end + 4 + length..];
    }
}

/// A file of one chunk is a block without links: its root is all there is.
#[test]
fn files_of_one_block_and_of_none_are_fetched() {
    let dir = tempfile::tempdir().unwrap();
    let genesis = genesis(dir.path(), "lab");
    let giver = Node::start(&init(dir.path(), "giver", &genesis), &["--role", "bootstrap"]);
    let home = init(dir.path(), "taker", &genesis);
    let join = giver.address();
    let taker = Node::start(&home, &["--bootstrap", &join]);
    taker.wait(
        |node| node.standing(&giver.peer()).as_deref() == Some("member"),
        "the giver",
    );
    for (name, bytes) in [
        ("empty", vec![]),
        ("byte", vec![b'x']),
        ("chunk", vec![7; 262_144]),
        ("two", vec![8; 262_145]),
    ] {
        let file = dir.path().join(name);
        fs::write(&file, &bytes).unwrap();
        let cid = text(
            &json(&giver.home, &["content", "add", file.to_str().unwrap()]),
            "cid",
        );
        let out = dir.path().join(format!("{name}-got"));
        let got = json(&home, &["content", "get", &cid, "--out", out.to_str().unwrap()]);
        assert_eq!(got["bytes"], bytes.len(), "{name}: {got}");
        assert_eq!(fs::read(&out).unwrap(), bytes, "{name}");
    }
}
