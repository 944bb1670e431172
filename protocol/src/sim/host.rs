//! One simulated member: its machine, its stand-in trainer and its faults.

use super::{Payload, cid, hash, peer};
use crate::ids::{CidBytes, Hash32, PeerBytes, Round};
use crate::member::{Action, Config, DeltaFacts, Event, Held, Member, Sums};
use crate::message::{Body, Offence, Reason};
use crate::ring::{Hop, Place};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Something that goes wrong with a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "value")]
pub enum Fault {
    /// Dies in this round when it would start to train.
    DieInTrain(u64),
    /// Dies in this round when it has built its commit, before it says so.
    DieBeforeCommit(u64),
    /// Dies in this round when it would reveal its commit, which has its receipts.
    DieInReveal(u64),
    /// Dies in this round when its commit has been replicated and the manifest is out.
    DieInReduce(u64),
    /// Dies in the round of the first number when it would send its ring segment of the second number, counted from 0 over
    /// the round's views.
    DieAtSegment(u64, u32),
    /// Dies when it has the sum and is to apply it.
    DieInApply(u64),
    /// Comes back this many milliseconds after it died.
    ReviveAfter(u64),
    /// Its connections are found dead only this many milliseconds after it died.
    NoticedAfter(u64),
    /// Takes part in everything in this round but sends nothing in the ring.
    MuteInReduce(u64),
    /// Sends its ring segments of this round under the next round's number.
    WrongRound(u64),
    /// Cuts its ring segments of this round short.
    Truncate(u64),
    /// Its seals of this round do not open.
    BadSeal(u64),
    /// Commits a NaN in this round.
    NotFinite(u64),
    /// Commits a finite number in this round that is too large to be summed.
    Huge(u64),
    /// Computes another state in this round.
    OtherState(u64),
    /// Says in this round that it holds every chunk of a view, and gives none that it has not.
    SaysAll(u64),
    /// Reveals junk for every member in this round, when it commits and when it reveals.
    ForgesReveals(u64),
    /// A stranger does so beside it.
    StrangerReveals(u64),
    /// Signs receipts of this round for another delta than it was given.
    FalseReceipts(u64),
    /// Says in every view of the round of the first number that it waits for the member before it, and misses as many segments
    /// as the second number says.
    Accuses(u64, u32),
    /// Adds the opposite of what it committed in this round, and signs its hops all the same.
    FalseSum(u64),
}

/// Something that the orchestrator does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "value")]
pub enum OrchestratorFault {
    /// Decides two manifests for the first view of this round.
    TwoManifests(u64),
    /// Decides another view in this round before it closes the one before.
    LateClose(u64),
}

/// A member in the simulation.
#[derive(Debug)]
pub struct Host {
    pub(super) machine: Member,
    pub(super) alive: bool,
    pub(super) faults: Vec<Fault>,
    /// Ring payload sent, in all and since the latest roster.
    pub(super) ring_bytes: u64,
    pub(super) round_bytes: u64,
    pub(super) offences: BTreeMap<&'static str, u64>,
    /// Its part of the chains of this round's rings, by manifest.
    pub(super) hops: BTreeMap<Hash32, Vec<(Place, Hop)>>,
    /// Ring segments sent since the latest roster.
    pub(super) segments: u32,
    /// The manifest under which it complained last, without cause.
    pub(super) accused_under: Option<Hash32>,
    config: Config,
    elements: usize,
    payload: Payload,
}

/// The deltas of a run, by directory: what replicas and fetches find.
pub(super) type Deltas = BTreeMap<CidBytes, (PeerBytes, u64, Hash32, Vec<f32>)>;

impl Host {
    pub(super) fn new(mut config: Config, (elements, payload): (usize, Payload), faults: Vec<Fault>) -> Self {
        let false_in = faults.iter().find_map(|f| {
            if let Fault::FalseSum(round) = f {
                Some(*round)
            } else {
                None
            }
        });
        if let Some(round) = false_in {
            config.sums = Sums::FalseIn(Some(Round(round)));
        }
        Self {
            machine: Member::new(config.clone()),
            alive: true,
            faults,
            ring_bytes: 0,
            round_bytes: 0,
            offences: BTreeMap::new(),
            hops: BTreeMap::new(),
            segments: 0,
            accused_under: None,
            config,
            elements,
            payload,
        }
    }

    pub(super) fn restart(&mut self) {
        self.alive = true;
        self.machine = Member::new(self.config.clone());
    }

