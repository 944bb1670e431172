//! A worker's part in one job: roster → train → commit → reduce → apply → attest (PROTOCOL section 5), as a pure machine.
//!
//! `handle(now, event, out)` is all that changes it. Training, encoding, sealing and signing are actions that the driver
//! answers with events.

mod ahead;
mod attests;
mod close;
mod commit;
mod early;
mod event;
mod keep;
mod links;
mod reduce;
mod roster;
mod round;
mod times;
mod view;

pub use commit::commitment;
pub use event::{Action, Config, Doing, Event, Held, Sums};
pub use round::DeltaFacts;

use crate::ids::{Hash32, Round};
use crate::message::{Body, Link, Offence, Ready, Standing, Status, Verified};
use crate::time::{Deadline, Time, earlier};
use ahead::{Ahead, Signer};
use round::InRound;
use times::RingTimes;

/// An idle member says so again after this long.
pub(crate) const READY_EVERY_MS: u64 = 5_000;

/// The machine.
#[derive(Debug)]
pub struct Member {
    config: Config,
    held: Option<Held>,
    phase: Phase,
    /// Error feedback of the lossy wire, flat; empty is zero.
    residual: Vec<f32>,
    /// When this process first said that it is ready; rosters that call an earlier one are not for it.
    first_ready: Option<Time>,
    /// Messages that name a roster not seen yet.
    ahead: Ahead,
    /// The links last said, by peer.
    said_links: Vec<Link>,
    /// How long rings took to bring segments, over the rounds.
    times: RingTimes,
}

#[derive(Debug)]
enum Phase {
    Preparing,
    Waiting { ready_again: Time },
    InRound(Box<InRound>),
    Finished,
}

