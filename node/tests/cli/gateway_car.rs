//! Parts of graphs as CARs: `dag-scope`, `entity-bytes` and how blocks are laid out
//! (<https://specs.ipfs.tech/http-gateways/trustless-gateway/>).

use crate::gateway::{Answer, ask};
use crate::support::{Node, genesis, init, json};
use hanzod::content::{Cid, ContentPath, Store, block, car, store, unixfs};
use std::fs;
use std::path::PathBuf;

const CAR: &str = "application/vnd.ipld.car";

/// A node with content, and one that has nothing of it and is its neighbour.
struct Pair {
    dir: tempfile::TempDir,
    taker: PathBuf,
    large: Vec<u8>,
    root: Cid,
    _nodes: [Node; 2],
}

impl Pair {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let genesis = genesis(dir.path(), "lab");
        let source = dir.path().join("source");
        fs::create_dir_all(source.join("inner")).unwrap();
        let large: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
        fs::write(source.join("inner/large.bin"), &large).unwrap();
        // Its four chunks are one block.
        fs::write(source.join("inner/zeros.bin"), vec![0; 1 << 20]).unwrap();
        fs::write(source.join("index.html"), "<p>index").unwrap();
        let giver = Node::start(&init(dir.path(), "giver", &genesis), &["--role", "bootstrap"]);
        let added = json(&giver.home, &["content", "add", source.to_str().unwrap()]);
        let taker = init(dir.path(), "taker", &genesis);
        let node = Node::start(&taker, &["--bootstrap", &giver.address()]);
        let peer = giver.peer();
        node.wait(
            |node| node.standing(&peer).as_deref() == Some("member"),
            "the giver",
        );
        Self {
            root: added["cid"].as_str().unwrap().parse().unwrap(),
            dir,
            taker,
            large,
            _nodes: [giver, node],
        }
    }

    fn get(&self, rest: &str, accept: &str) -> Answer {
        self.ask("GET", rest, accept)
    }

    fn ask(&self, method: &str, rest: &str, accept: &str) -> Answer {
        let path = format!("/ipfs/{}{rest}", self.root);
        ask(&self.taker, method, &path, &[("Accept", accept)])
    }

    /// A store of what a CAR holds, and how many blocks it held.
    fn read(&self, answer: &Answer) -> (tempfile::TempDir, Store, u64) {
        assert_eq!(answer.status, 200, "{:?}", answer.headers);
        let place = tempfile::tempdir_in(self.dir.path()).unwrap();
        let config = store::Config {
            root: place.path().to_owned(),
            limit: 1 << 30,
        };
        let store = Store::open(config).unwrap();
        let read = car::read(&store, answer.body.as_slice(), |_| ()).unwrap();
        (place, store, read.blocks)
    }

    fn held(&self) -> u64 {
        json(&self.taker, &["content", "stat"])["blocks"]
            .as_u64()
            .unwrap()
    }
}

