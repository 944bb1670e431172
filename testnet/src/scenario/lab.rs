//! A small network with one small job, and what a scenario may ask of it.

use super::{Stage, assets};
use crate::board::Board;
use crate::event::{Closed, Kind};
use crate::job::Job;
use crate::network::Network;
use crate::node::{NodeProcess, NodeSpec};
use crate::watch::{Told, Watch};
use anyhow::{Context, bail, ensure};
use hanzod::role::Role;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Workers of a scenario: three of four are more than two thirds, so one may be missing.
pub(super) const WORKERS: usize = 4;
/// How long a job may take.
const LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(100);

/// A running network with a submitted job.
pub(super) struct Lab {
    pub(super) network: Network,
    pub(super) board: Board,
    /// Everything that was told.
    pub(super) told: Vec<Told>,
    watch: Watch,
    rounds: u64,
}

impl Lab {
    /// Starts an orchestrator and the workers, `victim` among them with its fault, and submits a job of `rounds`.
    pub(super) fn start(stage: &Stage, rounds: u64, victim: &str, fault: &str) -> anyhow::Result<Self> {
        Self::start_with(stage, rounds, victim, fault, &[])
    }

    /// The same with constants of the network changed.
    pub(super) fn start_with(
        stage: &Stage,
        rounds: u64,
        victim: &str,
        fault: &str,
        constants: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        assets::write(stage.folder.root())?;
        let mut network = Network::found_with(
            stage.program.clone(),
            stage.folder.clone(),
            stage.interrupt.clone(),
            constants,
        )?;
        let worker = |i: usize| {
            let name = format!("worker-{i}");
            let spec = NodeSpec::new(&name, Role::Worker);
            if name == victim && !fault.is_empty() {
                spec.fault(fault)
            } else {
                spec
            }
        };
        let mut specs = vec![NodeSpec::new("orchestrator", Role::Orchestrator)];
        specs.extend((1..=WORKERS).map(worker));
        network.start(specs)?;
        network.wait_met("orchestrator", WORKERS)?;
        let job = Job::parse(&assets::job_text(rounds), stage.folder.root().to_path_buf())?;
        let id = job.submit(&network.node("orchestrator")?.client()?)?;
        let watched = network.nodes().iter().filter(|n| n.role() != Role::Bootstrap);
        let watch = Watch::start(&id, watched)?;
        let names = network.workers().map(|w| w.name().to_owned());
        let board = Board::new(rounds, job.file.schedule.aggregate_interval, names);
        Ok(Self {
            network,
            board,
            told: Vec::new(),
            watch,
            rounds,
        })
    }

    /// Follows the job to its end; `act` sees the lab after every event and now and then between.
    pub(super) fn follow(
        &mut self,
        mut act: impl FnMut(&mut Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let until = Instant::now() + LIMIT;
        while !self.orchestrator_finished()? {
            self.network.interrupt().check()?;
            ensure!(
                Instant::now() < until,
                "the job has not ended within {LIMIT:?}: {}",
                self.picture()
            );
            if let Some(told) = self.watch.next(POLL) {
                self.board.take(&told.node, &told.event);
                self.told.push(told);
            }
            act(self)?;
        }
        // What the others tell of the end comes a little later.
        while let Some(told) = self.watch.next(2 * POLL) {
            self.board.take(&told.node, &told.event);
            self.told.push(told);
        }
        Ok(())
    }

    /// All rounds were closed, each with at least three signatures under its one state.
    pub(super) fn check_ended_well(&self) -> anyhow::Result<()> {
        ensure!(
            self.board.closed.len() as u64 == self.rounds,
            "not all rounds were closed: {}",
            self.picture()
        );
        for closed in self.board.closed.values() {
            ensure!(
                3 * closed.signers.len() > 2 * closed.members.len(),
                "too few signers: {closed:?}"
            );
        }
        self.check_one_state()
    }

    /// A closed round.
    pub(super) fn closed(&self, round: u64) -> anyhow::Result<&Closed> {
        self.board
            .closed
            .get(&round)
            .with_context(|| format!("round {round} was not closed: {}", self.picture()))
    }

    /// Whether `node` has told that a round was closed.
    pub(super) fn has_closed(&self, round: u64) -> bool {
        self.board.closed.contains_key(&round)
    }

    /// The node's peer id.
    pub(super) fn peer(&self, node: &str) -> anyhow::Result<String> {
        Ok(self.network.node(node)?.peer().to_owned())
    }

    /// The sum over all running nodes but `except` of a counter.
    pub(super) fn counted(&self, series: &str, except: &str) -> anyhow::Result<u64> {
        let mut sum = 0;
        for node in self
            .network
            .nodes()
            .iter()
            .filter(|n| n.name() != except && n.pid().is_some())
        {
            let status = node.client()?.get("/v1/status")?;
            sum += status["metrics"].get(series).and_then(Value::as_u64).unwrap_or(0);
        }
        Ok(sum)
    }

    /// Lines about `node` in the others' logs.
    pub(super) fn lines_about(&self, node: &str) -> anyhow::Result<Vec<String>> {
        let peer = self.peer(node)?;
        let others = self.network.nodes().iter().filter(|n| n.name() != node);
        let logs: Vec<String> = others.map(NodeProcess::log).collect();
        Ok(logs
            .iter()
            .flat_map(|log| log.lines())
            .filter(|line| line.contains(&peer))
            .map(String::from)
            .collect())
    }

    /// Every node that tells of a round tells the same state.
    fn check_one_state(&self) -> anyhow::Result<()> {
        for told in &self.told {
            if let Kind::Closed(closed) = &told.event.kind {
                let known = self.closed(closed.round)?;
                ensure!(
                    known.state_hash == closed.state_hash,
                    "{} tells another state: {closed:?}",
                    told.node
                );
            }
        }
        Ok(())
    }

    fn orchestrator_finished(&self) -> anyhow::Result<bool> {
        let ends = self.told.iter().rev().filter(|told| told.node == "orchestrator");
        for told in ends {
            if let Kind::Finished { standing, why } = &told.event.kind {
                ensure!(standing == "done", "the job ended: {standing}: {why:?}");
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn picture(&self) -> String {
        let workers: Vec<String> = self
            .board
            .workers
            .iter()
            .map(|(name, w)| format!("{name} {} in round {}", w.doing, w.round))
            .collect();
        let closed = self.board.closed.len();
        format!(
            "{closed} of {} rounds closed, orchestrator {}, {}",
            self.rounds,
            self.board.doing,
            workers.join(", ")
        )
    }

    /// Fails with what the logs say.
    pub(super) fn fail<T>(&self, words: &str) -> anyhow::Result<T> {
        bail!(
            "{words}: {}; logs under {}",
            self.picture(),
            self.network.folder().root().display()
        )
    }
}
