//! The task that owns every job.

use super::active::Active;
use super::done::Done;
use super::edge::KnownKeys;
use super::faults::{Fault, Faults};
use super::handle::{Call, JobsHandle};
use super::keep::Fallen;
use super::publish::Publisher;
use super::trainer::{Machine, TrainerHandle};
use super::turns::Turns;
use crate::content::Content;
use crate::home::Home;
use crate::identity::NodeIdentity;
use crate::link::Outbox;
use crate::metrics::Metrics;
use crate::net::{NetEvent, NetHandle};
use crate::publish::{Outcome, Publication};
use crate::role::Roles;
use crate::runtime::Parts;
use gym_protocol::ids::{CidBytes, PeerBytes};
use gym_protocol::time::{Deadline, Time, earlier};
use gym_protocol::{member, orchestrator};
use gym_training::device::Chosen;
use gym_training::reward::Programs;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

/// Finished work that waits for the task.
const DONE_QUEUE: usize = 1_024;
/// Calls of the API that wait for it.
const CALL_QUEUE: usize = 64;
/// How often a member asks its orchestrator what it missed, and a node its peers for jobs.
const SYNC_EVERY: Duration = Duration::from_secs(2);

/// What jobs work with.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) home: Home,
    pub(crate) roles: Roles,
    /// More contributions than this are summed in a grid.
    pub(crate) flat_ring_max: u32,
    /// Replica holders of a commit, where a job file does not say.
    pub(crate) redundancy: u32,
    /// Connections that this node holds at once.
    pub(crate) max_connections: u32,
    /// Genesis `clock_skew_seconds`.
    pub(crate) clock_skew: u64,
    pub(crate) identity: Arc<NodeIdentity>,
    pub(crate) keys: KnownKeys,
    pub(crate) net: NetHandle,
    pub(crate) content: Content,
    pub(crate) trainer: TrainerHandle,
    pub(crate) metrics: Metrics,
    pub(crate) faults: Faults,
    /// Whether a job's rewards may run programs here.
    pub(crate) programs: Programs,
    pub(crate) outbox: Outbox,
    pub(crate) publisher: Publisher,
    /// Rounds of a job whose checkpoints stay pinned.
    pub(crate) keep_checkpoints: u64,
    /// How long those that are older stay for fetches that began before.
    pub(crate) checkpoint_grace: Duration,
    pub(crate) fallen: Fallen,
    /// Checkpoints on their way out of the network.
    pub(crate) publication: Publication,
    pub(super) done: mpsc::Sender<Done>,
}

impl Tools {
    /// Runs work beside the task; what it returns comes back as an event.
    pub(crate) fn spawn(&self, work: impl Future<Output = Done> + Send + 'static) -> AbortHandle {
        let done = self.done.clone();
        let task = tokio::spawn(async move {
            let result = work.await;
            // The service is gone only when the node stops.
            let _ = done.send(result).await;
        });
        task.abort_handle()
    }

    /// For work that answers somebody else first.
    pub(crate) fn done_sender(&self) -> mpsc::Sender<Done> {
        self.done.clone()
    }

    pub(crate) fn me(&self) -> PeerBytes {
        self.identity.peer()
    }
}

/// An event on its way to a machine.
#[derive(Debug)]
pub(crate) enum Work {
    Member(CidBytes, Box<member::Event>),
    Orchestrator(CidBytes, Box<orchestrator::Event>),
}

/// The task's state.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) tools: Tools,
    pub(crate) jobs: BTreeMap<CidBytes, Active>,
    pub(crate) turns: Turns,
    pub(crate) work: VecDeque<Work>,
    /// Connected members of this network.
    pub(crate) connected: BTreeSet<PeerBytes>,
    pub(super) stop: CancellationToken,
}

/// Starts the task and the trainer thread; the handle serves the API.
///
/// # Errors
/// When the trainer thread cannot be started.
pub(crate) fn start(
    parts: Parts,
    chosen: Chosen,
    faults: Vec<Fault>,
    (publication, published): (Publication, mpsc::Receiver<Outcome>),
) -> std::io::Result<(Arc<JobsHandle>, impl Future<Output = ()> + Send)> {
    let programs = parts.config.training.programs();
    let (done, finished) = mpsc::channel(DONE_QUEUE);
    let (reports, reported) = mpsc::channel(DONE_QUEUE);
    let (failed, link_failures) = mpsc::channel(64);
    let (calls, called) = mpsc::channel(CALL_QUEUE);
    let machine = Machine {
        chosen,
        programs,
        memory: parts.config.training.memory_limit,
        roles: parts.config.roles.clone(),
    };
    let trainer = TrainerHandle::start(machine, reports)?;
    let service = Service {
        tools: Tools {
            keys: KnownKeys::new(&parts.identity),
            publisher: Publisher::new(parts.net.clone()),
            publication,
            outbox: Outbox::new(parts.links, failed),
            home: parts.home,
            keep_checkpoints: parts.config.content.keep_checkpoints,
            checkpoint_grace: Duration::from_secs(parts.config.content.checkpoint_grace_seconds),
            fallen: Fallen::default(),
            roles: parts.config.roles.clone(),
            flat_ring_max: parts.network.genesis.constants.flat_ring_max,
            redundancy: parts.network.genesis.constants.redundancy,
            max_connections: parts.config.network.max_connections,
            clock_skew: parts.network.genesis.constants.clock_skew_seconds,
            identity: parts.identity,
            net: parts.net,
            content: parts.content,
            trainer,
            metrics: parts.metrics,
            faults: Faults(faults),
            programs,
            done,
        },
        jobs: BTreeMap::new(),
        turns: Turns::default(),
        work: VecDeque::new(),
        connected: BTreeSet::new(),
        stop: parts.stop,
    };
    let inputs = Inputs {
        events: parts.events,
        finished,
        reported,
        link_failures,
        called,
        published,
    };
    Ok((Arc::new(JobsHandle::new(calls)), service.run(inputs)))
}