#[test]
fn scopes_and_ranges_bring_their_blocks_alone() {
    let pair = Pair::new();
    let large = "/inner/large.bin?format=car";
    // From the smallest to the largest: each brings what it lacks and nothing more.
    let block = pair.get(&format!("{large}&dag-scope=block"), "*/*");
    let (_at, store, blocks) = pair.read(&block);
    assert_eq!(
        (blocks, pair.held()),
        (3, 3),
        "two directories and the file's root"
    );
    let path = ContentPath::from(pair.root).join("inner").join("large.bin");
    assert!(unixfs::resolve(&store, &path).is_ok());

    let range = pair.get(&format!("{large}&entity-bytes=600000:600009"), "*/*");
    let (_at, store, blocks) = pair.read(&range);
    assert_eq!((blocks, pair.held()), (4, 4));
    let mut reader = unixfs::FileReader::open(&store, &path)
        .unwrap()
        .skip_bytes(600_000);
    let bytes = reader.next_bytes().unwrap().unwrap();
    assert_eq!(bytes[..10], pair.large[600_000..600_010]);

    let directory = pair.get("/inner?format=car&dag-scope=entity", "*/*");
    let (_at, store, blocks) = pair.read(&directory);
    assert_eq!((blocks, pair.held()), (2, 4));
    let inner = ContentPath::from(pair.root).join("inner");
    let inner = unixfs::resolve(&store, &inner).unwrap().cid;
    assert_eq!(unixfs::list(&store, &inner).unwrap().len(), 2);
    // A range of what is no file is ignored.
    let same = pair.get("/inner?format=car&entity-bytes=5:9", "*/*");
    assert_eq!(same.body, directory.body);

    let file = pair.get(&format!("{large}&dag-scope=entity"), "*/*");
    let (_at, store, blocks) = pair.read(&file);
    assert_eq!((blocks, pair.held()), (2 + 1 + 5, 8));
    let target = pair.dir.path().join("large");
    unixfs::export(&store, &path, &target, unixfs::Limits::default()).unwrap();
    assert_eq!(fs::read(target).unwrap(), pair.large);
    let whole = pair.get(&format!("{large}&entity-bytes=0:*"), "*/*");
    assert_eq!(whole.body, file.body);
    let tail = pair.get(&format!("{large}&entity-bytes=-9:*"), "*/*");
    assert_eq!(pair.read(&tail).2, 4);

    let all = pair.get("?format=car&dag-scope=all", "*/*");
    let (_at, store, _) = pair.read(&all);
    assert!(store.has(&block::cid_of(block::RAW, b"<p>index")));
    assert_eq!(all.body, pair.get("?format=car", "*/*").body);
}

#[test]
fn ranges_and_variants_that_make_no_sense_are_refused() {
    let pair = Pair::new();
    let large = "/inner/large.bin?format=car";
    let cases = [
        ("&entity-bytes=1200000:*", 400),
        ("&entity-bytes=1199999:*", 200),
        ("&entity-bytes=5", 400),
        ("&entity-bytes=9:5", 200),
        ("&dag-scope=some", 400),
        ("&car-order=bfs", 400),
        ("&car-version=2", 400),
        ("&car-dups=maybe", 400),
        ("&car-order=unk&car-version=1&car-dups=n", 200),
    ];
    for (query, status) in cases {
        for method in ["GET", "HEAD"] {
            let answer = pair.ask(method, &format!("{large}{query}"), "*/*");
            assert_eq!(answer.status, status, "{method} {query}");
        }
    }
    let accept = format!("{CAR}; order=bfs");
    assert_eq!(pair.get("/inner/large.bin", &accept).status, 400);
    // Where no CAR is asked for they say nothing.
    let plain = pair.get("/inner/large.bin?dag-scope=some&entity-bytes=x", "*/*");
    assert_eq!((plain.status, plain.body == pair.large), (200, true));
}

#[test]
fn duplicates_are_as_asked_for_and_tags_tell_answers_apart() {
    let pair = Pair::new();
    let zeros = "/inner/zeros.bin";
    let accept = format!("{CAR}; version=1; order=dfs; dups=y");
    let each = pair.get(zeros, &accept);
    assert_eq!(
        each.header("content-type"),
        Some("application/vnd.ipld.car; version=1; order=dfs; dups=y")
    );
    assert_eq!(pair.read(&each).2, 2 + 1 + 4);
    let once = pair.get(zeros, CAR);
    assert_eq!(
        once.header("content-type"),
        Some("application/vnd.ipld.car; version=1; order=dfs; dups=n")
    );
    assert_eq!(pair.read(&once).2, 2 + 1 + 1);

    let queries = [
        "",
        "&dag-scope=block",
        "&dag-scope=entity",
        "&entity-bytes=0:9",
        "&entity-bytes=0:*",
        "&car-dups=y",
        "&dag-scope=entity&car-dups=y",
    ];
    let mut tags = Vec::new();
    for query in queries {
        let rest = format!("{zeros}?format=car{query}");
        let answer = pair.get(&rest, "*/*");
        let tag = answer.header("etag").unwrap().to_owned();
        let path = format!("/ipfs/{}{rest}", pair.root);
        let again = ask(&pair.taker, "GET", &path, &[("If-None-Match", &tag)]);
        assert_eq!(again.status, 304, "{query}");
        assert!(!tags.contains(&tag), "{query}: {tag}");
        tags.push(tag);
    }
}