impl Member {
    /// A member that is loading its base model; [`Event::Synced`] ends that.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            held: None,
            phase: Phase::Preparing,
            residual: Vec::new(),
            first_ready: None,
            ahead: Ahead::default(),
            said_links: Vec::new(),
            times: RingTimes::default(),
        }
    }

    /// What it is doing.
    #[must_use]
    pub fn doing(&self) -> Doing {
        match &self.phase {
            Phase::Preparing => Doing::Preparing,
            Phase::Waiting { .. } => Doing::Waiting,
            Phase::InRound(r) => r.doing(),
            Phase::Finished => Doing::Finished,
        }
    }

    /// The round it is in, or would be in next.
    #[must_use]
    pub fn round(&self) -> Round {
        match &self.phase {
            Phase::InRound(r) => r.roster.round,
            Phase::Preparing | Phase::Waiting { .. } | Phase::Finished => {
                Round(self.held.as_ref().map_or(0, |h| h.closed))
            }
        }
    }

    /// The state it holds for good.
    #[must_use]
    pub fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    /// When [`Event::Tick`] is due next, and for what.
    #[must_use]
    pub fn deadline(&self) -> Option<Deadline> {
        match &self.phase {
            Phase::Preparing | Phase::Finished => None,
            Phase::Waiting { ready_again } => Some((*ready_again, "saying again that we are ready")),
            Phase::InRound(r) => earlier(
                r.receipt_deadline(),
                earlier(r.reveal_deadline(), r.ring_deadline()),
            ),
        }
    }

    /// Takes an event.
    pub fn handle(&mut self, now: Time, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Message(m) => self.on_message(now, *m, out),
            Event::Synced(held) => self.on_synced(now, held, out),
            Event::FetchFailed(why) => self.on_fetch_failed(now, &why, out),
            Event::Measured(links) => self.on_measured(links, out),
            Event::Tick => self.on_tick(now, out),
            other @ (Event::Trained { .. }
            | Event::TrainFailed { .. }
            | Event::CommitBuilt { .. }
            | Event::Replica { .. }
            | Event::Segment { .. }
            | Event::LinkOffence { .. }
            | Event::PeerLost(_)
            | Event::Applied { .. }) => {
                let Phase::InRound(round) = &mut self.phase else {
                    return;
                };
                round.handle(now, &self.config, &self.residual, other, out);
            }
        }
    }

    fn on_message(&mut self, now: Time, m: Verified, out: &mut Vec<Action>) {
        if m.job != self.config.job || matches!(self.phase, Phase::Finished) {
            return;
        }
        let from_orchestrator = m.sender == self.config.orchestrator;
        if let Some(round) = m.body.round().filter(|_| from_orchestrator) {
            self.ahead.hear_of(round);
        }
        match &m.body {
            Body::Roster(roster) if from_orchestrator => {
                let hash = crate::cbor::object_hash(&m.encoded);
                self.on_roster(now, roster.clone(), hash, out);
            }
            Body::Close(close) if from_orchestrator => self.on_close(now, close, &m.nested, out),
            Body::Status(status) if from_orchestrator => self.on_status(status, out),
            Body::Manifest(b) if from_orchestrator => self.in_roster(now, b.roster, m, out),
            Body::Cutoff(b) if from_orchestrator => self.in_roster(now, b.roster, m, out),
            Body::Commitment(b) => self.in_roster(now, b.roster, m, out),
            Body::Receipt(b) => self.in_roster(now, b.roster, m, out),
            Body::Reveal(b) => self.in_roster(now, b.roster, m, out),
            Body::Attest(b) => self.on_attest(now, &m.sender, b, out),
            Body::Proof(proof) if from_orchestrator => {
                if let Phase::InRound(round) = &mut self.phase {
                    round.on_proof(proof, out);
                }
            }
            Body::Complaint(b) => {
                if b.accused == self.config.me {
                    let what =
                        Offence::from_number(b.offence).map_or("did something unknown", Offence::explain);
                    out.push(Action::Notice(format!(
                        "peer {} complains that this node {what}",
                        m.sender
                    )));
                }
                if let Phase::InRound(round) = &mut self.phase {
                    round.on_complaint(now, &self.config, &m.sender, b, out);
                }
            }
            Body::Job(_)
            | Body::Roster(_)
            | Body::Manifest(_)
            | Body::Close(_)
            | Body::Report(_)
            | Body::Ready(_)
            | Body::Cutoff(_)
            | Body::Status(_)
            | Body::Links(_)
            | Body::Proof(_)
            | Body::Holding(_) => {}
        }
    }

    /// Hands a message to the round it names, or keeps it until that round's roster is here.
    fn in_roster(&mut self, now: Time, roster: Hash32, m: Verified, out: &mut Vec<Action>) {
        if let Phase::InRound(round) = &mut self.phase
            && round.hash == roster
        {
            round.on_message(now, &self.config, m, out);
        } else {
            let signer = if m.sender == self.config.orchestrator {
                Signer::Orchestrator
            } else {
                Signer::Other
            };
            self.ahead.keep(self.round().0, m, signer);
        }
    }

    fn on_status(&mut self, status: &Status, out: &mut Vec<Action>) {
        match status.standing {
            1 => self.finish(Standing::Done, out),
            2 => self.finish(Standing::Cancelled, out),
            3 => self.finish(Standing::Failed, out),
            _ => {}
        }
    }

    fn finish(&mut self, standing: Standing, out: &mut Vec<Action>) {
        out.push(Action::AbandonTraining);
        out.push(Action::Finished(standing));
        self.phase = Phase::Finished;
    }

    fn on_tick(&mut self, now: Time, out: &mut Vec<Action>) {
        match &mut self.phase {
            Phase::Preparing | Phase::Finished => {}
            Phase::Waiting { ready_again } if *ready_again <= now => self.wait(now, out),
            Phase::Waiting { .. } => {}
            Phase::InRound(round) => round.on_tick(now, &self.config, out),
        }
    }

    fn wait(&mut self, now: Time, out: &mut Vec<Action>) {
        let closed = self.held.as_ref().map_or(0, |h| h.closed);
        self.first_ready.get_or_insert(now);
        out.push(Action::Publish(Body::Ready(Ready {
            job: self.config.job.clone(),
            closed,
            record: self.config.record,
            at: now.0,
        })));
        self.phase = Phase::Waiting {
            ready_again: now.plus(READY_EVERY_MS),
        };
    }
}

fn roster_of(body: &Body) -> Option<Hash32> {
    match body {
        Body::Manifest(b) => Some(b.roster),
        Body::Cutoff(b) => Some(b.roster),
        Body::Commitment(b) => Some(b.roster),
        Body::Receipt(b) => Some(b.roster),
        Body::Reveal(b) => Some(b.roster),
        Body::Job(_)
        | Body::Roster(_)
        | Body::Attest(_)
        | Body::Close(_)
        | Body::Report(_)
        | Body::Ready(_)
        | Body::Complaint(_)
        | Body::Status(_)
        | Body::Links(_)
        | Body::Proof(_)
        | Body::Holding(_) => None,
    }
}
