//! A worker's part in one job: roster → train → commit → reduce → apply → attest (PROTOCOL section 5), as a pure machine.
//!
//! `handle(now, event, out)` is all that changes it. Training, encoding, sealing and signing are actions that the driver
//! answers with events.

mod commit;
mod round;
mod view;

pub use commit::commitment;
pub use round::DeltaFacts;

use crate::cbor::Bounded;
use crate::ids::{CidBytes, Hash32, PeerBytes, Round, View};
use crate::job::spec::JobSpec;
use crate::message::{
    Body, Close, Link, LinkHeader, Links, MAX_LINKS, Offence, Ready, Reason, Roster, RosterMember, Standing,
    Status, Verified,
};
use crate::time::{Deadline, Time, earlier};
use round::{InRound, Step};

/// Messages kept for a roster that has not come yet.
const MAX_AHEAD: usize = 256;
/// An idle member says so again after this long.
const READY_EVERY_MS: u64 = 5_000;

/// Who this member is and what the job asks for.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node.
    pub me: PeerBytes,
    /// Hash of its identity record.
    pub record: Hash32,
    /// The network.
    pub genesis: Hash32,
    /// The job.
    pub job: CidBytes,
    /// The only signer of rosters and manifests.
    pub orchestrator: PeerBytes,
    /// What it asks for.
    pub spec: JobSpec,
    /// Elements of a ring segment; smaller in tests.
    pub segment: usize,
}

/// The model state this node holds for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Rounds closed in it.
    pub closed: u64,
    /// Its hash.
    pub state: Hash32,
    /// Its checkpoint.
    pub checkpoint: CidBytes,
}

/// What happens to a member.
#[derive(Clone, Debug)]
pub enum Event {
    /// A checked message, from gossip, from synchronisation or one's own.
    Message(Box<Verified>),
    /// The model state is loaded: after warm-up, or after [`Action::Fetch`].
    Synced(Held),
    /// [`Action::Fetch`] did not succeed.
    FetchFailed(String),
    /// [`Action::Train`] is done: Δ = local state − round state, flat.
    Trained {
        /// Roster it was for.
        roster: Hash32,
        /// Δ without the residual.
        delta: Vec<f32>,
        /// Completions trained on.
        samples: u64,
    },
    /// [`Action::Train`] failed.
    TrainFailed {
        /// Roster it was for.
        roster: Hash32,
        /// Why.
        why: String,
    },
    /// [`Action::BuildCommit`] is done.
    CommitBuilt {
        /// Roster it is for.
        roster: Hash32,
        /// The directory {delta.bin, rollouts}.
        cid: CidBytes,
        /// A fresh secret.
        salt: Hash32,
    },
    /// A replica of another's commit is complete, and was checked.
    Replica {
        /// Who sent it; a commit comes from its own member.
        from: PeerBytes,
        /// Roster it is for.
        roster: Hash32,
        /// Its salt.
        salt: Hash32,
        /// Its directory, as recomputed here.
        cid: CidBytes,
        /// What it holds, or what is wrong with it.
        outcome: Result<DeltaFacts, Reason>,
    },
    /// A ring segment whose seal was good.
    Segment {
        /// Who sent it.
        from: PeerBytes,
        /// Its header.
        header: LinkHeader,
        /// Its elements.
        payload: Vec<u8>,
    },
    /// The link layer refused a frame.
    LinkOffence {
        /// Whose.
        from: PeerBytes,
        /// What it was.
        offence: Offence,
    },
    /// No connection to a peer is left, or it does not take what it is sent.
    PeerLost(PeerBytes),
    /// [`Action::Apply`] is done.
    Applied {
        /// Manifest it was for.
        manifest: Hash32,
        /// Hash of the state after.
        state: Hash32,
        /// Its checkpoint directory.
        checkpoint: CidBytes,
    },
    /// The driver measured its links to other members.
    Measured(Vec<Link>),
    /// A deadline may have passed.
    Tick,
}

