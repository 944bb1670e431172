//! Who says that it is ready, and who of them is called (PROTOCOL section 5, "Roster").
//!
//! A name costs nothing: only who is connected is listened to, and who was called and did not commit comes after the others,
//! more rarely the more often in a row.

use super::rounds::STRIKES;
use super::{Action, Orchestrator, Phase};
use crate::ids::PeerBytes;
use crate::member::READY_EVERY_MS;
use crate::message::{Ready, RosterMember};
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Members kept that said they are ready, and members kept that did not commit.
const MAX_READY: usize = 4_096;
/// A member is passed over for fewer than two to this power of rosters.
const MAX_PASSED_LOG2: u32 = 6;

/// Who may be called.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    connected: BTreeSet<PeerBytes>,
    ready: BTreeMap<PeerBytes, Ready>,
    /// Of these, who was lost since it said so.
    left: BTreeSet<PeerBytes>,
    missed: BTreeMap<PeerBytes, Missed>,
    /// Rosters so far.
    rosters: u64,
    /// When the last one went out.
    called: Option<Time>,
}

/// Rosters that called a member which did not commit.
#[derive(Clone, Copy, Debug, Default)]
struct Missed {
    in_a_row: u32,
    /// The number of the roster that may call it again.
    until: u64,
}

impl Candidates {
    pub(super) fn seen(&mut self, peer: &PeerBytes) {
        self.connected.insert(peer.clone());
    }

    pub(super) fn lost(&mut self, peer: &PeerBytes) {
        self.connected.remove(peer);
        if self.ready.contains_key(peer) {
            self.left.insert(peer.clone());
        }
    }

    /// Takes it off those that are ready: whether it was among them.
    pub(super) fn forget(&mut self, peer: &PeerBytes) -> bool {
        self.left.remove(peer);
        self.ready.remove(peer).is_some()
    }

    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// A roster is out.
    pub(super) fn called(&mut self, now: Time) {
        self.rosters += 1;
        self.called = Some(now);
    }

    /// Whether a word that comes now may have crossed the last roster. Who really is idle says so again.
    fn may_have_crossed(&self, now: Time) -> bool {
        self.called.is_some_and(|at| now < at.plus(READY_EVERY_MS))
    }

    /// Who of a roster committed, and who did not: it is passed over for 0, 1, 3, 7, … rosters.
    pub(super) fn note(&mut self, committed: &[PeerBytes], missing: &[PeerBytes]) {
        committed.iter().for_each(|peer| _ = self.missed.remove(peer));
        for peer in missing {
            let missed = self.missed.entry(peer.clone()).or_default();
            let passed = (1u64 << missed.in_a_row.min(MAX_PASSED_LOG2)) - 1;
            missed.in_a_row = missed.in_a_row.saturating_add(1);
            missed.until = self.rosters + passed;
        }
        if self.missed.len() > MAX_READY {
            self.missed.retain(|peer, _| self.ready.contains_key(peer));
        }
    }

    fn in_a_row(&self, peer: &PeerBytes) -> u32 {
        self.missed.get(peer).map_or(0, |m| m.in_a_row)
    }

    fn is_passed_over(&self, peer: &PeerBytes) -> bool {
        self.missed.get(peer).is_some_and(|m| m.until > self.rosters)
    }

    /// Keeps a word that is new; the orchestrator's own node needs no connection.
    fn hear(&mut self, me: &PeerBytes, peer: &PeerBytes, ready: Ready) -> Said {
        let is_here = peer == me || self.connected.contains(peer);
        let earlier = self.ready.get(peer).map(|r| r.at);
        let has_room = earlier.is_some() || self.ready.len() < MAX_READY;
        // What was said before may be said again by anybody.
        if !is_here || !has_room || earlier.is_some_and(|at| at >= ready.at) {
            return Said::Nothing;
        }
        self.ready.insert(peer.clone(), ready);
        match earlier {
            None => Said::First,
            Some(_) if self.left.remove(peer) => Said::Back,
            Some(_) => Said::Again,
        }
    }
}

/// What a member's word that it is ready comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    First,
    Again,
    /// Again, having been away: it may have restarted.
    Back,
    Nothing,
}

impl Orchestrator {
    pub(super) fn on_ready(&mut self, now: Time, peer: &PeerBytes, ready: Ready, out: &mut Vec<Action>) {
        let said = self.candidates.hear(&self.config.me, peer, ready);
        if said == Said::Nothing {
            return;
        }
        let crossed = said != Said::Back && self.candidates.may_have_crossed(now);
        match &mut self.phase {
            Phase::Training(_) | Phase::Reducing(_) | Phase::Collecting(..) if crossed => {}
            Phase::Training(c) => c.idle(peer),
            Phase::Reducing(r) => {
                r.reach.idle(peer);
                r.holdings.idle(peer);
            }
            Phase::Collecting(_, collect) => _ = collect.idle.insert(peer.clone()),
            Phase::Preparing | Phase::Recruiting { .. } | Phase::Paused | Phase::Finished => {}
        }
        if said == Said::First {
            let ready = self.candidates.ready();
            out.push(Action::Notice(format!("{peer} is ready ({ready} in all)")));
        }
        if matches!(self.phase, Phase::Recruiting { .. } | Phase::Paused) {
            self.recruit(now, out);
        }
    }

    /// At most `max_workers`, in the order of their names. Who misbehaved in an earlier try at the round, or is passed over, is
    /// called only where the others are too few.
    pub(super) fn callable(&self) -> Vec<RosterMember> {
        let schedule = &self.config.spec.schedule;
        let (min, max) = (schedule.min_workers as usize, schedule.max_workers as usize);
        let struck_out = |p: &PeerBytes| self.strikes.get(p).copied().unwrap_or(0) >= STRIKES;
        let ready = self.candidates.ready.iter();
        let fit: Vec<(&PeerBytes, &Ready)> = ready
            .filter(|(p, _)| !struck_out(p) && !self.lost.contains_key(*p))
            .collect();
        let preferred = |p: &PeerBytes| !self.resting.contains(p) && !self.candidates.is_passed_over(p);
        let first: Vec<_> = fit.iter().filter(|(p, _)| preferred(p)).copied().collect();
        let mut chosen = if first.len() >= min { first } else { fit };
        chosen.sort_by_key(|(p, _)| self.candidates.in_a_row(p));
        chosen.truncate(max);
        chosen.sort_unstable_by_key(|(p, _)| *p);
        let member = |(peer, ready): (&PeerBytes, &Ready)| RosterMember {
            peer: peer.clone(),
            record: ready.record,
            ready_at: ready.at,
        };
        chosen.into_iter().map(member).collect()
    }
}
