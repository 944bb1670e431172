//! One node: its home, its process, and how it is started, killed and asked.

use super::{Api, Program};
use crate::netlab::Space;
use anyhow::{Context, bail};
use hanzod::home::Home;
use hanzod::role::Role;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// How long a node may take until its API answers.
const START: Duration = Duration::from_secs(60);
/// How long it may take to stop when asked.
const STOP: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(20);

/// What a node is.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// Its name here, and its home's.
    pub name: String,
    /// What it does.
    pub role: Role,
    /// Faults it commits, `KIND@ROUND`.
    pub faults: Vec<String>,
    /// Further arguments of `hanzod run`.
    pub args: Vec<String>,
    /// The network namespace it runs in.
    pub space: Option<Space>,
}

impl NodeSpec {
    /// A node without faults.
    #[must_use]
    pub fn new(name: &str, role: Role) -> Self {
        Self {
            name: name.to_owned(),
            role,
            faults: Vec::new(),
            args: Vec::new(),
            space: None,
        }
    }

    /// Adds a fault.
    #[must_use]
    pub fn fault(mut self, fault: &str) -> Self {
        self.faults.push(fault.to_owned());
        self
    }
}

/// A node with its home. Dropped, its process is killed.
///
/// Start it on a thread that lives as long as the node shall: the kernel ends it with that thread.
#[derive(Debug)]
pub struct NodeProcess {
    spec: NodeSpec,
    program: Program,
    home: Home,
    bootstrap: Option<String>,
    child: Option<Child>,
    peer: String,
}

impl NodeProcess {
    /// Makes keys and configuration in `home`.
    ///
    /// # Errors
    /// What `hanzod init` says.
    pub fn init(program: &Program, spec: NodeSpec, home: &Path, genesis: &Path) -> anyhow::Result<Self> {
        let args = [
            "init".as_ref(),
            "--json".as_ref(),
            "--genesis".as_ref(),
            genesis.as_os_str(),
        ];
        let answer = program
            .run(home, &args)
            .with_context(|| format!("setting up {}", spec.name))?;
        let answer: Value = serde_json::from_str(answer.trim()).context("the answer of hanzod init")?;
        let peer = answer["peer"]
            .as_str()
            .context("hanzod init names no peer")?
            .to_owned();
        let home = Home::locate(Some(home))?;
        Ok(Self {
            spec,
            program: program.clone(),
            home,
            bootstrap: None,
            child: None,
            peer,
        })
    }

    /// Through whom it joins; none for the bootstrap node.
    pub fn join_through(&mut self, address: &str) {
        self.bootstrap = Some(address.to_owned());
    }

    /// Replaces its faults at the next start.
    pub fn set_faults(&mut self, faults: &[&str]) {
        self.spec.faults = faults.iter().map(|f| (*f).to_owned()).collect();
    }

    /// Starts the process; [`NodeProcess::wait_ready`] waits until it answers.
    ///
    /// # Errors
    /// When the process cannot be started or one is running.
    pub fn start(&mut self) -> anyhow::Result<()> {
        if self.child.is_some() {
            bail!("{} is running", self.spec.name);
        }
        let console = self.open_console()?;
        let space = self.spec.space.as_ref();
        let mut command = self.program.child(self.home.root(), &self.arguments(), space);
        // Several nodes share this machine; one thread each computes, and results do not depend on its cores.
        command.env("RAYON_NUM_THREADS", "1");
        command.stdout(console.try_clone()?).stderr(console);
        self.child = Some(
            command
                .spawn()
                .with_context(|| format!("starting {}", self.spec.name))?,
        );
        Ok(())
    }

