//! Places that are taken or full: a port, a home, a disk.

use super::Stage;
use crate::network::Network;
use crate::node::{NodeProcess, NodeSpec};
use crate::output::complain;
use anyhow::{Context, bail, ensure};
use hanzod::role::Role;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A second node on a home in use, and nodes on ports in use: each says so, and the first goes on.
pub(super) fn taken(stage: &Stage) -> anyhow::Result<()> {
    let mut network = Network::found(
        stage.program.clone(),
        stage.folder.clone(),
        stage.interrupt.clone(),
    )?;
    let home = network.node("bootstrap")?.home().root().to_path_buf();
    let pid = network
        .pids()
        .next()
        .context("the bootstrap node does not run")?
        .to_string();
    let second = [
        "run",
        "--role",
        "worker",
        "--mdns",
        "off",
        "--listen",
        "/ip4/127.0.0.1/tcp/0",
    ];
    refused(
        stage.program.run(&home, &second),
        &["in use by another node", &pid, "--home"],
    )?;

    let other = stage.folder.home("other");
    NodeProcess::init(
        &stage.program,
        NodeSpec::new("other", Role::Worker),
        &other,
        &stage.folder.genesis(),
    )?;
    let held = TcpListener::bind("127.0.0.1:0")?;
    let port = held.local_addr()?.port().to_string();
    let listen = format!("/ip4/127.0.0.1/tcp/{port}");
    let on_port = ["run", "--role", "worker", "--mdns", "off", "--listen", &listen];
    refused(
        stage.program.run(&other, &on_port),
        &[&port, "in use", "--listen"],
    )?;
    let api = format!("127.0.0.1:{port}");
    let on_api = [
        "run",
        "--mdns",
        "off",
        "--listen",
        "/ip4/127.0.0.1/tcp/0",
        "--api-listen",
        &api,
    ];
    refused(
        stage.program.run(&other, &on_api),
        &[&api, "in use", "--api-listen"],
    )?;

    network.check_alive()?;
    network
        .node("bootstrap")?
        .client()?
        .get("/v1/status")
        .context("the first node after the others")?;
    network.stop();
    Ok(())
}

/// Content that does not fit the disk: an error, and what was stored before is kept.
pub(super) fn full_disk(stage: &Stage) -> anyhow::Result<()> {
    let Some(disk) = SmallDisk::mount(stage.folder.root())? else {
        complain("SKIPPED full-disk: it needs root, to mount a small disk in a mount namespace of its own");
        return Ok(());
    };
    let mut network = Network::found(
        stage.program.clone(),
        stage.folder.clone(),
        stage.interrupt.clone(),
    )?;
    let home = disk.path.join("home");
    let spec = NodeSpec::new("full", Role::Worker);
    let mut node = NodeProcess::init(&stage.program, spec, &home, &stage.folder.genesis())?;
    node.join_through(network.bootstrap_address());
    node.start()?;
    node.wait_ready()?;
    let small = file(stage.folder.root(), "small", 100 << 10)?;
    let kept = stage
        .program
        .run(&home, &["content".as_ref(), "add".as_ref(), small.as_os_str()])?;
    let large = file(stage.folder.root(), "large", 32 << 20)?;
    let added = stage
        .program
        .run(&home, &["content".as_ref(), "add".as_ref(), large.as_os_str()]);
    refused(added, &["no space left", &disk.path.display().to_string()])?;
    let list = stage
        .program
        .run(&home, &["content", "ls"])
        .context("listing content on the full disk")?;
    ensure!(list.contains(kept.trim()), "{} was lost: {list}", kept.trim());
    let back = stage.folder.root().join("back");
    let get = [
        "content".as_ref(),
        "get".as_ref(),
        kept.trim().as_ref(),
        "--out".as_ref(),
        back.as_os_str(),
    ];
    stage
        .program
        .run(&home, &get)
        .context("reading back from the full disk")?;
    ensure!(
        std::fs::read(&back)? == std::fs::read(&small)?,
        "what was read back differs"
    );
    node.stop();
    network.stop();
    Ok(())
}

fn refused(answer: anyhow::Result<String>, words: &[&str]) -> anyhow::Result<()> {
    let Err(error) = answer else {
        bail!("it was not refused, though it should say {words:?}")
    };
    let said = format!("{error:#}");
    for word in words {
        ensure!(said.contains(word), "the refusal does not say {word:?}: {said}");
    }
    Ok(())
}

/// Bytes that do not repeat.
fn file(dir: &Path, name: &str, bytes: usize) -> anyhow::Result<PathBuf> {
    let path = dir.join(name);
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::fs::write(&path, (0..bytes).map(|_| next()).collect::<Vec<u8>>())?;
    Ok(path)
}

/// A tmpfs in a mount namespace that a sleeping child holds open; it is reached through that child's root.
struct SmallDisk {
    holder: Child,
    path: PathBuf,
}

const DISK: &str = "mount -t tmpfs -o size=8m tmpfs \"$1\" && echo mounted && exec cat";

impl SmallDisk {
    /// `None` where the system does not allow it.
    fn mount(dir: &Path) -> anyhow::Result<Option<Self>> {
        let at = dir.join("disk");
        std::fs::create_dir_all(&at)?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", DISK, "sh"]).arg(&at);
        let spawned = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut holder) = spawned else { return Ok(None) };
        let mut said = String::new();
        BufReader::new(holder.stdout.take().context("the holder's output")?).read_line(&mut said)?;
        if said.trim() != "mounted" {
            let _ = holder.wait();
            return Ok(None);
        }
        let inside = at.strip_prefix("/").unwrap_or(&at);
        let path = PathBuf::from(format!("/proc/{}/root", holder.id())).join(inside);
        Ok(Some(Self { holder, path }))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
