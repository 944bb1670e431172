//! One network: a genesis, a bootstrap node, and nodes that join through it.

use crate::folder::RunFolder;
use crate::interrupt::Interrupt;
use crate::netlab::Space;
use crate::node::{NodeProcess, NodeSpec, Program};
use anyhow::{Context, bail};
use hanzod::role::Role;
use serde_json::Value;
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the nodes may take to find each other.
const MEET: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

/// The nodes of a network; dropped, all of them are killed.
#[derive(Debug)]
pub struct Network {
    program: Program,
    folder: RunFolder,
    interrupt: Interrupt,
    bootstrap: String,
    nodes: Vec<NodeProcess>,
    /// Namespaces for the nodes to come.
    spaces: VecDeque<Space>,
}

impl Network {
    /// Writes a genesis and starts its bootstrap node.
    ///
    /// # Errors
    /// What the node says.
    pub fn found(program: Program, folder: RunFolder, interrupt: Interrupt) -> anyhow::Result<Self> {
        Self::found_with(program, folder, interrupt, &[], &[])
    }

    /// The same with constants of the genesis file changed: (line of the template, line in its place), and nodes in
    /// `spaces`, in order, while there are any.
    ///
    /// # Errors
    /// What the node says; a line that the template has not.
    pub fn found_with(
        program: Program,
        folder: RunFolder,
        interrupt: Interrupt,
        constants: &[(&str, &str)],
        spaces: &[Space],
    ) -> anyhow::Result<Self> {
        let genesis = folder.genesis();
        let args: [&std::ffi::OsStr; 6] = [
            "genesis".as_ref(),
            "new".as_ref(),
            "--network".as_ref(),
            "testnet".as_ref(),
            "--out".as_ref(),
            genesis.as_os_str(),
        ];
        program
            .run(folder.root(), &args)
            .context("writing the genesis file")?;
        change(&genesis, constants)?;
        let mut this = Self {
            program,
            folder,
            interrupt,
            bootstrap: String::new(),
            nodes: Vec::new(),
            spaces: spaces.iter().cloned().collect(),
        };
        let mut node = this.init(NodeSpec::new("bootstrap", Role::Bootstrap))?;
        node.start()?;
        node.wait_ready()?;
        this.bootstrap = address(&node)?;
        this.nodes.push(node);
        Ok(this)
    }

    /// Sets up and starts nodes, and waits until each answers.
    ///
    /// # Errors
    /// What a node that does not start says.
    pub fn start(&mut self, specs: Vec<NodeSpec>) -> anyhow::Result<()> {
        let first = self.nodes.len();
        for spec in specs {
            self.interrupt.check()?;
            let mut node = self.init(spec)?;
            node.join_through(&self.bootstrap);
            node.start()?;
            self.nodes.push(node);
        }
        self.nodes[first..]
            .iter_mut()
            .try_for_each(NodeProcess::wait_ready)
    }

    /// Waits until `node` has met at least `workers` workers of this network.
    ///
    /// # Errors
    /// When it has not within a minute, or the user wants an end.
    pub fn wait_met(&self, node: &str, workers: usize) -> anyhow::Result<()> {
        let client = self.node(node)?.client()?;
        let until = Instant::now() + MEET;
        let mut met = 0;
        while Instant::now() < until {
            self.interrupt.check()?;
            met = client
                .get("/v1/peers")?
                .as_array()
                .into_iter()
                .flatten()
                .filter(|p| is_worker(p))
                .count();
            if met >= workers {
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
        bail!(
            "{node} has met {met} of {workers} workers within {MEET:?}; see {}",
            self.node(node)?.home().log().display()
        )
    }

    /// Fails when a node has ended by itself.
    ///
    /// # Errors
    /// Which, and its last words.
    pub fn check_alive(&mut self) -> anyhow::Result<()> {
        for node in &mut self.nodes {
            if let Some(status) = node.exited()? {
                bail!(
                    "{} has ended ({status}): {}; see {}",
                    node.name(),
                    node.last_words(),
                    node.home().log().display()
                );
            }
        }
        Ok(())
    }

    /// A node by name.
    ///
    /// # Errors
    /// When there is none.
    pub fn node(&self, name: &str) -> anyhow::Result<&NodeProcess> {
        self.nodes
            .iter()
            .find(|n| n.name() == name)
            .with_context(|| format!("there is no node {name}"))
    }

    /// A node by name, to be started, killed, paused.
    ///
    /// # Errors
    /// When there is none.
    pub fn node_mut(&mut self, name: &str) -> anyhow::Result<&mut NodeProcess> {
        self.nodes
            .iter_mut()
            .find(|n| n.name() == name)
            .with_context(|| format!("there is no node {name}"))
    }

    /// All nodes, the bootstrap node first.
    #[must_use]
    pub fn nodes(&self) -> &[NodeProcess] {
        &self.nodes
    }

    /// The workers, in order.
    pub fn workers(&self) -> impl Iterator<Item = &NodeProcess> {
        self.nodes.iter().filter(|n| n.role() == Role::Worker)
    }

    /// The processes that run.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.nodes.iter().filter_map(NodeProcess::pid)
    }

    /// Where everything lies.
    #[must_use]
    pub fn folder(&self) -> &RunFolder {
        &self.folder
    }

    /// Whether the user wants an end.
    #[must_use]
    pub fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// What others are given to join.
    #[must_use]
    pub fn bootstrap_address(&self) -> &str {
        &self.bootstrap
    }

    /// Stops all nodes in order; what does not stop is killed.
    pub fn stop(&mut self) {
        self.nodes.iter().for_each(NodeProcess::ask_to_stop);
        self.nodes.iter_mut().for_each(NodeProcess::wait_stopped);
    }

    fn init(&mut self, mut spec: NodeSpec) -> anyhow::Result<NodeProcess> {
        let home = self.folder.home(&spec.name);
        spec.space = self.spaces.pop_front();
        NodeProcess::init(&self.program, spec, &home, &self.folder.genesis())
    }
}

/// The bootstrap node's address with its peer id.
fn address(node: &NodeProcess) -> anyhow::Result<String> {
    let until = Instant::now() + MEET;
    while Instant::now() < until {
        let status = node.client()?.get("/v1/status")?;
        let mut listen = status["listen"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        let tcp = format!("/ip4/{}/tcp/", node.address());
        if let Some(address) = listen.find(|a| a.starts_with(&tcp)) {
            let peer = format!("/p2p/{}", node.peer());
            return Ok(if address.ends_with(&peer) {
                address.to_owned()
            } else {
                format!("{address}{peer}")
            });
        }
        std::thread::sleep(POLL);
    }
    bail!(
        "the bootstrap node does not listen on TCP; see {}",
        node.home().log().display()
    )
}

fn is_worker(peer: &Value) -> bool {
    let roles = peer["roles"].as_array();
    peer["standing"] == "member" && roles.is_some_and(|roles| roles.iter().any(|role| role == "worker"))
}

fn change(genesis: &Path, constants: &[(&str, &str)]) -> anyhow::Result<()> {
    let mut text = std::fs::read_to_string(genesis).context("reading the genesis file")?;
    for (from, to) in constants {
        anyhow::ensure!(text.contains(from), "the genesis file has no line {from:?}");
        text = text.replacen(from, to, 1);
    }
    std::fs::write(genesis, text).context("changing the genesis file")
}
