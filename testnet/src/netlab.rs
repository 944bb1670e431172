//! Network namespaces for nodes, and the emulated links between them: `scripts/netlab serve` as a child.

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Its exit code where namespaces cannot be made.
const UNAVAILABLE: i32 = 77;
/// How long it may take to clean up when asked to end.
const END: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

/// What every link is like.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Links {
    /// One-way delay, milliseconds.
    pub delay_ms: f64,
    /// Every member's uplink and downlink, Mbit/s; 0 is unlimited.
    pub mbit: f64,
    /// Packets lost, percent.
    pub loss: f64,
}

/// A network namespace and its node's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    /// Its name for `ip netns exec`.
    pub name: String,
    /// The address of its device.
    pub address: Ipv4Addr,
    /// Its number for [`Netlab::command`], from 1.
    pub number: usize,
}

impl Space {
    /// Moves the calling thread into the namespace: sockets that it opens are there.
    ///
    /// # Errors
    /// When it is gone, or the system does not allow it.
    #[cfg(target_os = "linux")]
    pub fn enter(&self) -> anyhow::Result<()> {
        let path = Path::new("/run/netns").join(&self.name);
        let space = std::fs::File::open(&path).with_context(|| path.display().to_string())?;
        nix::sched::setns(space, nix::sched::CloneFlags::CLONE_NEWNET)
            .with_context(|| format!("entering the network namespace {}", self.name))
    }

    /// There are none.
    ///
    /// # Errors
    /// Always.
    #[cfg(not(target_os = "linux"))]
    pub fn enter(&self) -> anyhow::Result<()> {
        bail!("network namespaces are Linux's")
    }

    /// Does `work` in a thread of its own inside the namespace.
    ///
    /// # Errors
    /// As [`Space::enter`].
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| self.enter().map(|()| work()));
            inside
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// The running emulator. Dropped, it takes its namespaces down and ends what still runs in them.
#[derive(Debug)]
pub struct Netlab {
    child: Child,
    pipes: Mutex<Pipes>,
    spaces: Vec<Space>,
}

#[derive(Debug)]
struct Pipes {
    /// Taken when it shall end.
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Netlab {
    /// Makes `members` namespaces; `None`, with words for people, where the system does not allow it.
    ///
    /// # Errors
    /// When the program is not there or fails otherwise.
    pub fn start(members: usize, links: Links, prefix: &str) -> anyhow::Result<Result<Self, String>> {
        let script = script()?;
        let mut command = Command::new(&script);
        command.args(["serve", "--prefix", prefix, "--members", &members.to_string()]);
        command.args(["--delay-ms", &links.delay_ms.to_string()]);
        command.args(["--mbit", &links.mbit.to_string()]);
        // A loss shall strike one packet, not the 64 KiB that offloading makes of many.
        let offload = if links.loss > 0.0 { "off" } else { "on" };
        command.args(["--loss", &links.loss.to_string(), "--offload", offload]);
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| script.display().to_string())?;
        let mut answers = BufReader::new(child.stdout.take().context("netlab's output")?);
        let mut said = String::new();
        answers.read_line(&mut said).context("netlab's first line")?;
        if said.is_empty() {
            let done = child.wait_with_output().context("netlab's end")?;
            let words = String::from_utf8_lossy(&done.stderr).trim().to_owned();
            ensure!(done.status.code() == Some(UNAVAILABLE), "netlab failed: {words}");
            return Ok(Err(words));
        }
        let pipes = Mutex::new(Pipes {
            commands: child.stdin.take(),
            answers,
        });
        let spaces = spaces(&said)?;
        Ok(Ok(Self { child, pipes, spaces }))
    }

    /// The namespaces.
    #[must_use]
    pub fn spaces(&self) -> &[Space] {
        &self.spaces
    }

    /// Changes a link or asks for counters; `scripts/netlab --help` lists the commands.
    ///
    /// # Errors
    /// When it does not know the command, or is gone.
    pub fn command(&self, line: &str) -> anyhow::Result<Value> {
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        let commands = pipes.commands.as_mut().context("netlab has ended")?;
        writeln!(commands, "{line}")
            .and_then(|()| commands.flush())
            .context("netlab is gone")?;
        let mut said = String::new();
        pipes.answers.read_line(&mut said).context("netlab's answer")?;
        let answer: Value = serde_json::from_str(&said).with_context(|| format!("netlab said {said:?}"))?;
        match answer.get("error") {
            Some(error) => bail!("netlab: {error}"),
            None => Ok(answer),
        }
    }
}

impl Drop for Netlab {
    fn drop(&mut self) {
        let pipes = self.pipes.get_mut().unwrap_or_else(PoisonError::into_inner);
        pipes.commands = None;
        let until = Instant::now() + END;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(POLL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spaces(line: &str) -> anyhow::Result<Vec<Space>> {
    let place: Value = serde_json::from_str(line).with_context(|| format!("netlab said {line:?}"))?;
    let texts = |key: &str| -> Vec<String> {
        let list = place[key].as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(String::from).collect()
    };
    let members = texts("names").into_iter().zip(texts("addresses"));
    members
        .zip(1..)
        .map(|((name, address), number)| {
            let address = address.parse().with_context(|| address.clone())?;
            Ok(Space {
                name,
                address,
                number,
            })
        })
        .collect()
}

/// The script of the source tree this program was built from, or of the current folder's.
fn script() -> anyhow::Result<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/netlab");
    let here = std::path::absolute("scripts/netlab")?;
    let found = [built, here].into_iter().find(|path| path.exists());
    found.context("scripts/netlab is not there: run this in the source tree")
}
