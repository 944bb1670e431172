//! A small network with one small job, and what a scenario may ask of it.

use super::assets::JobShape;
use super::{Recovery, Stage, assets};
use crate::board::Board;
use crate::event::{Closed, Kind};
use crate::job::Job;
use crate::netlab::{Links, Netlab};
use crate::network::Network;
use crate::node::{NodeProcess, NodeSpec};
use crate::output::complain;
use crate::watch::{Told, Watch};
use anyhow::{Context, bail, ensure};
use hanzod::role::Role;
use serde_json::Value;
use std::time::{Duration, Instant};

/// How long a job may take.
const LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(100);
/// The same where times are measured.
const GLANCE: Duration = Duration::from_millis(10);

/// What a scenario starts with. Of four workers three are more than two thirds, so one may be missing.
pub(super) struct Plan<'a> {
    pub(super) job: JobShape,
    /// A worker and the fault it commits.
    pub(super) faults: &'a [(&'a str, &'a str)],
    /// Constants of the network that are changed.
    pub(super) constants: &'a [(&'a str, &'a str)],
}

/// A running network with a submitted job.
pub(super) struct Lab {
    pub(super) network: Network,
    /// The links between its nodes, where they are in namespaces; after `network`, so that nodes end first.
    pub(super) links: Option<Netlab>,
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
        let faults = [(victim, fault)];
        let plan = Plan {
            job: JobShape::of(rounds),
            faults: if fault.is_empty() { &[] } else { &faults },
            constants,
        };
        Self::start_plan(stage, &plan)
    }

    /// On loopback, as `plan` says.
    pub(super) fn start_plan(stage: &Stage, plan: &Plan<'_>) -> anyhow::Result<Self> {
        Self::begin(stage, plan, None)
    }

    /// Every node in a network namespace, with emulated links between them; `None` where the system allows none.
    pub(super) fn start_among(stage: &Stage, plan: &Plan<'_>, links: Links) -> anyhow::Result<Option<Self>> {
        let members = plan.job.workers + 2;
        match Netlab::start(members, links, &format!("gym{}-", std::process::id()))? {
            Ok(netlab) => Self::begin(stage, plan, Some(netlab)).map(Some),
            Err(why) => {
                complain(&format!("SKIPPED: no network namespaces here: {why}"));
                Ok(None)
            }
        }
    }

    fn begin(stage: &Stage, plan: &Plan<'_>, links: Option<Netlab>) -> anyhow::Result<Self> {
        let JobShape { rounds, workers, .. } = plan.job;
        assets::write(stage.folder.root())?;
        let mut network = Network::found_with(
            stage.program.clone(),
            stage.folder.clone(),
            stage.interrupt.clone(),
            plan.constants,
            links.as_ref().map_or(&[], Netlab::spaces),
        )?;
        let node = |name: &str, role| {
            let its = plan.faults.iter().filter(|(victim, _)| *victim == name);
            its.fold(NodeSpec::new(name, role), |spec, (_, fault)| spec.fault(fault))
        };
        let mut specs = vec![node("orchestrator", Role::Orchestrator)];
        specs.extend((1..=workers).map(|i| node(&format!("worker-{i}"), Role::Worker)));
        network.start(specs)?;
        network.wait_met("orchestrator", workers)?;
        let job = Job::parse(&assets::job_of(plan.job), stage.folder.root().to_path_buf())?;
        let id = job.submit(&network.node("orchestrator")?.client()?)?;
        let watched = network.nodes().iter().filter(|n| n.role() != Role::Bootstrap);
        let watch = Watch::start(&id, watched)?;
        let names = network.workers().map(|w| w.name().to_owned());
        let board = Board::new(rounds, job.file.schedule.aggregate_interval, names);
        Ok(Self {
            network,
            links,
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

    /// Follows the job until `enough`, which sees the lab after every event and now and then between.
    pub(super) fn follow_until(
        &mut self,
        what: &str,
        mut enough: impl FnMut(&mut Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let until = Instant::now() + LIMIT;
        while !enough(self)? {
            self.network.interrupt().check()?;
            ensure!(
                Instant::now() < until,
                "not within {LIMIT:?}: {what}: {}",
                self.picture()
            );
            ensure!(
                !self.orchestrator_finished()?,
                "the job ended before {what}: {}",
                self.picture()
            );
            if let Some(told) = self.watch.next(GLANCE) {
                self.board.take(&told.node, &told.event);
                self.told.push(told);
            }
        }
        Ok(())
    }

    /// Whether `node` has told that it does this, as `role`, in `round`.
    pub(super) fn has_told(&self, node: &str, role: &str, what: &str, round: u64) -> bool {
        self.told.iter().any(|told| {
            told.node == node
                && matches!(&told.event.kind, Kind::Doing { role: r, doing, round: n }
                    if r == role && doing == what && *n == round)
        })
    }

    /// Rounds closed so far.
    pub(super) fn rounds_closed(&self) -> u64 {
        self.board.closed.len() as u64
    }

    /// Whether all of `workers` have signed a close after `round`: they hold its state.
    pub(super) fn all_signed_after(&self, round: u64, workers: &[String]) -> anyhow::Result<bool> {
        let peers = workers
            .iter()
            .map(|w| self.peer(w))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let later = self.board.closed.range(round + 1..);
        Ok(later
            .map(|(_, closed)| closed)
            .any(|c| peers.iter().all(|p| c.signers.contains(p))))
    }

    /// The names of all workers.
    pub(super) fn workers(&self) -> Vec<String> {
        self.network.workers().map(|w| w.name().to_owned()).collect()
    }

    /// Notes how long it took from `at` (milliseconds since the Unix epoch) to the close of `round`.
    pub(super) fn measure(
        &self,
        stage: &Stage,
        fault: &str,
        at: u64,
        round: u64,
        victim: &str,
    ) -> anyhow::Result<Recovery> {
        let closed = self.closed(round)?;
        let told = self.told.iter().find(|told| {
            told.node == "orchestrator" && matches!(&told.event.kind, Kind::Closed(c) if c.round == round)
        });
        let told = told.with_context(|| format!("the orchestrator has not told of round {round}'s close"))?;
        let recovery = Recovery {
            fault: fault.to_owned(),
            ms: told.event.at.saturating_sub(at),
            view: closed.view,
            summed: closed.members.contains(&self.peer(victim)?),
        };
        stage.recoveries.add(recovery.clone());
        Ok(recovery)
    }

    /// Notes how long the orchestrator took from a round's manifest to its close, where nothing went wrong.
    pub(super) fn measure_reduce(&self, stage: &Stage, round: u64) -> anyhow::Result<()> {
        let began = self.told.iter().find(|told| {
            matches!(&told.event.kind, Kind::Doing { role, doing, round: n }
                if role == "orchestrator" && doing == "reducing" && *n == round)
        });
        let began = began.with_context(|| format!("nobody told of round {round}'s ring"))?;
        let first = self.workers().into_iter().next().context("a worker")?;
        let name = format!("round {round}, its ring alone");
        self.measure(stage, &name, began.event.at, round, &first)
            .map(drop)
    }

    /// The round that `node` said it kills itself in, the last time it did.
    pub(super) fn died_in(&self, node: &str) -> anyhow::Result<u64> {
        let log = self.network.node(node)?.log();
        let last = log
            .lines()
            .rfind(|line| line.contains("this process kills itself"));
        let words = last.with_context(|| format!("{node} does not say that it kills itself"))?;
        let (_, after) = words.split_once("round=").context("it says no round")?;
        let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().with_context(|| words.to_owned())
    }

    /// One close a round and one state a close, whoever tells of it; no state of anybody's differed.
    pub(super) fn check_one_close(&self) -> anyhow::Result<()> {
        for told in &self.told {
            if let Kind::Closed(closed) = &told.event.kind {
                let known = self.closed(closed.round)?;
                ensure!(
                    (&known.state_hash, &known.checkpoint, known.view)
                        == (&closed.state_hash, &closed.checkpoint, closed.view),
                    "{} tells another close: {closed:?} in place of {known:?}",
                    told.node
                );
            }
        }
        for closed in self.board.closed.values() {
            ensure!(
                3 * closed.signers.len() > 2 * closed.members.len(),
                "too few signers: {closed:?}"
            );
        }
        let differing = self.counted("gym_offences_total{kind=\"state_differs\"}", "")?;
        ensure!(differing == 0, "{differing} states differed");
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

/// The clock of events.
pub(super) fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}
