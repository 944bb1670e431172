//! Real nodes as processes, killed when a test ends however it ends.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The program under test.
pub(crate) fn hanzod() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hanzod"));
    for (name, _) in std::env::vars() {
        if name.starts_with("HANZOD_") {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a command in `home`.
pub(crate) fn run(home: &Path, args: &[&str]) -> Output {
    hanzod().arg("--home").arg(home).args(args).output().unwrap()
}

/// Runs a command in `home` that must succeed, and answers with its JSON.
pub(crate) fn json(home: &Path, args: &[&str]) -> Value {
    let output = run(home, &[args, &["--json"]].concat());
    assert!(
        output.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What a command that must fail with `code` says on standard error.
pub(crate) fn failure(home: &Path, args: &[&str], code: i32) -> String {
    let output = run(home, args);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {words}");
    words
}

/// A genesis file of its own network.
pub(crate) fn genesis(dir: &Path, network: &str) -> PathBuf {
    let path = dir.join(format!("{network}.toml"));
    let out = path.to_str().unwrap();
    let output = run(dir, &["genesis", "new", "--network", network, "--out", out]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    path
}

/// A home with keys for the network of `genesis`.
pub(crate) fn init(dir: &Path, name: &str, genesis: &Path) -> PathBuf {
    let home = dir.join(name);
    json(&home, &["init", "--genesis", genesis.to_str().unwrap()]);
    home
}

/// A node that runs.
pub(crate) struct Node {
    pub(crate) home: PathBuf,
    child: Child,
}

impl Node {
    /// Starts a node on any free port of the loopback, and waits until its API answers.
    pub(crate) fn start(home: &Path, args: &[&str]) -> Self {
        Self::start_with(home, args, &[])
    }

    /// The same, with variables in its environment.
    pub(crate) fn start_with(home: &Path, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let always = ["run", "--mdns", "off", "--listen", "/ip4/127.0.0.1/tcp/0"];
        let child = hanzod()
            .arg("--home")
            .arg(home)
            .args(always)
            .args(args)
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let node = Self {
            home: home.to_path_buf(),
            child,
        };
        node.wait(
            |node| node.try_status().is_some_and(|s| s["listen"].get(0).is_some()),
            "to start",
        );
        node
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn try_status(&self) -> Option<Value> {
        let output = run(&self.home, &["status", "--json"]);
        output
            .status
            .success()
            .then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    pub(crate) fn status(&self) -> Value {
        json(&self.home, &["status"])
    }

    /// The address that others join through.
    pub(crate) fn address(&self) -> String {
        self.status()["listen"][0].as_str().unwrap().to_owned()
    }

    pub(crate) fn peer(&self) -> String {
        self.status()["peer"].as_str().unwrap().to_owned()
    }

    pub(crate) fn peers(&self) -> Vec<Value> {
        json(&self.home, &["peers"]).as_array().unwrap().clone()
    }

    /// The standing of `peer` here.
    pub(crate) fn standing(&self, peer: &str) -> Option<String> {
        let peers = self.peers();
        let found = peers.iter().find(|p| p["peer"] == peer)?;
        Some(found["standing"].as_str().unwrap().to_owned())
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.home.join("logs/hanzod.log")).unwrap_or_default()
    }

    /// Polls until `done`.
    pub(crate) fn wait(&self, done: impl Fn(&Self) -> bool, what: &str) {
        let deadline = Instant::now() + Duration::from_secs(90);
        while !done(self) {
            assert!(
                Instant::now() < deadline,
                "waited in vain for {what}; the log:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) fn terminate(mut self) -> std::process::ExitStatus {
        let killed = Command::new("kill").arg(self.pid().to_string()).status().unwrap();
        assert!(killed.success());
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "did not stop; the log:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