/// What a member asks of its driver.
#[derive(Clone, Debug)]
pub enum Action {
    /// Sign and gossip.
    Publish(Body),
    /// Fetch a checkpoint, check its state hash, load it.
    Fetch(Held),
    /// Train `aggregate_interval` steps from the held state.
    Train {
        /// The round.
        round: Round,
        /// Hash of its roster: the beacon.
        roster: Hash32,
        /// Index in the roster.
        rank: u32,
        /// Members of the roster.
        members: u32,
    },
    /// The training under way will not be used.
    AbandonTraining,
    /// Encode, sign and store a commit.
    BuildCommit {
        /// The round.
        round: Round,
        /// Its roster.
        roster: Hash32,
        /// State it starts from.
        parent: Hash32,
        /// Δ with the residual, flat.
        delta: Vec<f32>,
    },
    /// Send one's own commit to a holder over the sealed link.
    SendReplica {
        /// The holder.
        to: PeerBytes,
        /// The round.
        round: Round,
        /// Its roster.
        roster: Hash32,
        /// The directory.
        cid: CidBytes,
        /// Its salt.
        salt: Hash32,
    },
    /// Send a ring segment over the sealed link.
    SendSegment {
        /// The next slot's server.
        to: PeerBytes,
        /// Associated data.
        header: LinkHeader,
        /// Elements.
        payload: Vec<u8>,
    },
    /// Take the outer step with the mean, tentatively.
    Apply {
        /// The round.
        round: Round,
        /// The view.
        view: View,
        /// Manifest it is for.
        manifest: Hash32,
        /// The mean delta, flat.
        mean: Vec<f32>,
    },
    /// The tentative state is the state.
    Promote(Held),
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
    /// The job is over for this member.
    Finished(Standing),
}

