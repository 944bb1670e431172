//! From the roster to the cutoff: commitments and receipts.

use super::{Action, Orchestrator, Phase, RoundFacts, without};
use crate::ids::{CidBytes, Hash32, PeerBytes};
use crate::message::{Body, Commitment, Complaint, Cutoff, Offence, Reason, Receipt};
use crate::time::{Deadline, Time};
use std::collections::{BTreeMap, BTreeSet};

/// A straggler is waited for at least this long after half have committed.
const STRAGGLER_FLOOR_MS: u64 = 10_000;

/// What a holder signed that it has: a directory, for a commitment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Receipted {
    commitment: Hash32,
    cid: CidBytes,
}

/// What is known of a round's commits.
#[derive(Clone, Debug)]
pub(super) struct Commits {
    pub(super) facts: RoundFacts,
    pub(super) commitments: BTreeMap<PeerBytes, Hash32>,
    /// One of each holder, by member: the first stands.
    receipts: BTreeMap<PeerBytes, BTreeMap<PeerBytes, Receipted>>,
    /// Directories that opened their commitments.
    pub(super) revealed: BTreeMap<PeerBytes, CidBytes>,
    /// Holders that refused a member's delta, and the reason they gave.
    pub(super) refused: BTreeMap<PeerBytes, (BTreeSet<PeerBytes>, Reason)>,
    pub(super) equivocated: BTreeSet<PeerBytes>,
    pub(super) gone: BTreeSet<PeerBytes>,
    last_commit: Option<Time>,
    /// Elements of the deltas that were checked.
    pub(super) elements: usize,
}

impl Commits {
    pub(super) fn new(facts: RoundFacts) -> Self {
        Self {
            facts,
            commitments: BTreeMap::new(),
            receipts: BTreeMap::new(),
            revealed: BTreeMap::new(),
            refused: BTreeMap::new(),
            equivocated: BTreeSet::new(),
            gone: BTreeSet::new(),
            last_commit: None,
            elements: 0,
        }
    }

    pub(super) fn gone(&mut self, peer: &PeerBytes) {
        self.gone.insert(peer.clone());
    }

    /// A member that says it is ready is not training: it restarted, or never saw the roster.
    pub(super) fn idle(&mut self, peer: &PeerBytes) {
        if self.in_roster(peer) && !self.commitments.contains_key(peer) {
            self.gone(peer);
        }
    }

    pub(super) fn members(&self) -> impl Iterator<Item = &PeerBytes> {
        self.facts.roster.members.iter().map(|m| &m.peer)
    }

    pub(super) fn in_roster(&self, peer: &PeerBytes) -> bool {
        self.members().any(|m| m == peer)
    }

    /// A member's receipts that are for its commitment.
    fn receipts(&self, member: &PeerBytes) -> impl Iterator<Item = (&PeerBytes, &CidBytes)> {
        let commitment = self.commitments.get(member);
        let receipts = self.receipts.get(member).into_iter().flatten();
        let fits = receipts.filter(move |(_, r)| commitment.is_none_or(|c| *c == r.commitment));
        fits.map(|(holder, r)| (holder, &r.cid))
    }

    /// Who holds a member's directory.
    pub(super) fn holders(&self, member: &PeerBytes, cid: &CidBytes) -> impl Iterator<Item = &PeerBytes> {
        let receipts = self.receipts(member);
        receipts
            .filter(move |(_, of)| *of == cid)
            .map(|(holder, _)| holder)
    }

    /// Holders that signed for another directory than the one which opens the commitment: they cannot have had it.
    pub(super) fn false_holders(&self, member: &PeerBytes, cid: &CidBytes) -> Vec<PeerBytes> {
        let receipts = self.receipts(member);
        receipts
            .filter(|(_, of)| *of != cid)
            .map(|(holder, _)| holder.clone())
            .collect()
    }

    /// Receipts for the directory that has the most.
    fn most_receipts(&self, member: &PeerBytes) -> usize {
        let mut by_cid: BTreeMap<&CidBytes, usize> = BTreeMap::new();
        self.receipts(member)
            .for_each(|(_, cid)| *by_cid.entry(cid).or_default() += 1);
        by_cid.into_values().max().unwrap_or(0)
    }

    /// Receipts a commit needs: `redundancy`, or as many as others have committed, if fewer.
    fn needed(&self, redundancy: u32) -> usize {
        (redundancy as usize).min(self.commitments.len().saturating_sub(1))
    }

    /// Committed, with its receipts: those for what it revealed, once it has.
    pub(super) fn counts(&self, member: &PeerBytes, redundancy: u32) -> bool {
        let receipts = match self.revealed.get(member) {
            Some(cid) => self.holders(member, cid).count(),
            None => self.most_receipts(member),
        };
        self.is_committed(member) && receipts >= self.needed(redundancy)
    }

    /// Committed, and with its receipts if they are true.
    pub(super) fn seems_to_count(&self, member: &PeerBytes, redundancy: u32) -> bool {
        self.is_committed(member) && self.most_receipts(member) >= self.needed(redundancy)
    }

    fn is_committed(&self, member: &PeerBytes) -> bool {
        self.commitments.contains_key(member) && !self.equivocated.contains(member)
    }

    /// Two holders, or all there could be, refused its delta.
    fn is_refused(&self, member: &PeerBytes) -> bool {
        let enough = self.commitments.len().saturating_sub(1).clamp(1, 2);
        self.refused.get(member).is_some_and(|(by, _)| by.len() >= enough)
    }

    /// Everyone who has committed, and is there, has its receipts or was refused.
    fn receipts_are_in(&self, redundancy: u32) -> bool {
        let committed = without(self.commitments.keys(), &self.gone);
        committed
            .iter()
            .all(|m| self.counts(m, redundancy) || self.is_refused(m) || self.equivocated.contains(*m))
    }

