//! The gateway's headers, by method, format and what the asker has already; and readers that do not read.

use crate::support::{Node, genesis, init, json};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

const HTML: &str = "text/html,application/xhtml+xml,*/*;q=0.8";

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(header, _)| header == name);
        found.map(|(_, value)| value.as_str())
    }
}

fn connect(home: &Path) -> TcpStream {
    let file: Value = serde_json::from_slice(&fs::read(home.join("api.json")).unwrap()).unwrap();
    let socket = TcpStream::connect(file["address"].as_str().unwrap()).unwrap();
    let patience = std::time::Duration::from_secs(120);
    socket.set_read_timeout(Some(patience)).unwrap();
    socket
}

pub(crate) fn ask(home: &Path, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut socket = connect(home);
    // HTTP 1.0 has no chunks.
    let mut head = format!("{method} {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    socket.write_all(format!("{head}\r\n").as_bytes()).unwrap();
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).unwrap();
    let split = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(bytes[..split].to_vec()).unwrap();
    let header = |line: &str| {
        let (name, value) = line.split_once(": ")?;
        Some((name.to_lowercase(), value.to_owned()))
    };
    Answer {
        status: head[9..12].parse().unwrap(),
        headers: head.lines().filter_map(header).collect(),
        body: bytes[split + 4..].to_vec(),
    }
}

struct Site {
    _dir: tempfile::TempDir,
    home: PathBuf,
    node: Node,
    root: String,
}

impl Site {
    /// A node with a directory: an index, a text and a directory without an index.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let genesis = genesis(dir.path(), "lab");
        let home = init(dir.path(), "node", &genesis);
        let source = dir.path().join("source");
        fs::create_dir_all(source.join("inner")).unwrap();
        fs::write(source.join("index.html"), "<p>index").unwrap();
        fs::write(source.join("inner/text.txt"), "text").unwrap();
        fs::write(source.join("inner/other.bin"), vec![7; 600_000]).unwrap();
        let node = Node::start(&home, &["--role", "bootstrap"]);
        let added = json(&home, &["content", "add", source.to_str().unwrap()]);
        Self {
            root: added["cid"].as_str().unwrap().to_owned(),
            _dir: dir,
            home,
            node,
        }
    }

    fn path(&self, rest: &str) -> String {
        format!("/ipfs/{}{rest}", self.root)
    }
}

#[test]
fn answers_have_the_headers_of_the_specification() {
    let site = Site::new();
    let raw = "application/vnd.ipld.raw";
    let car = "application/vnd.ipld.car";
    // Path, Accept, media type, whether content or what was made of it, whether it is to be saved.
    let cases = [
        (
            "/inner/text.txt",
            "*/*",
            "text/plain; charset=utf-8",
            "immutable",
            "",
        ),
        ("/", HTML, "text/html; charset=utf-8", "immutable", ""),
        ("/inner/", HTML, "text/html; charset=utf-8", "max-age=604800", ""),
        (
            "/inner/",
            "application/json",
            "application/json",
            "max-age=604800",
            "",
        ),
        ("/", "application/json", "application/json", "max-age=604800", ""),
        ("?format=raw", HTML, raw, "immutable", ".bin\""),
        ("/inner/text.txt?format=raw", "*/*", raw, "immutable", ".bin\""),
        ("/inner/text.txt", raw, raw, "immutable", ".bin\""),
        ("?format=car", HTML, car, "immutable", ".car\""),
        ("/inner?format=car", "*/*", car, "immutable", ".car\""),
        ("/inner/text.txt", car, car, "immutable", ".car\""),
        (
            "/inner/text.txt?format=car",
            "application/json",
            car,
            "immutable",
            ".car\"",
        ),
    ];
    let mut tags = Vec::new();
    for (rest, accept, kind, kept, saved) in cases {
        let (path, what) = (site.path(rest), format!("{rest} as {accept}"));
        let get = ask(&site.home, "GET", &path, &[("Accept", accept)]);
        assert_eq!(get.status, 200, "{what}");
        assert!(
            get.header("content-type").unwrap().starts_with(kind),
            "{what}: {:?}",
            get.headers
        );
        assert!(
            get.header("cache-control").unwrap().contains(kept),
            "{what}: {:?}",
            get.headers
        );
        assert_eq!(get.header("vary"), Some("accept"), "{what}");
        assert_eq!(get.header("x-ipfs-path"), path.split('?').next(), "{what}");
        let roots = get.header("x-ipfs-roots").unwrap();
        let parts = rest
            .split('?')
            .next()
            .unwrap()
            .split('/')
            .filter(|part| !part.is_empty())
            .count();
        assert!(
            roots.starts_with(&site.root) && roots.split(',').count() == parts + 1,
            "{what}: {roots}"
        );
        let disposition = get.header("content-disposition").unwrap_or_default();
        assert!(
            disposition.ends_with(saved) && disposition.starts_with("attachment") != saved.is_empty(),
            "{what}: {disposition}"
        );
        let tag = get.header("etag").unwrap().to_owned();
        tags.push((tag.clone(), get.body.clone()));

        let head = ask(&site.home, "HEAD", &path, &[("Accept", accept)]);
        assert_eq!((head.status, head.body.len()), (200, 0), "{what}");
        for name in [
            "etag",
            "content-type",
            "cache-control",
            "vary",
            "x-ipfs-roots",
            "content-disposition",
        ] {
            assert_eq!(head.header(name), get.header(name), "HEAD {what}: {name}");
        }
        let length = head.header("content-length");
        assert!(
            length.is_none_or(|length| length == get.body.len().to_string()),
            "HEAD {what}: {length:?}"
        );
        for method in ["GET", "HEAD"] {
            for known in [tag.clone(), format!("\"x\", W/{tag}"), "*".to_owned()] {
                let again = ask(
                    &site.home,
                    method,
                    &path,
                    &[("Accept", accept), ("If-None-Match", &known)],
                );
                assert_eq!(
                    (again.status, again.body.len()),
                    (304, 0),
                    "{method} {what} with {known}"
                );
                for name in ["etag", "cache-control", "vary"] {
                    assert_eq!(again.header(name), get.header(name), "{method} {what}: {name}");
                }
            }
        }
        let other = ask(
            &site.home,
            "GET",
            &path,
            &[("Accept", accept), ("If-None-Match", "\"x\"")],
        );
        assert_eq!(other.status, 200, "{what}");
    }
    // A tag stands for the same bytes wherever it is given.
    for (tag, body) in &tags {
        assert!(
            tags.iter().all(|(other, bytes)| other != tag || bytes == body),
            "{tag}"
        );
    }
}

