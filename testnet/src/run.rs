//! The run: a network from nothing, one job, a report.

use crate::args::RunArgs;
use crate::board::Board;
use crate::bytes::Sent;
use crate::cpu;
use crate::folder::RunFolder;
use crate::interrupt::Interrupt;
use crate::job::{Changes, Job};
use crate::network::Network;
use crate::node::{NodeSpec, Program};
use crate::output::{complain, line};
use crate::plot;
use crate::progress::Progress;
use crate::record::Record;
use crate::report::{Facts, Report};
use crate::watch::Watch;
use anyhow::{Context, bail, ensure};
use hanzod::role::Role;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Between two looks at the nodes while nothing happens.
const POLL: Duration = Duration::from_millis(200);
/// How long a done job waits for a report on its last checkpoint; nodes wait a minute.
const REPORT_WAIT: Duration = Duration::from_secs(90);

/// `testnet`.
pub(crate) fn main(args: &RunArgs) -> anyhow::Result<()> {
    ensure!(args.workers > 0, "--workers is 0: give at least 1");
    let interrupt = Interrupt::listen()?;
    let changes = Changes {
        seed: args.seed,
        rounds: args.rounds,
        wire: args.wire.clone(),
    };
    let job = Job::load(args.job.as_deref(), &changes)?;
    let needed = job.file.schedule.min_workers as usize;
    ensure!(
        args.workers >= needed,
        "the job needs at least {needed} workers: give --workers {needed} or more"
    );
    let folder = RunFolder::create(args.dir.as_deref())?;
    std::fs::write(folder.job(), &job.text).context("keeping the job file")?;
    complain(&format!("run folder {}", folder.root().display()));
    let mut run = Run::start(args, folder, interrupt)?;
    let report = run.finish(&job, Duration::from_secs(args.timeout));
    let report =
        report.with_context(|| format!("see the logs under {}", run.network.folder().root().display()))?;
    run.tell(args, report)
}

struct Run {
    started: Instant,
    /// Processor seconds before the run: `cargo run` leaves those of its compilers to the program it becomes.
    cpu_before: f64,
    network: Network,
    progress: Progress,
}

impl Run {
    /// Starts the network and lets its nodes find each other.
    fn start(args: &RunArgs, folder: RunFolder, interrupt: Interrupt) -> anyhow::Result<Self> {
        let (started, cpu_before) = (Instant::now(), cpu::seconds(std::iter::empty()));
        let mut progress = Progress::new();
        progress.stage("starting the bootstrap node");
        let mut network = Network::found(Program::current()?, folder, interrupt)?;
        progress.stage(&format!(
            "starting {} nodes, joined through {}",
            args.workers + 2,
            network.bootstrap_address()
        ));
        network.start(specs(args.workers))?;
        network.wait_met("orchestrator", args.workers)?;
        Ok(Self {
            started,
            cpu_before,
            network,
            progress,
        })
    }

    /// Submits the job and follows it to its end.
    fn finish(&mut self, job: &Job, limit: Duration) -> anyhow::Result<Report> {
        let until = self.started + limit;
        self.progress
            .stage("adding model and questions to the content store, submitting the job");
        let orchestrator = self.network.node("orchestrator")?.client()?;
        let id = job.submit(&orchestrator).context("submitting the job")?;
        self.progress.stage(&format!("job {id}"));
        let board = self.follow(&id, job, until)?;
        let seconds = self.started.elapsed().as_secs_f64();
        self.progress.finish();
        plot::write(&self.network.folder().plot(), &board)?;
        let elements = orchestrator.get(&format!("/v1/jobs/{id}"))?["elements"].as_u64();
        let elements =
            usize::try_from(elements.context("the orchestrator does not say the adapter's size")?)?;
        let sent = self
            .network
            .workers()
            .map(|w| Ok((w.name().to_owned(), Sent::of(w)?)));
        let sent: BTreeMap<_, _> = sent.collect::<anyhow::Result<_>>()?;
        Report::new(
            &board,
            Facts {
                id,
                job,
                network: &self.network,
                elements,
                sent,
                seconds,
            },
        )
    }

    fn follow(&mut self, id: &str, job: &Job, until: Instant) -> anyhow::Result<Board> {
        let schedule = &job.file.schedule;
        let names = self.network.workers().map(|w| w.name().to_owned());
        let mut board = Board::new(schedule.rounds.unwrap_or(0), schedule.aggregate_interval, names);
        let mut record = Record::create(&self.network.folder().metrics())?;
        let watch = Watch::start(
            id,
            self.network
                .nodes()
                .iter()
                .filter(|n| n.role() != Role::Bootstrap),
        )?;
        let mut done = None;
        while !is_over(&board)? {
            self.network.interrupt().check()?;
            if board.finished.is_some() && done.get_or_insert_with(Instant::now).elapsed() > REPORT_WAIT {
                bail!(
                    "the job is done, but no validator has evaluated its last checkpoint within {} s; see the \
                     validator's log under {}",
                    REPORT_WAIT.as_secs(),
                    self.network.folder().root().display()
                );
            }
            if Instant::now() > until {
                bail!(
                    "the job has not ended in time (--timeout); the orchestrator is {}",
                    board.doing
                );
            }
            match watch.next(POLL) {
                Some(told) => {
                    record.take(&told)?;
                    if board.rounds == 0 {
                        board.rounds = self.rounds(id)?;
                    }
                    board.take(&told.node, &told.event);
                    self.progress.event(&board, &told.node, &told.event);
                }
                None => self.network.check_alive()?,
            }
            self.progress.tick(&board);
        }
        record.finish()?;
        Ok(board)
    }

    /// Rounds of a job that was given in epochs; 0 until its orchestrator knows.
    fn rounds(&self, id: &str) -> anyhow::Result<u64> {
        let shown = self
            .network
            .node("orchestrator")?
            .client()?
            .get(&format!("/v1/jobs/{id}"))?;
        Ok(shown["rounds"].as_u64().unwrap_or(0))
    }

    /// Ends all processes, counts their time, and says what came of it.
    fn tell(mut self, args: &RunArgs, mut report: Report) -> anyhow::Result<()> {
        let root = self.network.folder().clone();
        self.network.stop();
        report.cpu_seconds = cpu::seconds(self.network.pids()) - self.cpu_before;
        let json = serde_json::to_string(&report)?;
        std::fs::write(root.result(), format!("{json}\n")).context("writing result.json")?;
        if args.json {
            complain(&report.summary());
            line(&json);
        } else {
            line(&report.summary());
        }
        Ok(())
    }
}

/// The job is done and its last checkpoint evaluated.
fn is_over(board: &Board) -> anyhow::Result<bool> {
    match &board.finished {
        Some((standing, _)) if standing == "done" => Ok(board.evaluation.is_some()),
        Some((standing, why)) => bail!("the job ended: {standing}: {why}"),
        None => Ok(false),
    }
}

fn specs(workers: usize) -> Vec<NodeSpec> {
    let mut specs = vec![
        NodeSpec::new("orchestrator", Role::Orchestrator),
        NodeSpec::new("validator", Role::Validator),
    ];
    specs.extend((1..=workers).map(|i| NodeSpec::new(&format!("worker-{i}"), Role::Worker)));
    specs
}