/// What a member is doing, for status displays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Loading base model, questions and state.
    Preparing,
    /// Waiting for a roster.
    Waiting,
    /// Fetching the state a roster starts from.
    Syncing,
    /// Training.
    Training,
    /// Committing: replicas, receipts, reveals.
    Committing,
    /// In the ring.
    Reducing,
    /// Taking the outer step, or waiting for the close.
    Closing,
    /// Not in this round's sum.
    SittingOut,
    /// Done.
    Finished,
}

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
    ahead: Vec<Verified>,
    /// The links last said, by peer.
    said_links: Vec<Link>,
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
            ahead: Vec::new(),
            said_links: Vec::new(),
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
            | Body::Attest(_)
            | Body::Close(_)
            | Body::Report(_)
            | Body::Ready(_)
            | Body::Cutoff(_)
            | Body::Status(_)
            | Body::Links(_) => {}
        }
    }

    /// Hands a message to the round it names, or keeps it until that round's roster is here.
    fn in_roster(&mut self, now: Time, roster: Hash32, m: Verified, out: &mut Vec<Action>) {
        if let Phase::InRound(round) = &mut self.phase
            && round.hash == roster
        {
            round.on_message(now, &self.config, m, out);
        } else if self.ahead.len() < MAX_AHEAD && !self.ahead.contains(&m) {
            self.ahead.push(m);
        }
    }

    fn on_roster(&mut self, now: Time, roster: Roster, hash: Hash32, out: &mut Vec<Action>) {
        let Some(held) = &self.held else { return };
        if roster.round.0 < held.closed {
            return;
        }
        if let Phase::InRound(current) = &self.phase {
            let current = (current.roster.round, current.roster.attempt);
            if (roster.round, roster.attempt) <= current {
                return;
            }
            out.push(Action::AbandonTraining);
        }
        let since = self.first_ready.map_or(u64::MAX, |t| t.0);
        let called = |m: &RosterMember| m.peer == self.config.me && m.ready_at >= since;
        let Some(rank) = roster.members.iter().position(called) else {
            self.phase = Phase::Waiting {
                ready_again: now.plus(READY_EVERY_MS),
            };
            return;
        };
        let synced = roster.parent == held.state;
        let round = InRound::new(roster, hash, rank, self.config.me.clone());
        if synced {
            out.push(round.train());
        } else {
            // A joiner's or latecomer's rounding error belongs to a state that is gone.
            self.residual.clear();
            out.push(Action::Fetch(round.parent()));
        }
        let step = if synced { Step::Training } else { Step::Syncing };
        self.phase = Phase::InRound(Box::new(InRound { step, ..round }));
        self.replay_ahead(now, hash, out);
    }

    fn replay_ahead(&mut self, now: Time, roster: Hash32, out: &mut Vec<Action>) {
        for m in std::mem::take(&mut self.ahead) {
            if m.body.round().is_none_or(|r| r >= self.round().0) {
                self.in_roster(now, roster_of(&m.body).unwrap_or(roster), m, out);
            }
        }
    }

    fn on_synced(&mut self, now: Time, held: Held, out: &mut Vec<Action>) {
        self.held = Some(held.clone());
        match &mut self.phase {
            Phase::Preparing | Phase::Waiting { .. } => self.wait(now, out),
            Phase::InRound(round) if matches!(round.step, Step::Syncing) => {
                if round.roster.parent == held.state {
                    round.step = Step::Training;
                    out.push(round.train());
                } else if round.roster.round.0 == held.closed {
                    out.push(Action::Notice(format!(
                        "the checkpoint of round {} has state {} where the roster names {}: sitting out",
                        round.roster.round,
                        held.state.short(),
                        round.roster.parent.short()
                    )));
                    round.step = Step::SittingOut;
                }
                // Otherwise an earlier roster's state came late; this roster's is on its way.
            }
            Phase::InRound(_) | Phase::Finished => {}
        }
    }

    fn on_fetch_failed(&mut self, now: Time, why: &str, out: &mut Vec<Action>) {
        out.push(Action::Notice(format!(
            "cannot load the round's state: {why}; waiting for the next roster"
        )));
        if self.held.is_some() {
            self.wait(now, out);
        }
    }

    fn on_close(&mut self, now: Time, close: &Close, attests: &[Verified], out: &mut Vec<Action>) {
        let Some(held) = &self.held else { return };
        if close.round.0 < held.closed || !certified(close, attests) {
            return;
        }
        let Phase::InRound(round) = &mut self.phase else {
            return;
        };
        if round.roster.round != close.round || !round.is_quorum(close, attests) {
            return;
        }
        let next = Held {
            closed: close.round.0 + 1,
            state: close.state,
            checkpoint: close.checkpoint.clone(),
        };
        match round.attested_state() {
            Some(state) if state == close.state => {
                if let Some(residual) = round.next_residual(close.manifest) {
                    self.residual = residual;
                }
                self.held = Some(next.clone());
                out.push(Action::Promote(next));
                // The attest said that we are here: a further word is needed only if no roster comes.
                self.phase = Phase::Waiting {
                    ready_again: now.plus(READY_EVERY_MS),
                };
            }
            other => {
                if let Some(state) = other {
                    out.push(Action::Penalise {
                        peer: self.config.me.clone(),
                        offence: Offence::StateDiffers,
                        detail: format!(
                            "round {}: this node's state {} differs from the quorum's {}; loading the checkpoint",
                            close.round,
                            state.short(),
                            close.state.short()
                        ),
                    });
                }
                self.residual.clear();
                out.push(Action::AbandonTraining);
                out.push(Action::Fetch(next));
                self.phase = Phase::Preparing;
            }
        }
    }

    /// Says what was measured, where it differs from what was said before.
    fn on_measured(&mut self, mut links: Vec<Link>, out: &mut Vec<Action>) {
        links.retain(|l| l.peer != self.config.me);
        links.sort_by(|a, b| (a.delay_us, &a.peer).cmp(&(b.delay_us, &b.peer)));
        links.truncate(MAX_LINKS);
        links.sort_by(|a, b| a.peer.cmp(&b.peer));
        links.dedup_by(|a, b| a.peer == b.peer);
        if !differ(&self.said_links, &links) {
            return;
        }
        self.said_links.clone_from(&links);
        if let Ok(links) = Bounded::try_from(links) {
            let job = self.config.job.clone();
            out.push(Action::Publish(Body::Links(Links { job, links })));
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

/// Every attest in the certificate is by another signer and says what the certificate says. Signatures were checked at
/// the edge.
fn certified(close: &Close, attests: &[Verified]) -> bool {
    let mut signers: Vec<&PeerBytes> = attests
        .iter()
        .filter(|v| {
            matches!(&v.body, Body::Attest(a) if a.job == close.job && a.round == close.round
                && a.manifest == close.manifest && a.state == close.state && a.checkpoint == close.checkpoint)
        })
        .map(|v| &v.sender)
        .collect();
    signers.sort();
    signers.dedup();
    !signers.is_empty() && signers.len() == close.attests.len()
}

/// Other peers, or a delay or bandwidth that moved by more than a fifth.
fn differ(said: &[Link], now: &[Link]) -> bool {
    let moved = |a: u32, b: u32| u64::from(a.abs_diff(b)) * 5 > u64::from(a);
    said.len() != now.len()
        || said.iter().zip(now).any(|(a, b)| {
            a.peer != b.peer || moved(a.delay_us, b.delay_us) || moved(a.bytes_per_ms, b.bytes_per_ms)
        })
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
        | Body::Links(_) => None,
    }
}
