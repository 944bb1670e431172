//! From the cutoff to the manifest: reveals, and the form of what they reveal.

use super::commit::Commits;
use super::reach::attesting;
use super::view::Reducing;
use super::{Action, Orchestrator, Phase};
use crate::ids::{CidBytes, Hash32, PeerBytes};
use crate::member::{DeltaFacts, commitment};
use crate::message::{Entry, LeftOut, Offence, Reason, Reveal};
use crate::time::{Deadline, Time};
use std::collections::{BTreeMap, BTreeSet};

/// What has been revealed, and what was found in it.
#[derive(Clone, Debug)]
pub(super) struct Collect {
    since: Time,
    last_reveal: Time,
    false_reveals: BTreeMap<PeerBytes, u32>,
    checked: BTreeMap<PeerBytes, Result<u64, Reason>>,
    /// Have nothing of this round: they said that they are ready for a next one.
    pub(super) idle: BTreeSet<PeerBytes>,
    /// Too few are there for a quorum of the commits that count.
    short: Option<Short>,
}

/// Since when too few are there, and when that is looked at again.
#[derive(Clone, Copy, Debug)]
struct Short {
    since: Time,
    look_at: Time,
}

/// What a first manifest would be.
pub(super) struct Draft {
    pub(super) entries: Vec<Entry>,
    pub(super) left_out: Vec<LeftOut>,
    /// Commits that count, but for those that were seen and are wrong.
    pub(super) counted: usize,
}

impl Collect {
    pub(super) fn new(now: Time) -> Self {
        Self {
            since: now,
            last_reveal: now,
            false_reveals: BTreeMap::new(),
            checked: BTreeMap::new(),
            idle: BTreeSet::new(),
            short: None,
        }
    }
}

impl Orchestrator {
    pub(super) fn on_reveal(&mut self, now: Time, sender: &PeerBytes, b: &Reveal, out: &mut Vec<Action>) {
        let genesis = self.config.genesis;
        let Phase::Collecting(c, collect) = &mut self.phase else {
            return;
        };
        if b.roster != c.facts.hash || !c.in_roster(sender) || c.revealed.contains_key(&b.member) {
            return;
        }
        let Some(known) = c.commitments.get(&b.member) else {
            return;
        };
        if *known != commitment(genesis, &b.member, b.salt, &b.cid) {
            *collect.false_reveals.entry(b.member.clone()).or_default() += 1;
            let detail = format!(
                "round {}: {}",
                c.facts.roster.round,
                Reason::FalseReveal.explain()
            );
            out.push(Action::Penalise {
                peer: sender.clone(),
                offence: Offence::BadMessage,
                detail,
            });
            return;
        }
        c.revealed.insert(b.member.clone(), b.cid.clone());
        collect.last_reveal = now;
        // Whoever reveals has it. A member that leaves its reveal to a holder is not asked: it may be dead.
        let mut from = vec![sender.clone()];
        from.extend(c.holders(&b.member, &b.cid).filter(|h| *h != sender).cloned());
        out.push(Action::CheckDelta {
            roster: c.facts.hash,
            round: c.facts.roster.round,
            member: b.member.clone(),
            cid: b.cid.clone(),
            from,
        });
        let round = c.facts.roster.round;
        for holder in c.false_holders(&b.member, &b.cid) {
            out.push(Action::Penalise {
                peer: holder.clone(),
                offence: Offence::BadMessage,
                detail: format!(
                    "round {round}: its receipt names another delta than {} committed",
                    b.member
                ),
            });
            self.strike(&holder, out);
        }
    }

