//! However the testnet ends, none of its processes is left.

#![allow(clippy::unwrap_used, reason = "helpers of a test fail by panicking")]

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const START: Duration = Duration::from_secs(90);
const END: Duration = Duration::from_secs(30);
const NODES: usize = 4;

/// A job that no worker takes up within the test: the network is up and waits.
const JOB: &str = "name = \"waits\"\nmodel = \"bafybeigdyrzt5sfp7udm7hu76uh7y26nf3efuylqabf3oclgtqy55fbzdi\"\n\
                   train = \"bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e\"\n\
                   heldout = \"bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku\"\n\
                   use_4bit = false\nrewards = [{ name = \"numeric\" }]\n[schedule]\nrounds = 1\nmin_workers = 1\n";

#[test]
fn an_interrupt_leaves_no_process() {
    let mut run = Run::start("interrupted");
    run.signal(Signal::INT);
    run.expect_end();
}

#[test]
fn a_termination_leaves_no_process() {
    let mut run = Run::start("terminated");
    run.signal(Signal::TERM);
    run.expect_end();
}

#[test]
fn a_kill_leaves_no_process() {
    let mut run = Run::start("killed");
    run.signal(Signal::KILL);
    run.expect_end();
}

struct Run {
    dir: PathBuf,
    child: Child,
    nodes: Vec<i32>,
}

impl Run {
    /// Starts a testnet and waits until all of its nodes run.
    fn start(name: &str) -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let job = dir.with_extension("toml");
        fs::write(&job, JOB).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_testnet"));
        command
            .args(["--workers", "1", "--job"])
            .arg(&job)
            .arg("--dir")
            .arg(&dir);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut run = Self {
            dir,
            child,
            nodes: Vec::new(),
        };
        let until = Instant::now() + START;
        while run.nodes.len() < NODES {
            assert!(
                Instant::now() < until,
                "only {:?} of {NODES} nodes run",
                run.nodes
            );
            assert!(
                run.child.try_wait().unwrap().is_none(),
                "the testnet has ended; see {}",
                run.dir.display()
            );
            std::thread::sleep(Duration::from_millis(50));
            run.nodes = run.children();
        }
        run
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// The testnet ends, and so do its nodes.
    fn expect_end(&mut self) {
        let until = Instant::now() + END;
        while self.child.try_wait().unwrap().is_none() || !self.children().is_empty() {
            assert!(
                Instant::now() < until,
                "still running: {:?}; see {}",
                self.children(),
                self.dir.display()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        fs::remove_dir_all(&self.dir).unwrap();
    }

    /// Processes that run a node (not a passing command) in this run's folder.
    fn children(&self) -> Vec<i32> {
        let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let ids = processes.filter_map(|entry| entry.file_name().to_string_lossy().parse::<i32>().ok());
        let dir = self.dir.to_string_lossy().into_owned();
        ids.filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains(&dir) && line.contains("\0run\0")
        })
        .collect()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