    /// Waits until the API answers.
    ///
    /// # Errors
    /// When the process ends first, with its last words, or takes too long.
    pub fn wait_ready(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + START;
        while Instant::now() < until {
            if let Some(status) = self.exited()? {
                bail!(
                    "{} ended at once ({status}): {}",
                    self.spec.name,
                    self.last_words()
                );
            }
            if self.api_pid() == self.pid() && self.client().is_ok_and(|c| c.get("/v1/status").is_ok()) {
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
        bail!(
            "{} does not answer within {START:?}; see {}",
            self.spec.name,
            self.home.log().display()
        )
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// What it does.
    #[must_use]
    pub fn role(&self) -> Role {
        self.spec.role
    }

    /// Its peer id.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Its home.
    #[must_use]
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// The network namespace it runs in.
    #[must_use]
    pub fn space(&self) -> Option<&Space> {
        self.spec.space.as_ref()
    }

    /// Where its peers reach it.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.space().map_or(Ipv4Addr::LOCALHOST, |space| space.address)
    }

    /// Its process, while there is one.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Talks to it.
    ///
    /// # Errors
    /// When it is not running.
    pub fn client(&self) -> anyhow::Result<Api> {
        Api::connect(&self.home, self.space()).with_context(|| self.spec.name.clone())
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn exited(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        let Some(child) = &mut self.child else {
            return Ok(None);
        };
        let status = child.try_wait().with_context(|| self.spec.name.clone())?;
        if status.is_some() {
            self.child = None;
        }
        Ok(status)
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// When it is still there after `limit`.
    pub fn wait_exit(&mut self, limit: Duration) -> anyhow::Result<ExitStatus> {
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.exited()? {
                return Ok(status);
            }
            if self.child.is_none() {
                bail!("{} is not running", self.spec.name);
            }
            if Instant::now() > until {
                bail!("{} is still running after {limit:?}", self.spec.name);
            }
            std::thread::sleep(POLL);
        }
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops it for a while, as a machine that hangs.
    ///
    /// # Errors
    /// When it is not running.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Goes on after [`NodeProcess::pause`].
    ///
    /// # Errors
    /// When it is not running.
    pub fn resume(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Asks it to stop; [`NodeProcess::wait_stopped`] waits for it.
    pub fn ask_to_stop(&self) {
        let _ = self.signal(Signal::TERM);
    }

    /// Waits until it has stopped, and kills it if it does not.
    pub fn wait_stopped(&mut self) {
        if self.child.is_some() && self.wait_exit(STOP).is_err() {
            self.kill();
        }
    }

    /// Asks it to stop and waits.
    pub fn stop(&mut self) {
        self.ask_to_stop();
        self.wait_stopped();
    }

    /// Everything it logged.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.home.log()).unwrap_or_default()
    }

    /// The last line it printed.
    #[must_use]
    pub fn last_words(&self) -> String {
        let text = std::fs::read_to_string(self.console()).unwrap_or_default();
        text.lines()
            .rfind(|line| !line.trim().is_empty())
            .unwrap_or("it said nothing")
            .to_owned()
    }

    /// Where its standard output and error go.
    #[must_use]
    pub fn console(&self) -> PathBuf {
        self.home.root().join("logs").join("console.log")
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = self
            .pid()
            .and_then(|pid| i32::try_from(pid).ok())
            .and_then(Pid::from_raw);
        let pid = pid.with_context(|| format!("{} is not running", self.spec.name))?;
        kill_process(pid, signal).with_context(|| format!("signalling {}", self.spec.name))
    }

    fn arguments(&self) -> Vec<String> {
        let mut args: Vec<String> = [
            "run",
            "--role",
            self.spec.role.name(),
            "--mdns",
            "off",
            "--device",
            "cpu",
        ]
        .map(String::from)
        .to_vec();
        let address = self.address();
        for listen in ["tcp/0", "udp/0/quic-v1"] {
            args.extend(["--listen".to_owned(), format!("/ip4/{address}/{listen}")]);
        }
        if let Some(address) = &self.bootstrap {
            args.extend(["--bootstrap".to_owned(), address.clone()]);
        }
        for fault in &self.spec.faults {
            args.extend(["--fault".to_owned(), fault.clone()]);
        }
        args.extend(self.spec.args.iter().cloned());
        args
    }

    fn open_console(&self) -> anyhow::Result<File> {
        let path = self.console();
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        }
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| path.display().to_string())
    }

    /// The process whose API file lies in the home; an earlier process's may be left there.
    fn api_pid(&self) -> Option<u32> {
        let text = std::fs::read(self.home.api()).ok()?;
        let place: Value = serde_json::from_slice(&text).ok()?;
        u32::try_from(place.get("pid")?.as_u64()?).ok()
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