    /// Nothing more is to come: every member still there has its receipts, or was refused.
    fn complete(&self, redundancy: u32) -> bool {
        let waiting = without(self.members(), &self.gone);
        !self.commitments.is_empty()
            && waiting
                .iter()
                .all(|m| self.counts(m, redundancy) || self.is_refused(m) || self.equivocated.contains(*m))
    }
}

impl Orchestrator {
    pub(super) fn on_commitment(&mut self, now: Time, member: &PeerBytes, b: &Commitment) {
        let (Phase::Training(c) | Phase::Collecting(c, _)) = &mut self.phase else {
            return;
        };
        if b.roster != c.facts.hash || !c.in_roster(member) {
            return;
        }
        match c.commitments.get(member) {
            None => {
                c.commitments.insert(member.clone(), b.commitment);
                c.last_commit = Some(now);
                self.commit_times.add(now.since(c.facts.started));
            }
            Some(known) if *known != b.commitment => {
                c.equivocated.insert(member.clone());
            }
            Some(_) => {}
        }
    }

    pub(super) fn on_receipt(&mut self, _now: Time, holder: &PeerBytes, b: &Receipt) {
        let (Phase::Training(c) | Phase::Collecting(c, _)) = &mut self.phase else {
            return;
        };
        let known = b.roster == c.facts.hash && c.in_roster(holder) && c.in_roster(&b.member);
        // A receipt may overtake the commitment that it is for: the reveal tells whether they fit.
        let fits = c.commitments.get(&b.member).is_none_or(|k| *k == b.commitment);
        if known && fits && *holder != b.member {
            let of = c.receipts.entry(b.member.clone()).or_default();
            of.entry(holder.clone()).or_insert_with(|| Receipted {
                commitment: b.commitment,
                cid: b.cid.clone(),
            });
        }
    }

    /// A complaint about a delta, before there is a manifest.
    pub(super) fn on_delta_refused(&mut self, accuser: &PeerBytes, b: &Complaint, offence: Offence) {
        let accused = &b.accused;
        let (Phase::Training(c) | Phase::Collecting(c, _)) = &mut self.phase else {
            return;
        };
        // One of an earlier round, or of an earlier try at this one, may be said again by anybody.
        if b.context != c.facts.hash || !c.in_roster(accuser) || !c.in_roster(accused) || accuser == accused {
            return;
        }
        let reason = match offence {
            Offence::DeltaNotFinite => Reason::NotFinite,
            Offence::DeltaMalformed => Reason::Malformed,
            Offence::Equivocation => Reason::Equivocation,
            Offence::Timeout
            | Offence::Unreachable
            | Offence::BadSeal
            | Offence::Truncated
            | Offence::WrongRound
            | Offence::Unexpected
            | Offence::BadValue
            | Offence::StateDiffers
            | Offence::BadMessage
            | Offence::BadHop
            | Offence::FalseSum => return,
        };
        c.refused
            .entry(accused.clone())
            .or_insert_with(|| (BTreeSet::new(), reason))
            .0
            .insert(accuser.clone());
    }

    pub(super) fn cutoff_deadline(&self, c: &Commits) -> Deadline {
        let d = &self.config.spec.schedule.deadlines;
        let members = c.facts.roster.members.len() - c.gone.len().min(c.facts.roster.members.len());
        let last = c.facts.started.plus(d.train_ms);
        if let Some(at) = c.last_commit
            && c.commitments.len() >= members
        {
            return (at.plus(d.commit_ms).min(last), "the last receipts");
        }
        if 2 * c.commitments.len() > c.facts.roster.members.len() {
            let wait = self.commit_times.deadline(STRAGGLER_FLOOR_MS, d.train_ms);
            // At least half as long again as the slowest so far, so that a small sample does not cut off honest stragglers.
            let slowest = c.last_commit.map_or(0, |at| at.since(c.facts.started));
            let wait = wait.max(slowest + slowest / 2).max(slowest + STRAGGLER_FLOOR_MS);
            let at = c.facts.started.plus(wait);
            // Whoever has committed has its time for the receipts, whoever else is missing.
            let receipts = c.last_commit.map_or(at, |last| last.plus(d.commit_ms));
            let redundancy = self.config.spec.schedule.redundancy;
            return if c.receipts_are_in(redundancy) || receipts <= at {
                (at.min(last), "the stragglers' commitments")
            } else {
                (receipts.min(last), "the receipts of those who committed")
            };
        }
        (last, "commitments")
    }

    pub(super) fn cut_off_when_due(&mut self, now: Time, out: &mut Vec<Action>) {
        let Phase::Training(c) = &self.phase else { return };
        let due = now >= self.cutoff_deadline(c).0;
        let nobody = without(c.members(), &c.gone).is_empty();
        if !due && !nobody && !c.complete(self.config.spec.schedule.redundancy) {
            return;
        }
        let (committed, missing): (Vec<PeerBytes>, Vec<PeerBytes>) =
            c.members().cloned().partition(|m| c.commitments.contains_key(m));
        self.candidates.note(&committed, &missing);
        if c.commitments.is_empty() {
            self.void_round(now, "nobody committed", out);
            return;
        }
        out.push(Action::Publish(Body::Cutoff(Cutoff {
            job: self.config.job.clone(),
            round: c.facts.roster.round,
            roster: c.facts.hash,
        })));
        let Phase::Training(c) = std::mem::replace(&mut self.phase, Phase::Paused) else {
            return;
        };
        self.phase = Phase::Collecting(c, super::collect::Collect::new(now));
    }
}