struct Inputs {
    events: mpsc::Receiver<NetEvent>,
    finished: mpsc::Receiver<Done>,
    reported: mpsc::Receiver<super::trainer::Report>,
    link_failures: mpsc::Receiver<PeerBytes>,
    called: mpsc::Receiver<Call>,
    published: mpsc::Receiver<Outcome>,
}

impl Service {
    async fn run(mut self, mut inputs: Inputs) {
        let mut sync = tokio::time::interval(SYNC_EVERY);
        sync.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let next = self
                .deadline()
                .map_or(u64::MAX, |(at, _)| at.0.saturating_sub(super::unix_ms()));
            let tick = tokio::time::sleep(Duration::from_millis(next.min(3_600_000)));
            tokio::select! {
                () = self.stop.cancelled() => break,
                Some(event) = inputs.events.recv() => self.on_net(event).await,
                Some(done) = inputs.finished.recv() => self.on_done(done),
                Some(report) = inputs.reported.recv() => self.on_done(Done::Trainer(Box::new(report))),
                Some(peer) = inputs.link_failures.recv() => self.on_done(Done::LinkDown(peer)),
                Some(call) = inputs.called.recv() => self.on_call(call),
                Some(outcome) = inputs.published.recv() => self.on_published(outcome),
                _ = sync.tick() => {
                    self.keep_places();
                    self.ask_peers();
                    self.take_turns();
                    self.evaluate_again();
                }
                () = tick => self.tick(),
            }
            self.run_machines();
        }
        for job in self.jobs.values_mut() {
            job.abandon_training();
            job.events.end();
        }
    }

    /// Links of the members of the job that this node works in, or orchestrates, have places: anybody can announce others.
    pub(super) fn keep_places(&self) {
        let running = self.jobs.values().filter(|j| j.is_running());
        let ours = running.filter(|j| j.orchestrator.is_some() || self.turns.has(&j.id));
        let rosters = ours.flat_map(|j| j.rosters.values());
        let members = rosters.flat_map(|r| r.members.iter().map(|m| m.peer.clone()));
        self.tools.outbox.members().set(members.collect());
    }

    /// When a machine wants to be woken next, and for what.
    fn deadline(&self) -> Option<Deadline> {
        let running = self.jobs.values().filter(|j| j.is_running());
        let deadlines = running.flat_map(|j| {
            [
                j.member.as_ref().and_then(|m| m.deadline()),
                j.orchestrator.as_ref().and_then(|o| o.deadline()),
            ]
        });
        deadlines.fold(None, earlier)
    }

    fn tick(&mut self) {
        let now = now();
        let due = |d: Option<Deadline>| d.is_some_and(|(at, _)| at <= now);
        for job in self.jobs.values().filter(|j| j.is_running()) {
            if due(job.member.as_ref().and_then(member::Member::deadline)) {
                self.work
                    .push_back(Work::Member(job.id.clone(), Box::new(member::Event::Tick)));
            }
            if due(job
                .orchestrator
                .as_ref()
                .and_then(orchestrator::Orchestrator::deadline))
            {
                self.work.push_back(Work::Orchestrator(
                    job.id.clone(),
                    Box::new(orchestrator::Event::Tick),
                ));
            }
        }
    }

    /// Hands every waiting event to its machine and carries out what it asks for, until nothing waits.
    pub(crate) fn run_machines(&mut self) {
        while let Some(work) = self.work.pop_front() {
            match work {
                Work::Member(id, event) => {
                    let mut actions = Vec::new();
                    let Some(job) = self.jobs.get_mut(&id) else {
                        continue;
                    };
                    let Some(machine) = &mut job.member else { continue };
                    machine.handle(now(), *event, &mut actions);
                    job.tell_doing();
                    actions.into_iter().for_each(|a| self.member_action(&id, a));
                }
                Work::Orchestrator(id, event) => {
                    let mut actions = Vec::new();
                    let Some(job) = self.jobs.get_mut(&id) else {
                        continue;
                    };
                    let Some(machine) = &mut job.orchestrator else {
                        continue;
                    };
                    machine.handle(now(), *event, &mut actions);
                    job.tell_doing();
                    actions.into_iter().for_each(|a| self.orchestrator_action(&id, a));
                }
            }
        }
    }

    pub(crate) fn tell_member(&mut self, job: &CidBytes, event: member::Event) {
        self.work.push_back(Work::Member(job.clone(), Box::new(event)));
    }

    pub(crate) fn tell_orchestrator(&mut self, job: &CidBytes, event: orchestrator::Event) {
        self.work
            .push_back(Work::Orchestrator(job.clone(), Box::new(event)));
    }
}

/// The machines' time.
pub(crate) fn now() -> Time {
    Time(super::unix_ms())
}