    pub(super) fn on_delta_checked(
        &mut self,
        _now: Time,
        roster: Hash32,
        member: &PeerBytes,
        cid: &CidBytes,
        outcome: Result<DeltaFacts, Reason>,
        out: &mut Vec<Action>,
    ) {
        let assigned = self.samples_assigned();
        let Phase::Collecting(c, collect) = &mut self.phase else {
            return;
        };
        if roster != c.facts.hash || c.revealed.get(member) != Some(cid) {
            return;
        }
        let verdict = match outcome {
            Ok(f) if f.member != *member || f.round != c.facts.roster.round => Err(Reason::Malformed),
            Ok(f) if f.parent != c.facts.roster.parent => Err(Reason::StaleParent),
            Ok(f) => {
                c.elements = f.delta.len();
                Ok(f.samples.min(assigned))
            }
            Err(reason) => Err(reason),
        };
        if let Err(reason) = verdict {
            let offence = if reason == Reason::NotFinite {
                Offence::DeltaNotFinite
            } else {
                Offence::DeltaMalformed
            };
            let detail = format!("round {}: {}", c.facts.roster.round, reason.explain());
            out.push(Action::Penalise {
                peer: member.clone(),
                offence,
                detail,
            });
        }
        collect.checked.insert(member.clone(), verdict);
    }

    /// interval · prompts per step · group size.
    fn samples_assigned(&self) -> u64 {
        let s = &self.config.spec;
        u64::from(s.schedule.aggregate_interval)
            * u64::from(s.gspo.prompts_per_step)
            * u64::from(s.gspo.group_size)
    }

    /// A delta that a holder revealed late has as long to be fetched as any other.
    pub(super) fn collect_deadline(&self, c: &Commits, collect: &Collect) -> Deadline {
        let deadlines = &self.config.spec.schedule.deadlines;
        if let Some(short) = collect.short {
            let end = short.since.plus(deadlines.attest_ms);
            return (
                short.look_at.min(end),
                "commits of whom too few are there for a quorum",
            );
        }
        let commit_ms = deadlines.commit_ms;
        let end = collect.since.plus(commit_ms);
        let fetching = c.revealed.len() > collect.checked.len();
        let at = if fetching {
            collect.last_reveal.min(end).plus(commit_ms)
        } else {
            end
        };
        (at, "reveals and the deltas they name")
    }

    /// The manifest of view 0, once every commit that counts has been checked, or the deadline has passed.
    pub(super) fn decide_when_due(&mut self, now: Time, out: &mut Vec<Action>) {
        let redundancy = self.config.spec.schedule.redundancy;
        let Phase::Collecting(c, collect) = &self.phase else {
            return;
        };
        // Whose receipts turn out to be false may still get true ones.
        let is_settled = |m: &PeerBytes| match collect.checked.get(m) {
            Some(Ok(_)) => c.counts(m, redundancy),
            Some(Err(_)) => true,
            None => false,
        };
        let all = c
            .members()
            .filter(|m| c.seems_to_count(m, redundancy))
            .all(is_settled);
        let due = now >= self.collect_deadline(c, collect).0;
        if !all && !due {
            return;
        }
        let draft = self.draft(c, collect);
        if draft.counted == 0 {
            self.void_round(now, "no commit counts", out);
        } else if !draft.is_quorum() {
            self.wait_for_commits(now, out);
        } else if all || collect.short.is_none_or(|short| now >= short.look_at) {
            self.decide_first(now, draft, out);
        }
    }

    fn draft(&self, c: &Commits, collect: &Collect) -> Draft {
        let mut draft = Draft {
            entries: Vec::new(),
            left_out: Vec::new(),
            counted: 0,
        };
        for member in c.members() {
            let counts = c.counts(member, self.config.spec.schedule.redundancy);
            let is_wrong = match collect.checked.get(member) {
                Some(Err(reason)) => *reason != Reason::Unavailable,
                Some(Ok(_)) | None => false,
            };
            draft.counted += usize::from(counts && !is_wrong);
            match self.entry(c, collect, member) {
                Ok(entry) => draft.entries.push(entry),
                Err(reason) => draft.left_out.push(LeftOut {
                    member: member.clone(),
                    reason,
                }),
            }
        }
        draft
    }

