//! The orchestrator's part in one job: rosters, cutoffs, manifests, views, closes (PROTOCOL sections 5 and 6, "Failure").
//!
//! It is the trusted sequencer of this version: what it signs stands where the specification says "decided".

mod collect;
mod commit;
mod order;
mod view;

use crate::cbor;
use crate::ids::{CidBytes, Hash32, PeerBytes, Round};
use crate::job::spec::JobSpec;
use crate::member::{DeltaFacts, Held};
use crate::message::{Body, Offence, Ready, Reason, Roster, RosterMember, Standing, Status, Verified};
use crate::time::{Deadline, Estimate, Time, earlier};
use commit::Commits;
use order::MeasuredLinks;
use std::collections::{BTreeMap, BTreeSet};
use view::Reducing;

/// A peer without a connection for this long is taken for gone.
const LOST_AFTER_MS: u64 = 4_000;
/// Rounds in which two members complained of a third before it is not called again.
const STRIKES: u32 = 2;
/// Tries at one round before the job fails.
const MAX_ATTEMPTS: u32 = 10;

/// Who orchestrates what.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node.
    pub me: PeerBytes,
    /// The network.
    pub genesis: Hash32,
    /// The job.
    pub job: CidBytes,
    /// What it asks for.
    pub spec: JobSpec,
    /// Training questions in the set.
    pub rows: u64,
    /// More contributions than this are summed in a grid (a constant of the network).
    pub flat_ring_max: u32,
}

/// What happens to an orchestrator.
#[derive(Clone, Debug)]
pub enum Event {
    /// A checked message.
    Message(Box<Verified>),
    /// Checkpoint 0, made from the job's seed.
    Prepared(Held),
    /// Checkpoint 0 could not be made.
    PrepareFailed(String),
    /// [`Action::CheckDelta`] is done.
    DeltaChecked {
        /// Its roster.
        roster: Hash32,
        /// Whose.
        member: PeerBytes,
        /// Its directory.
        cid: CidBytes,
        /// What it says of itself, or what is wrong.
        outcome: Result<DeltaFacts, Reason>,
    },
    /// No connection to this peer is left.
    PeerLost(PeerBytes),
    /// A connection to this peer is there.
    PeerSeen(PeerBytes),
    /// The submitter takes the job back.
    Cancel,
    /// A deadline may have passed.
    Tick,
}

/// What an orchestrator asks of its driver.
#[derive(Clone, Debug)]
pub enum Action {
    /// Sign and gossip.
    Publish(Body),
    /// Make checkpoint 0.
    Prepare,
    /// Fetch a committed delta and check its form; the holders have it too.
    CheckDelta {
        /// Its roster.
        roster: Hash32,
        /// The round.
        round: Round,
        /// Whose.
        member: PeerBytes,
        /// Its directory.
        cid: CidBytes,
        /// Who has it.
        from: Vec<PeerBytes>,
    },
    /// Close the round with these attests: the driver wraps and publishes the certificate.
    Close {
        /// The close without its attests.
        body: crate::message::Close,
        /// The attests.
        attests: Vec<Verified>,
    },
    /// Count a peer's offence and say it in one line.
    Penalise {
        /// Who.
        peer: PeerBytes,
        /// What.
        offence: Offence,
        /// More, for people.
        detail: String,
    },
    /// Say something to the person who runs the node.
    Notice(String),
    /// The job is over.
    Finished(Standing),
}

/// What an orchestrator is doing, for status displays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Making checkpoint 0.
    Preparing,
    /// Waiting for enough members.
    Recruiting,
    /// Members train.
    Training,
    /// Commits are revealed and checked.
    Collecting,
    /// Members reduce and attest.
    Reducing,
    /// Below `min_workers`.
    Paused,
    /// Over.
    Finished,
}

/// A round's frozen facts.
#[derive(Clone, Debug)]
struct RoundFacts {
    roster: Roster,
    hash: Hash32,
    started: Time,
}

#[derive(Debug)]
enum Phase {
    Preparing,
    /// Waiting for members; the time is when fewer than `max_workers` will do.
    Recruiting {
        enough_at: Option<Time>,
    },
    /// Roster out, commitments and receipts coming in.
    Training(Commits),
    /// Cutoff out, reveals coming in, deltas being checked.
    Collecting(Commits, collect::Collect),
    /// Manifest out, ring running, attests coming in.
    Reducing(Box<Reducing>),
    Paused,
    Finished,
}

