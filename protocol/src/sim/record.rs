//! What an observer of the whole simulation knows of its rounds, and what must hold of it.

use super::clock::Micros;
use super::index_of;
use crate::ids::Hash32;
use crate::job::spec::ScheduleSpec;
use crate::message::{Close, Manifest, Receipt, Roster};
use std::collections::{BTreeMap, BTreeSet};

/// One try at a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundRecord {
    /// The round.
    pub round: u64,
    /// Which try at it.
    pub attempt: u32,
    /// Members called.
    pub called: u32,
    /// Virtual microseconds of the roster.
    pub started: u64,
    /// Of the cutoff, if it came to that.
    pub cutoff: Option<u64>,
    /// Of the first manifest.
    pub manifest: Option<u64>,
    /// When the last member that got there had the mean under the latest manifest.
    pub reduced: Option<u64>,
    /// Of the close.
    pub closed: Option<u64>,
    /// Manifests: views raised, and one.
    pub views: u32,
}

/// The rounds of a run.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) rounds: Vec<RoundRecord>,
    /// Receipts that the orchestrator heard before the cutoff, by member: their holders.
    receipts: BTreeMap<u32, BTreeSet<u32>>,
    committed: BTreeSet<u32>,
    closed_states: BTreeMap<u64, Hash32>,
    /// What did not hold, in words.
    pub(super) broken: Broken,
}

/// What did not hold, by invariant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Broken {
    /// Sums that are not the exact one.
    pub sum: Vec<String>,
    /// Rounds with two states, or members with another than the closed one.
    pub state: Vec<String>,
    /// Rounds past their deadline.
    pub stuck: Vec<String>,
    /// Commits with receipts that a close left out though someone held them.
    pub lost: Vec<String>,
}

/// Added to a round's deadline for what travels between its phases.
const SLACK: Micros = 30_000_000;

impl Record {
    pub(super) fn on_roster(&mut self, now: Micros, roster: &Roster) {
        self.receipts.clear();
        self.committed.clear();
        self.rounds.push(RoundRecord {
            round: roster.round.0,
            attempt: roster.attempt,
            called: u32::try_from(roster.members.len()).unwrap_or(u32::MAX),
            started: now,
            cutoff: None,
            manifest: None,
            reduced: None,
            closed: None,
            views: 0,
        });
    }

    pub(super) fn on_commitment(&mut self, member: Option<u32>) {
        if self.rounds.last().is_some_and(|r| r.cutoff.is_none()) {
            self.committed.extend(member);
        }
    }

    pub(super) fn on_receipt(&mut self, holder: Option<u32>, receipt: &Receipt) {
        if let (Some(holder), Some(member)) = (holder, index_of(&receipt.member))
            && self.rounds.last().is_some_and(|r| r.cutoff.is_none())
        {
            self.receipts.entry(member).or_default().insert(holder);
        }
    }

    pub(super) fn on_cutoff(&mut self, now: Micros) {
        if let Some(r) = self.rounds.last_mut() {
            r.cutoff = Some(now);
        }
    }

    pub(super) fn on_manifest(&mut self, now: Micros) {
        if let Some(r) = self.rounds.last_mut() {
            r.manifest.get_or_insert(now);
            r.views += 1;
        }
    }

    pub(super) fn on_reduced(&mut self, now: Micros) {
        if let Some(r) = self.rounds.last_mut()
            && r.closed.is_none()
        {
            r.reduced = Some(now);
        }
    }

    pub(super) fn on_close(
        &mut self,
        now: Micros,
        close: &Close,
        manifest: &Manifest,
        redundancy: u32,
        alive: impl Fn(u32) -> bool,
    ) {
        if let Some(r) = self.rounds.last_mut() {
            r.closed = Some(now);
        }
        let round = close.round.0;
        if self.closed_states.insert(round, close.state).is_some() {
            self.broken.state.push(format!("round {round} closed twice"));
        }
        let summed: BTreeSet<u32> = manifest
            .entries
            .iter()
            .filter_map(|e| index_of(&e.member))
            .collect();
        let needed = (redundancy as usize).min(self.committed.len().saturating_sub(1));
        for member in &self.committed {
            let none = BTreeSet::new();
            let holders = self.receipts.get(member).unwrap_or(&none);
            let held = alive(*member) || holders.iter().any(|h| alive(*h));
            if holders.len() >= needed && held && !summed.contains(member) {
                let why = manifest
                    .left_out
                    .iter()
                    .find(|l| index_of(&l.member) == Some(*member));
                let why = why.map_or("not named", |l| l.reason.explain());
                self.broken.lost.push(format!(
                    "round {round}: the commit of {member} is not in the sum: {why}"
                ));
            }
        }
    }

    /// A member takes a state for good.
    pub(super) fn on_promote(&mut self, member: u32, closed: u64, state: Hash32) {
        let of_close = closed
            .checked_sub(1)
            .and_then(|round| self.closed_states.get(&round));
        if of_close != Some(&state) {
            self.broken.state.push(format!(
                "member {member} holds another state after {closed} rounds"
            ));
        }
    }

    pub(super) fn sum_differs(&mut self, round: u64) {
        self.broken
            .sum
            .push(format!("round {round}: the mean is not the exact one"));
    }

    /// Looks at the rounds' durations once the run is over.
    pub(super) fn check_deadlines(&mut self, now: Micros, schedule: &ScheduleSpec, quorum_lives: bool) {
        let d = &schedule.deadlines;
        for (i, r) in self.rounds.iter().enumerate() {
            let next = self.rounds.get(i + 1).map(|next| next.started);
            let end = r.closed.or(next);
            let views: u64 = (0..r.views.max(1)).map(|v| d.attest_ms << v.min(6)).sum();
            let allowed = (d.train_ms + 2 * d.commit_ms + views) * 1000 + SLACK;
            let took = end.unwrap_or(now) - r.started;
            if took > allowed && (end.is_some() || quorum_lives) {
                self.broken.stuck.push(format!(
                    "round {} attempt {} took {} s of {} s",
                    r.round,
                    r.attempt,
                    took / 1_000_000,
                    allowed / 1_000_000
                ));
            }
        }
    }
}
