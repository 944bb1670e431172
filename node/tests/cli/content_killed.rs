//! `kill -9` at any moment of adding, fetching and collecting: the store is whole each time.

use crate::support::{Node, genesis, hanzod, init, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

/// Kills in all, divided over what is killed.
const WITHOUT_A_NODE: u32 = 150;
const WITH_A_NODE: u32 = 50;

/// A small generator, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % limit
    }
}

/// A file that no other round has.
fn file(dir: &Path, round: u32, bytes: usize) -> PathBuf {
    let path = dir.join(format!("file-{round}"));
    let mut random = Random(u64::from(round) + 1);
    let content: Vec<u8> = (0..bytes / 8)
        .flat_map(|_| random.below(u64::MAX).to_le_bytes())
        .collect();
    fs::write(&path, content).unwrap();
    path
}

fn start(home: &Path, args: &[&str]) -> Child {
    let mut command = hanzod();
    command.arg("--home").arg(home).arg("content").args(args);
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn kill_after(mut child: Child, wait: Duration) {
    std::thread::sleep(wait);
    // SIGKILL; it may have ended by itself.
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Every block hashes to its name, and every pin is whole.
fn assert_whole(home: &Path, what: &str) {
    let report = json(home, &["content", "verify"]);
    let empty = serde_json::json!([]);
    assert_eq!(
        (&report["removed"], &report["incomplete"]),
        (&empty, &empty),
        "after {what}: {report}"
    );
}

#[test]
fn a_store_is_whole_after_150_kills_slow() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let kept = json(
        &home,
        &["content", "add", file(dir.path(), 0, 3 << 20).to_str().unwrap()],
    );
    let kept = kept["cid"].as_str().unwrap();
    let mut random = Random(7);
    for round in 1..=WITHOUT_A_NODE {
        let source = file(dir.path(), round, 4 << 20);
        let out = dir.path().join(format!("out-{round}"));
        let car = dir.path().join(format!("car-{round}"));
        let (what, child) = match round % 4 {
            0 => ("gc", start(&home, &["gc"])),
            1 => ("get", start(&home, &["get", kept, "-o", out.to_str().unwrap()])),
            2 => (
                "export",
                start(&home, &["export", kept, "-o", car.to_str().unwrap()]),
            ),
            _ => ("add", start(&home, &["add", source.to_str().unwrap()])),
        };
        kill_after(child, Duration::from_millis(random.below(60)));
        assert_whole(&home, &format!("kill {round}, of {what}"));
        // What was written out is whole or absent.
        if out.exists() {
            assert_eq!(
                fs::read(&out).unwrap(),
                fs::read(dir.path().join("file-0")).unwrap()
            );
        }
        fs::remove_file(source).unwrap();
    }
}

#[test]
fn a_fetch_goes_on_after_50_kills_slow() {
    let dir = tempfile::tempdir().unwrap();
    let genesis = genesis(dir.path(), "lab");
    let giver = Node::start(&init(dir.path(), "giver", &genesis), &["--role", "bootstrap"]);
    let home = init(dir.path(), "taker", &genesis);
    let join = giver.address();
    let mut random = Random(11);
    for round in 1..=WITH_A_NODE {
        let source = file(dir.path(), round, 6 << 20);
        let added = json(&giver.home, &["content", "add", source.to_str().unwrap()]);
        let cid = added["cid"].as_str().unwrap();
        let taker = Node::start(&home, &["--bootstrap", &join]);
        taker.wait(|node| node.standing(&giver.peer()).is_some(), "the giver");
        let mut asker = start(&home, &["pin", cid]);
        std::thread::sleep(Duration::from_millis(random.below(150)));
        // SIGKILL.
        drop(taker);
        asker.wait().unwrap();
        assert_whole(&home, &format!("kill {round} of a node that fetched"));
    }
    // The last fetch is carried to its end from what is there.
    let taker = Node::start(&home, &["--bootstrap", &join]);
    let last = dir.path().join(format!("file-{WITH_A_NODE}"));
    let cid = json(&giver.home, &["content", "add", last.to_str().unwrap()])["cid"]
        .as_str()
        .unwrap()
        .to_owned();
    let out = dir.path().join("out");
    json(&home, &["content", "get", &cid, "-o", out.to_str().unwrap()]);
    assert_eq!(fs::read(out).unwrap(), fs::read(last).unwrap());
    drop(taker);
}