/// The machine.
#[derive(Debug)]
pub struct Orchestrator {
    config: Config,
    phase: Phase,
    held: Held,
    attempt: u32,
    rounds: Option<u64>,
    ready: BTreeMap<PeerBytes, Ready>,
    lost: BTreeMap<PeerBytes, Time>,
    strikes: BTreeMap<PeerBytes, u32>,
    commit_times: Estimate,
    links: MeasuredLinks,
}

impl Orchestrator {
    /// An orchestrator that has yet to make checkpoint 0.
    #[must_use]
    pub fn new(config: Config, out: &mut Vec<Action>) -> Self {
        out.push(Action::Prepare);
        Self {
            config,
            phase: Phase::Preparing,
            held: Held {
                closed: 0,
                state: Hash32::ZERO,
                checkpoint: CidBytes::default(),
            },
            attempt: 0,
            rounds: None,
            ready: BTreeMap::new(),
            lost: BTreeMap::new(),
            strikes: BTreeMap::new(),
            commit_times: Estimate::default(),
            links: MeasuredLinks::default(),
        }
    }

    /// What it is doing.
    #[must_use]
    pub fn doing(&self) -> Doing {
        match &self.phase {
            Phase::Preparing => Doing::Preparing,
            Phase::Recruiting { .. } => Doing::Recruiting,
            Phase::Training(_) => Doing::Training,
            Phase::Collecting(..) => Doing::Collecting,
            Phase::Reducing(_) => Doing::Reducing,
            Phase::Paused => Doing::Paused,
            Phase::Finished => Doing::Finished,
        }
    }

    /// The latest closed state.
    #[must_use]
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// Rounds the job runs, once known (a job given in epochs needs the first roster's size).
    #[must_use]
    pub fn rounds(&self) -> Option<u64> {
        self.rounds.or(self.config.spec.schedule.rounds)
    }

    /// Members ready for the next roster.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// When [`Event::Tick`] is due next, and for what.
    #[must_use]
    pub fn deadline(&self) -> Option<Deadline> {
        let phase = match &self.phase {
            Phase::Preparing | Phase::Paused | Phase::Finished => None,
            Phase::Recruiting { enough_at } => enough_at.map(|at| (at, "more members")),
            Phase::Training(c) => Some(self.cutoff_deadline(c)),
            Phase::Collecting(c, collect) => Some(self.collect_deadline(c, collect)),
            Phase::Reducing(r) => Some(r.deadline()),
        };
        let over = matches!(self.phase, Phase::Finished);
        let lost = self
            .lost
            .values()
            .min()
            .filter(|_| !over)
            .map(|at| (at.plus(LOST_AFTER_MS), "a lost peer's return"));
        earlier(phase, lost)
    }

    /// Takes an event.
    pub fn handle(&mut self, now: Time, event: Event, out: &mut Vec<Action>) {
        if matches!(self.phase, Phase::Finished) {
            return;
        }
        match event {
            Event::Message(m) => self.on_message(now, *m, out),
            Event::Prepared(held) => {
                self.held = held;
                self.phase = Phase::Recruiting { enough_at: None };
                self.recruit(now, out);
            }
            Event::PrepareFailed(why) => {
                out.push(Action::Notice(format!("checkpoint 0 cannot be made: {why}")));
                self.finish(Standing::Failed, &why, out);
            }
            Event::DeltaChecked {
                roster,
                member,
                cid,
                outcome,
            } => {
                self.on_delta_checked(now, roster, &member, &cid, outcome, out);
            }
            Event::PeerLost(peer) => {
                self.lost.entry(peer).or_insert(now);
            }
            Event::PeerSeen(peer) => {
                self.lost.remove(&peer);
            }
            Event::Cancel => self.finish(Standing::Cancelled, "cancelled by its submitter", out),
            Event::Tick => {}
        }
        self.advance(now, out);
    }