    /// When it comes back after a death, if it does.
    pub(super) fn revive_after(&self) -> Option<u64> {
        self.faults.iter().find_map(|f| {
            if let Fault::ReviveAfter(ms) = f {
                Some(*ms)
            } else {
                None
            }
        })
    }

    /// Microseconds until its connections are found dead.
    pub(super) fn noticed_after(&self) -> u64 {
        let ms = self.faults.iter().find_map(|f| {
            if let Fault::NoticedAfter(ms) = f {
                Some(*ms)
            } else {
                None
            }
        });
        ms.unwrap_or(0) * 1000
    }

    pub(super) fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// Whether this action is where the host dies.
    pub(super) fn dies_at(&self, action: &Action) -> bool {
        let round = self.machine.round().0;
        match action {
            Action::Train { .. } => self.has(Fault::DieInTrain(round)),
            Action::BuildCommit { .. } => self.has(Fault::DieBeforeCommit(round)),
            Action::SendSegment { .. } => {
                self.has(Fault::DieInReduce(round)) || self.has(Fault::DieAtSegment(round, self.segments))
            }
            Action::Apply { .. } => self.has(Fault::DieInApply(round)),
            Action::Publish(Body::Reveal(reveal)) => {
                reveal.member == self.config.me && self.has(Fault::DieInReveal(round))
            }
            Action::Publish(_)
            | Action::Fetch(_)
            | Action::AbandonTraining
            | Action::SendReplica { .. }
            | Action::KeepHops { .. }
            | Action::Judge(_)
            | Action::Promote(_)
            | Action::Penalise { .. }
            | Action::Notice(_)
            | Action::Finished(_) => false,
        }
    }

    /// Integers below 2^10: f32 sums of a thousand of them are exact (weights being equal powers of two), so any order gives
    /// the same bits.
    pub(super) fn train(&self, round: u64) -> Vec<f32> {
        let seed = hash(&[b"delta", &round.to_le_bytes(), self.config.me.as_bytes()]);
        let mut rng = StdRng::from_seed(seed.0);
        let mut number = || match self.payload {
            Payload::Integers => f32::from(rng.random_range(-1023i16..=1023)),
            Payload::Fractions => rng.random_range(-1.0f32..1.0),
        };
        (0..self.elements).map(|_| number()).collect()
    }

    pub(super) fn build_commit(
        &self,
        round: u64,
        parent: Hash32,
        delta: &[f32],
        deltas: &mut Deltas,
    ) -> CidBytes {
        let directory = cid(&[
            b"commit",
            &round.to_le_bytes(),
            self.config.me.as_bytes(),
            &parent.0,
        ]);
        let mut delta = delta.to_vec();
        if let Some(v) = delta.first_mut() {
            if self.has(Fault::NotFinite(round)) {
                *v = f32::NAN;
            }
            if self.has(Fault::Huge(round)) {
                *v = 3e38;
            }
        }
        deltas.insert(directory.clone(), (self.config.me.clone(), round, parent, delta));
        directory
    }

    pub(super) fn count(&mut self, offence: Offence) {
        *self.offences.entry(offence.label()).or_default() += 1;
    }
}

/// What a checker would find in a directory.
pub(super) fn inspect(deltas: &Deltas, directory: &CidBytes, samples: u64) -> Result<DeltaFacts, Reason> {
    let (member, round, parent, delta) = deltas.get(directory).ok_or(Reason::Unavailable)?;
    if crate::quant::out_of_bounds(delta).is_some() {
        return Err(Reason::NotFinite);
    }
    Ok(DeltaFacts {
        member: member.clone(),
        round: crate::ids::Round(*round),
        parent: *parent,
        samples,
        delta: delta.clone(),
    })
}

/// The outer step of the simulation: the state is the hash of its parent and the mean.
pub(super) fn apply(parent: Hash32, mean: &[f32]) -> Held {
    let bytes: Vec<u8> = mean.iter().flat_map(|v| v.to_bits().to_le_bytes()).collect();
    let state = hash(&[b"state", &parent.0, &bytes]);
    Held {
        closed: 0,
        state,
        checkpoint: cid(&[b"checkpoint", &state.0]),
    }
}

/// Checkpoint 0.
pub(super) fn zero() -> Held {
    let state = hash(&[b"zero"]);
    Held {
        closed: 0,
        state,
        checkpoint: cid(&[b"checkpoint", &state.0]),
    }
}

/// The first event of a member that has loaded everything.
pub(super) fn loaded(held: &Held) -> Event {
    Event::Synced(held.clone())
}

/// The record hash that stands for a member's keys.
pub(super) fn record(index: u32) -> Hash32 {
    hash(&[b"record", peer(index).as_bytes()])
}