#[test]
fn formats_that_are_not_made_are_refused() {
    let site = Site::new();
    for rest in ["/inner/text.txt", "/inner/", ""] {
        for format in ["tar", "dag-json", "json", "ipns-record", "CAR", "", "nonsense"] {
            let path = site.path(&format!("{rest}?format={format}"));
            assert_eq!(ask(&site.home, "GET", &path, &[]).status, 400, "{path}");
        }
    }
    let text = site.path("/inner/text.txt");
    for (accept, status) in [
        ("application/x-tar", 400),
        ("application/vnd.ipld.dag-cbor", 400),
        ("application/x-tar, */*", 200),
        ("image/png", 200),
    ] {
        assert_eq!(
            ask(&site.home, "GET", &text, &[("Accept", accept)]).status,
            status,
            "{accept}"
        );
    }
}

/// Whoever trusts nobody needs every block from the root that it asked for to the end of the path.
#[test]
fn a_car_of_a_path_can_be_verified_from_its_root() {
    let site = Site::new();
    let other = tempfile::tempdir().unwrap();
    let file = other.path().join("path.car");
    let answer = ask(&site.home, "GET", &site.path("/inner/text.txt?format=car"), &[]);
    fs::write(&file, &answer.body).unwrap();
    let taken = json(other.path(), &["content", "import", file.to_str().unwrap()]);
    // The two directories and the file; nothing of what lies beside it.
    assert_eq!(taken["blocks"], 3);
    let path = format!("{}/inner/text.txt", site.root);
    let read = crate::support::run(other.path(), &["content", "cat", &path]);
    assert_eq!(read.stdout, b"text");
}

/// More clients than the program has threads for its store, none of which takes what it asked for.
#[test]
fn clients_that_do_not_read_hold_nobody_up() {
    let site = Site::new();
    let large = site.home.join("large");
    let bytes: Vec<u8> = (0..4_000_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(&large, bytes).unwrap();
    let cid = json(&site.home, &["content", "add", large.to_str().unwrap()])["cid"].clone();
    let cid = cid.as_str().unwrap();
    let open = |path: String| {
        let mut socket = connect(&site.home);
        write!(socket, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
        // The answer has begun.
        let mut first = [0; 15];
        socket.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"HTTP/1.0 200 OK");
        socket
    };
    let mut sockets = Vec::new();
    for client in 0..560 {
        let format = if client % 8 == 0 { "?format=car" } else { "" };
        sockets.push(open(format!("/ipfs/{cid}{format}")));
    }
    let stat = json(&site.home, &["content", "stat"]);
    assert_eq!(stat["pins"], 2, "{stat}");
    let text = ask(&site.home, "GET", &site.path("/inner/text.txt"), &[]);
    assert_eq!(text.body, b"text");
    assert!(site.node.try_status().is_some());
    drop(sockets);
}

/// Whoever asked for an add and went away gets none of it.
#[test]
fn an_add_ends_when_its_asker_is_killed() {
    let cut_short = [256, 512, 1024, 2048].into_iter().any(is_cut_short);
    assert!(cut_short, "files of any size are added to their end for nobody");
}

/// Whether an add of so many mebibytes ended early; not where it was faster than whoever killed its asker.
fn is_cut_short(megabytes: u64) -> bool {
    let site = Site::new();
    let before = json(&site.home, &["content", "stat"]);
    let (held, pins) = (before["blocks"].as_u64().unwrap(), &before["pins"]);
    let large = site.home.join("large");
    write_noise(&large, megabytes);
    let mut asker = crate::support::hanzod()
        .arg("--home")
        .arg(&site.home)
        .args(["content", "add"])
        .arg(&large)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let blocks = || json(&site.home, &["content", "stat"])["blocks"].as_u64().unwrap();
    site.node.wait(|_| blocks() > held + 20, "the add to begin");
    asker.kill().unwrap();
    if asker.wait().unwrap().success() {
        return false;
    }
    let now = std::cell::Cell::new(blocks());
    let is_still = |_: &Node| {
        std::thread::sleep(std::time::Duration::from_millis(500));
        now.replace(blocks()) == now.get()
    };
    site.node.wait(is_still, "the add to end");
    if now.get() >= held + megabytes * 4 {
        return false;
    }
    assert_eq!(&json(&site.home, &["content", "stat"])["pins"], pins);
    // Nothing holds off collection.
    json(&site.home, &["content", "gc"]);
    assert_eq!(blocks(), held);
    true
}

fn write_noise(path: &Path, megabytes: u64) {
    let mut file = fs::File::create(path).unwrap();
    let mut state = megabytes | 1;
    for _ in 0..megabytes {
        let piece: Vec<u8> = (0..1 << 17)
            .flat_map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                u64::to_le_bytes(state)
            })
            .collect();
        file.write_all(&piece).unwrap();
    }
}