    fn on_message(&mut self, now: Time, m: Verified, out: &mut Vec<Action>) {
        if m.job != self.config.job {
            return;
        }
        match &m.body {
            Body::Ready(ready) => self.on_ready(now, m.sender.clone(), ready.clone(), out),
            Body::Commitment(b) => self.on_commitment(now, &m.sender, b),
            Body::Receipt(b) => self.on_receipt(now, &m.sender, b),
            Body::Reveal(b) => self.on_reveal(&m.sender, b, out),
            Body::Complaint(b) => self.on_complaint(now, &m.sender, b, out),
            Body::Attest(b) => {
                let attest = b.clone();
                self.on_attest(now, attest, m, out);
            }
            Body::Links(b) => self.links.hear(&m.sender, b),
            Body::Job(_)
            | Body::Roster(_)
            | Body::Manifest(_)
            | Body::Close(_)
            | Body::Report(_)
            | Body::Cutoff(_)
            | Body::Status(_) => {}
        }
    }

    fn on_ready(&mut self, now: Time, peer: PeerBytes, ready: Ready, out: &mut Vec<Action>) {
        self.lost.remove(&peer);
        let new = !self.ready.contains_key(&peer);
        self.ready.insert(peer.clone(), ready);
        if let Phase::Training(c) = &mut self.phase {
            c.idle(&peer);
        }
        if new {
            out.push(Action::Notice(format!(
                "{peer} is ready ({} in all)",
                self.ready.len()
            )));
        }
        if matches!(self.phase, Phase::Recruiting { .. } | Phase::Paused) {
            self.recruit(now, out);
        }
    }

    /// What time alone decides, after every event.
    fn advance(&mut self, now: Time, out: &mut Vec<Action>) {
        self.forget_the_lost(now, out);
        match &self.phase {
            Phase::Recruiting { .. } => self.recruit(now, out),
            Phase::Training(_) => self.cut_off_when_due(now, out),
            Phase::Collecting(..) => self.decide_when_due(now, out),
            Phase::Reducing(_) => self.close_or_raise_view(now, out),
            Phase::Preparing | Phase::Paused | Phase::Finished => {}
        }
    }

    fn forget_the_lost(&mut self, now: Time, out: &mut Vec<Action>) {
        let gone: Vec<PeerBytes> = self
            .lost
            .iter()
            .filter(|(_, at)| now.since(**at) >= LOST_AFTER_MS)
            .map(|(p, _)| p.clone())
            .collect();
        for peer in gone {
            self.lost.remove(&peer);
            if self.ready.remove(&peer).is_some() {
                out.push(Action::Notice(format!(
                    "{peer} is gone ({} ready)",
                    self.ready.len()
                )));
            }
            match &mut self.phase {
                Phase::Training(c) | Phase::Collecting(c, _) => c.gone(&peer),
                Phase::Reducing(r) => r.gone(&peer),
                Phase::Preparing | Phase::Recruiting { .. } | Phase::Paused | Phase::Finished => {}
            }
        }
    }

    fn callable(&self) -> Vec<RosterMember> {
        let max = self.config.spec.schedule.max_workers as usize;
        self.ready
            .iter()
            .filter(|(p, _)| {
                self.strikes.get(*p).copied().unwrap_or(0) < STRIKES && !self.lost.contains_key(*p)
            })
            .map(|(peer, r)| RosterMember {
                peer: peer.clone(),
                record: r.record,
                ready_at: r.at,
            })
            .take(max)
            .collect()
    }

    /// Starts a round when enough members are ready: all that may join at once, or the least after the recruiting time.
    fn recruit(&mut self, now: Time, out: &mut Vec<Action>) {
        let schedule = &self.config.spec.schedule;
        let (min, max) = (schedule.min_workers as usize, schedule.max_workers as usize);
        let members = self.callable();
        if members.len() < min {
            if matches!(self.phase, Phase::Recruiting { .. }) {
                self.phase = Phase::Recruiting { enough_at: None };
            }
            return;
        }
        let enough_at = match &self.phase {
            Phase::Recruiting { enough_at: Some(at) } => *at,
            Phase::Recruiting { enough_at: None } => now.plus(schedule.deadlines.recruit_ms),
            Phase::Preparing
            | Phase::Training(_)
            | Phase::Collecting(..)
            | Phase::Reducing(_)
            | Phase::Paused
            | Phase::Finished => now,
        };
        if members.len() >= max || now >= enough_at {
            self.start_round(now, members, out);
        } else {
            self.phase = Phase::Recruiting {
                enough_at: Some(enough_at),
            };
        }
    }

