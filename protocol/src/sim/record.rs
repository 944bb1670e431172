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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{CidBytes, Round, View};
    use crate::message::{Entry, LeftOut, Reason};
    use crate::sim::peer;

    fn record(members: u32) -> Record {
        let mut record = Record::default();
        record.on_roster(
            0,
            &Roster {
                job: CidBytes::default(),
                round: Round(0),
                attempt: 0,
                members: Vec::new(),
                parent: Hash32::ZERO,
                checkpoint: CidBytes::default(),
            },
        );
        for m in 0..members {
            record.on_commitment(Some(m));
            let receipt = Receipt {
                job: CidBytes::default(),
                round: Round(0),
                roster: Hash32::ZERO,
                member: peer(m),
                commitment: Hash32::ZERO,
                cid: CidBytes::default(),
            };
            record.on_receipt(Some((m + 1) % members), &receipt);
        }
        record.on_cutoff(5);
        record
    }

    fn close(record: &mut Record, summed: &[u32], state: Hash32, alive: impl Fn(u32) -> bool) {
        let entry = |m: &u32| Entry {
            member: peer(*m),
            cid: CidBytes::default(),
            weight: 1,
            server: peer(*m),
        };
        let manifest = Manifest {
            job: CidBytes::default(),
            round: Round(0),
            view: View(0),
            roster: Hash32::ZERO,
            parent: Hash32::ZERO,
            entries: summed.iter().map(entry).collect(),
            grid: None,
            kept: Vec::new(),
            left_out: vec![LeftOut {
                member: peer(1),
                reason: Reason::Unavailable,
            }],
        };
        let close = Close {
            job: CidBytes::default(),
            round: Round(0),
            view: View(0),
            manifest: Hash32::ZERO,
            state,
            checkpoint: CidBytes::default(),
            attests: Vec::new(),
            signers: None,
        };
        record.on_close(9, &close, &manifest, 1, alive);
    }

    #[test]
    fn a_commit_left_out_is_lost_while_a_holder_lives() {
        let mut r = record(3);
        close(&mut r, &[0, 1, 2], Hash32::ZERO, |_| true);
        assert!(r.broken.lost.is_empty());
        let mut r = record(3);
        close(&mut r, &[0, 2], Hash32::ZERO, |m| m != 1);
        assert_eq!(r.broken.lost.len(), 1, "2 holds it");
        let mut r = record(3);
        close(&mut r, &[0], Hash32::ZERO, |m| m == 0);
        assert_eq!(
            r.broken.lost.len(),
            1,
            "0 holds that of 2; nobody holds that of 1"
        );
    }

    #[test]
    fn a_second_close_or_another_state_is_noticed() {
        let mut r = record(2);
        close(&mut r, &[0, 1], Hash32([1; 32]), |_| true);
        r.on_promote(0, 1, Hash32([1; 32]));
        assert!(r.broken.state.is_empty());
        r.on_promote(1, 1, Hash32([2; 32]));
        close(&mut r, &[0, 1], Hash32([1; 32]), |_| true);
        assert_eq!(r.broken.state.len(), 2);
    }

    #[test]
    fn a_round_past_its_deadline_is_stuck_unless_no_quorum_lives() {
        let schedule = ScheduleSpec::default();
        let d = &schedule.deadlines;
        let allowed = (d.train_ms + 2 * d.commit_ms + d.attest_ms) * 1000 + SLACK;
        for (end, quorum, stuck) in [
            (allowed, true, 0),
            (allowed + 1, true, 1),
            (allowed + 1, false, 0),
        ] {
            let mut r = record(3);
            r.check_deadlines(end, &schedule, quorum);
            assert_eq!(r.broken.stuck.len(), stuck);
        }
    }
}
