//! From the cutoff to the manifest: reveals, and the form of what they reveal.

use super::commit::Commits;
use super::view::Reducing;
use super::{Action, Orchestrator, Phase};
use crate::ids::{CidBytes, Hash32, PeerBytes};
use crate::member::{DeltaFacts, commitment};
use crate::message::{Entry, LeftOut, Offence, Reason, Reveal};
use crate::time::{Deadline, Time};
use std::collections::BTreeMap;

/// What has been revealed, and what was found in it.
#[derive(Clone, Debug)]
pub(super) struct Collect {
    since: Time,
    last_reveal: Time,
    revealed: BTreeMap<PeerBytes, CidBytes>,
    false_reveals: BTreeMap<PeerBytes, u32>,
    checked: BTreeMap<PeerBytes, Result<u64, Reason>>,
}

impl Collect {
    pub(super) fn new(now: Time) -> Self {
        Self {
            since: now,
            last_reveal: now,
            revealed: BTreeMap::new(),
            false_reveals: BTreeMap::new(),
            checked: BTreeMap::new(),
        }
    }
}

impl Orchestrator {
    pub(super) fn on_reveal(&mut self, now: Time, sender: &PeerBytes, b: &Reveal, out: &mut Vec<Action>) {
        let genesis = self.config.genesis;
        let Phase::Collecting(c, collect) = &mut self.phase else {
            return;
        };
        if b.roster != c.facts.hash || !c.in_roster(sender) || collect.revealed.contains_key(&b.member) {
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
        collect.revealed.insert(b.member.clone(), b.cid.clone());
        collect.last_reveal = now;
        // Whoever reveals has it. A member that leaves its reveal to a holder is not asked: it may be dead.
        let mut from = vec![sender.clone()];
        let holders = c.holders(&b.member).into_iter().flat_map(|(_, h)| h);
        from.extend(holders.filter(|h| *h != sender).cloned());
        out.push(Action::CheckDelta {
            roster: c.facts.hash,
            round: c.facts.roster.round,
            member: b.member.clone(),
            cid: b.cid.clone(),
            from,
        });
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
        if roster != c.facts.hash || collect.revealed.get(member) != Some(cid) {
            return;
        }
        let verdict = match outcome {
            Ok(f) if f.member != *member || f.round != c.facts.roster.round => Err(Reason::Malformed),
            Ok(f) if f.parent != c.facts.roster.parent => Err(Reason::StaleParent),
            Ok(f) => Ok(f.samples.min(assigned)),
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
    pub(super) fn collect_deadline(&self, collect: &Collect) -> Deadline {
        let commit_ms = self.config.spec.schedule.deadlines.commit_ms;
        let end = collect.since.plus(commit_ms);
        let fetching = collect.revealed.len() > collect.checked.len();
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
        let all = c
            .members()
            .filter(|m| c.counts(m, redundancy))
            .all(|m| collect.checked.contains_key(m));
        let due = now >= self.collect_deadline(collect).0;
        if !all && !due {
            return;
        }
        let mut entries = Vec::new();
        let mut left_out = Vec::new();
        for member in c.members() {
            match self.entry(c, collect, member) {
                Ok(entry) => entries.push(entry),
                Err(reason) => left_out.push(LeftOut {
                    member: member.clone(),
                    reason,
                }),
            }
        }
        for l in &left_out {
            out.push(Action::Notice(format!(
                "round {}: {} is left out: {}",
                c.facts.roster.round,
                l.member,
                l.reason.explain()
            )));
        }
        if entries.is_empty() {
            self.void_round(now, "no commit counts", out);
            return;
        }
        let Phase::Collecting(commits, _) = std::mem::replace(&mut self.phase, Phase::Paused) else {
            return;
        };
        let entries = self.links.order(entries, self.config.flat_ring_max);
        let reducing = Reducing::new(now, &self.config, commits, entries, left_out, out);
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
        let revealed = collect.revealed.get(member);
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
            .chain(
                self.receipts
                    .get(member)
                    .and_then(|r| r.get(cid))
                    .into_iter()
                    .flatten(),
            )
            .find(there)
            .cloned()
    }
}