    fn start_round(&mut self, now: Time, members: Vec<RosterMember>, out: &mut Vec<Action>) {
        self.fix_rounds(members.len());
        let roster = Roster {
            job: self.config.job.clone(),
            round: Round(self.held.closed),
            attempt: self.attempt,
            members,
            parent: self.held.state,
            checkpoint: self.held.checkpoint.clone(),
        };
        // Bodies of this crate encode; should one not, the job fails by its deadline.
        let hash = cbor::to_dag(&roster)
            .map(|b| cbor::object_hash(&b))
            .unwrap_or_default();
        out.push(Action::Notice(format!(
            "round {} starts with {} members",
            roster.round,
            roster.members.len()
        )));
        out.push(Action::Publish(Body::Roster(roster.clone())));
        self.phase = Phase::Training(Commits::new(RoundFacts {
            roster,
            hash,
            started: now,
        }));
    }

    /// ⌈epochs·questions / (workers·interval·prompts per step)⌉, once the first roster is known.
    fn fix_rounds(&mut self, members: usize) {
        let spec = &self.config.spec;
        if self.rounds.is_some() || spec.schedule.rounds.is_some() {
            return;
        }
        let Some(epochs) = spec.schedule.epochs else {
            return;
        };
        let a_round = members as f64
            * f64::from(spec.schedule.aggregate_interval)
            * f64::from(spec.gspo.prompts_per_step);
        self.rounds = Some((epochs * self.config.rows as f64 / a_round).ceil().max(1.0) as u64);
    }

    /// The next round, the same round again, a pause, or the end.
    fn next_round(&mut self, now: Time, out: &mut Vec<Action>) {
        if self.rounds().is_some_and(|r| self.held.closed >= r) {
            self.finish(Standing::Done, "all rounds are closed", out);
            return;
        }
        let members = self.callable();
        if members.len() >= self.config.spec.schedule.min_workers as usize {
            self.start_round(now, members, out);
            return;
        }
        let why = format!(
            "{} members ready where the job needs {}",
            members.len(),
            self.config.spec.schedule.min_workers
        );
        out.push(Action::Notice(format!("paused: {why}")));
        out.push(self.status(0, &why));
        self.phase = Phase::Paused;
    }

    /// Nobody's work can be summed, or no quorum closed the round: it is tried again from the same state.
    fn void_round(&mut self, now: Time, why: &str, out: &mut Vec<Action>) {
        self.attempt += 1;
        out.push(Action::Notice(format!(
            "round {} is void: {why}; attempt {}",
            self.held.closed, self.attempt
        )));
        if self.attempt >= MAX_ATTEMPTS {
            let why = format!(
                "round {} was tried {MAX_ATTEMPTS} times; the last time: {why}",
                self.held.closed
            );
            self.finish(Standing::Failed, &why, out);
        } else {
            self.next_round(now, out);
        }
    }

    fn strike(&mut self, peer: &PeerBytes, out: &mut Vec<Action>) {
        let strikes = self.strikes.entry(peer.clone()).or_default();
        *strikes += 1;
        if *strikes == STRIKES {
            out.push(Action::Notice(format!(
                "{peer} misbehaved in {STRIKES} rounds and is not called again"
            )));
        }
    }

    fn finish(&mut self, standing: Standing, why: &str, out: &mut Vec<Action>) {
        let number = match standing {
            Standing::Paused => 0,
            Standing::Done => 1,
            Standing::Cancelled => 2,
            Standing::Failed => 3,
        };
        out.push(self.status(number, why));
        out.push(Action::Finished(standing));
        self.phase = Phase::Finished;
    }

    fn status(&self, standing: u8, why: &str) -> Action {
        Action::Publish(Body::Status(Status {
            job: self.config.job.clone(),
            closed: self.held.closed,
            standing,
            why: why.chars().take(500).collect(),
        }))
    }
}

/// Members of a set that are not in another.
fn without<'a>(all: impl Iterator<Item = &'a PeerBytes>, gone: &BTreeSet<PeerBytes>) -> Vec<&'a PeerBytes> {
    all.filter(|p| !gone.contains(*p)).collect()
}
