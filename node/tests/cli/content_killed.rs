//! `kill -9` at any moment of adding, fetching and collecting: the store is whole each time.

use crate::support::{Node, genesis, hanzod, init, json};
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

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

/// How a command ended that was to be killed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Died {
    /// By the signal.
    Working,
    /// By itself, before.
    Done,
}

fn kill_after(mut child: Child, wait: Duration) -> Died {
    std::thread::sleep(wait);
    // SIGKILL; it may have ended by itself.
    child.kill().unwrap();
    match child.wait().unwrap().signal() {
        Some(9) => Died::Working,
        _ => Died::Done,
    }
}

/// How long a command takes that nobody kills.
fn measure(mut child: Child) -> Duration {
    let begun = Instant::now();
    assert!(child.wait().unwrap().success());
    begun.elapsed()
}

/// A moment in the first `length` of something.
fn moment(random: &mut Random, length: Duration) -> Duration {
    length.mul_f64(random.below(1000) as f64 / 1000.0)
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
    let (mut working, mut half_added) = (0, 0);
    let mut times = [None; 4];
    for round in 1..=WITHOUT_A_NODE + 4 {
        let source = file(dir.path(), round, 4 << 20);
        let out = dir.path().join(format!("out-{round}"));
        let car = dir.path().join(format!("car-{round}"));
        let held = json(&home, &["content", "stat"]);
        let (what, child) = match round % 4 {
            0 => ("gc", start(&home, &["gc"])),
            1 => ("get", start(&home, &["get", kept, "-o", out.to_str().unwrap()])),
            2 => (
                "export",
                start(&home, &["export", kept, "-o", car.to_str().unwrap()]),
            ),
            _ => ("add", start(&home, &["add", source.to_str().unwrap()])),
        };
        let time = &mut times[round as usize % 4];
        // The first of each is left alone, to know how long it takes.
        let Some(time) = *time else {
            *time = Some(measure(child));
            fs::remove_file(source).unwrap();
            continue;
        };
        let died = kill_after(child, moment(&mut random, time));
        working += u32::from(died == Died::Working);
        assert_whole(&home, &format!("kill {round}, of {what}"));
        let now = json(&home, &["content", "stat"]);
        let grew = now["blocks"].as_u64() > held["blocks"].as_u64();
        half_added += u32::from(what == "add" && grew && now["pins"] == held["pins"]);
        // What was written out is whole or absent.
        if out.exists() {
            assert_eq!(
                fs::read(&out).unwrap(),
                fs::read(dir.path().join("file-0")).unwrap()
            );
        }
        fs::remove_file(source).unwrap();
    }
    assert!(
        working >= WITHOUT_A_NODE / 2,
        "only {working} of {WITHOUT_A_NODE} were killed before their end"
    );
    assert!(
        half_added > 0,
        "no add was killed between its first block and its pin"
    );
}

#[test]
fn a_fetch_goes_on_after_50_kills_slow() {
    let dir = tempfile::tempdir().unwrap();
    let genesis = genesis(dir.path(), "lab");
    let giver = Node::start(&init(dir.path(), "giver", &genesis), &["--role", "bootstrap"]);
    let home = init(dir.path(), "taker", &genesis);
    let join = giver.address();
    let mut random = Random(11);
    let (mut time, mut working) = (None, 0);
    for round in 1..=WITH_A_NODE + 1 {
        let source = file(dir.path(), round, 6 << 20);
        let added = json(&giver.home, &["content", "add", source.to_str().unwrap()]);
        let cid = added["cid"].as_str().unwrap();
        let taker = Node::start(&home, &["--bootstrap", &join]);
        taker.wait(|node| node.standing(&giver.peer()).is_some(), "the giver");
        let mut asker = start(&home, &["pin", cid]);
        // The first is left alone, to know how long it takes.
        let Some(time) = time else {
            time = Some(measure(asker));
            continue;
        };
        std::thread::sleep(moment(&mut random, time));
        // SIGKILL.
        drop(taker);
        working += u32::from(!asker.wait().unwrap().success());
        assert_whole(&home, &format!("kill {round} of a node that fetched"));
    }
    assert!(
        working >= WITH_A_NODE / 2,
        "only {working} of {WITH_A_NODE} nodes were killed while they fetched"
    );
    // The last fetch is carried to its end from what is there.
    let taker = Node::start(&home, &["--bootstrap", &join]);
    let last = dir.path().join(format!("file-{}", WITH_A_NODE + 1));
    let cid = json(&giver.home, &["content", "add", last.to_str().unwrap()])["cid"]
        .as_str()
        .unwrap()
        .to_owned();
    let out = dir.path().join("out");
    json(&home, &["content", "get", &cid, "-o", out.to_str().unwrap()]);
    assert_eq!(fs::read(out).unwrap(), fs::read(last).unwrap());
    drop(taker);
}
