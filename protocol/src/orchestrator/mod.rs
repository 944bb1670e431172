//! The orchestrator's part in one job: rosters, cutoffs, manifests, views, closes (PROTOCOL sections 5 and 6, "Failure").
//!
//! It is the trusted sequencer of this version: what it signs stands where the specification says "decided".

mod accuse;
mod audit;
mod call;
mod clash;
mod close;
mod collect;
mod commit;
mod event;
mod keep;
mod order;
mod raise;
mod reach;
mod rounds;
mod view;

pub use event::{Action, Audited, Config, Doing, Event, Follows};
pub use reach::Answered;

use crate::ids::{CidBytes, Hash32, PeerBytes};
use crate::member::Held;
use crate::message::{Body, Roster, Standing, Verified};
use crate::time::{Deadline, Estimate, Time, earlier};
use call::Candidates;
use commit::Commits;
use order::MeasuredLinks;
use rounds::STRIKES;
use std::collections::{BTreeMap, BTreeSet};
use view::Reducing;

/// A peer without a connection for this long is taken for gone.
const LOST_AFTER_MS: u64 = 4_000;

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
    candidates: Candidates,
    lost: BTreeMap<PeerBytes, Time>,
    strikes: BTreeMap<PeerBytes, u32>,
    /// Misbehaved in an earlier try at this round: not called for it while others are enough.
    resting: BTreeSet<PeerBytes>,
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
            candidates: Candidates::default(),
            lost: BTreeMap::new(),
            strikes: BTreeMap::new(),
            resting: BTreeSet::new(),
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
        self.candidates.ready()
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
            Event::Audited {
                manifest,
                outcome,
                follows,
            } => self.on_audited(now, manifest, outcome, follows, out),
            Event::PeerLost(peer) => {
                self.candidates.lost(&peer);
                self.lost.entry(peer).or_insert(now);
            }
            Event::PeerSeen(peer) => self.on_seen(&peer),
            Event::Probed {
                peer,
                manifest,
                answered,
            } => self.on_probed(&peer, manifest, answered),
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
            Body::Ready(ready) => self.on_ready(now, &m.sender, ready.clone(), out),
            Body::Commitment(b) => self.on_commitment(now, &m.sender, b),
            Body::Receipt(b) => self.on_receipt(now, &m.sender, b),
            Body::Reveal(b) => self.on_reveal(now, &m.sender, b, out),
            Body::Complaint(b) => self.on_complaint(now, &m.sender, b, out),
            Body::Attest(b) => {
                let attest = b.clone();
                self.on_attest(now, attest, m, out);
            }
            Body::Links(b) => self.links.hear(&m.sender, b),
            Body::Holding(b) => self.on_holding(&m.sender, b),
            Body::Job(_)
            | Body::Roster(_)
            | Body::Manifest(_)
            | Body::Close(_)
            | Body::Report(_)
            | Body::Cutoff(_)
            | Body::Status(_)
            | Body::Proof(_) => {}
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
            if self.candidates.forget(&peer) {
                let ready = self.candidates.ready();
                out.push(Action::Notice(format!("{peer} is gone ({ready} ready)")));
            }
            match &mut self.phase {
                Phase::Training(c) | Phase::Collecting(c, _) => c.gone(&peer),
                Phase::Reducing(r) => r.gone(&peer),
                Phase::Preparing | Phase::Recruiting { .. } | Phase::Paused | Phase::Finished => {}
            }
        }
    }
}

/// Members of a set that are not in another.
fn without<'a>(all: impl Iterator<Item = &'a PeerBytes>, gone: &BTreeSet<PeerBytes>) -> Vec<&'a PeerBytes> {
    all.filter(|p| !gone.contains(*p)).collect()
}