    /// A commit that counts is given up only with its quorum: the round waits for those who have it, and is then void.
    fn wait_for_commits(&mut self, now: Time, out: &mut Vec<Action>) {
        let deadlines = &self.config.spec.schedule.deadlines;
        let (attest_ms, floor_ms) = (deadlines.attest_ms, deadlines.ring_floor_ms);
        let Phase::Collecting(c, collect) = &mut self.phase else {
            return;
        };
        let since = collect.short.map_or(now, |short| short.since);
        if collect.short.is_none() {
            out.push(Action::Notice(format!(
                "round {}: too few are there for a quorum of the commits that count; waiting for them",
                c.facts.roster.round
            )));
        }
        if now >= since.plus(attest_ms) {
            self.void_round(
                now,
                "too few are there for a quorum of the commits that count",
                out,
            );
        } else if collect.short.is_none_or(|short| now >= short.look_at) {
            let look_at = now.plus(floor_ms.max(1));
            collect.short = Some(Short { since, look_at });
        }
    }

    fn decide_first(&mut self, now: Time, draft: Draft, out: &mut Vec<Action>) {
        let Phase::Collecting(c, _) = &self.phase else {
            return;
        };
        for l in &draft.left_out {
            out.push(Action::Notice(format!(
                "round {}: {} is left out: {}",
                c.facts.roster.round,
                l.member,
                l.reason.explain()
            )));
        }
        let Phase::Collecting(commits, _) = std::mem::replace(&mut self.phase, Phase::Paused) else {
            return;
        };
        let entries = self.links.order(draft.entries, self.config.flat_ring_max);
        let draft = Draft { entries, ..draft };
        let reducing = Reducing::new(now, &self.config, commits, draft, out);
        self.phase = Phase::Reducing(Box::new(reducing));
    }

    fn entry(&self, c: &Commits, collect: &Collect, member: &PeerBytes) -> Result<Entry, Reason> {
        if !c.commitments.contains_key(member) {
            return Err(Reason::NoCommitment);
        }
        if c.equivocated.contains(member) {
            return Err(Reason::Equivocation);
        }
        if let Some(Err(reason)) = collect.checked.get(member) {
            return Err(*reason);
        }
        if !c.counts(member, self.config.spec.schedule.redundancy) {
            return Err(c
                .refused
                .get(member)
                .map_or(Reason::NoReceipts, |(_, reason)| *reason));
        }
        let revealed = c.revealed.get(member);
        let Some(cid) = revealed else {
            let lied = collect.false_reveals.contains_key(member);
            return Err(if lied {
                Reason::FalseReveal
            } else {
                Reason::NoReveal
            });
        };
        let Some(Ok(weight)) = collect.checked.get(member) else {
            return Err(Reason::Unavailable);
        };
        let server = c
            .server(member, cid, &|p| self.lost.contains_key(p))
            .ok_or(Reason::Unavailable)?;
        Ok(Entry {
            member: member.clone(),
            cid: cid.clone(),
            weight: *weight,
            server,
        })
    }
}

impl Draft {
    /// Whether those who would attest are a quorum of the commits that count. Where all of these are in, the ring shows it.
    fn is_quorum(&self) -> bool {
        self.entries.len() >= self.counted || 3 * attesting(&self.entries) > 2 * self.counted
    }
}

impl Commits {
    /// Who contributes a member's delta: the member, or the first holder of its replica that is there.
    pub(super) fn server(
        &self,
        member: &PeerBytes,
        cid: &CidBytes,
        lost: &dyn Fn(&PeerBytes) -> bool,
    ) -> Option<PeerBytes> {
        let there = |p: &&PeerBytes| !self.gone.contains(*p) && !lost(p);
        std::iter::once(member)
            .chain(self.holders(member, cid))
            .find(there)
            .cloned()
    }
}
