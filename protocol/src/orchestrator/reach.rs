//! Whether members answer the orchestrator itself: the second witness of a silence. Where too few do for a quorum, the round
//! waits for them: nobody's committed work is given up for a partition that heals (PROTOCOL section 6, "Failure").

use super::view::Reducing;
use super::{Action, Orchestrator, Phase};
use crate::ids::{Hash32, PeerBytes};
use crate::message::Entry;
use crate::ring::Layout;
use crate::time::{Deadline, Time};
use std::collections::BTreeSet;

/// Stragglers that are asked; where more are missing, time decides.
const MAX_STRAGGLERS: usize = 64;

/// What an orchestrator knows of who answers, in one view.
#[derive(Debug, Default)]
pub(super) struct Reach {
    /// Asked in this view.
    asked: BTreeSet<PeerBytes>,
    /// Asked, not answered yet.
    open: BTreeSet<PeerBytes>,
    /// Did not answer.
    pub(super) silent: BTreeSet<PeerBytes>,
    /// Called silent by a member, without an attest when others have given theirs, or away from a round that waits.
    accused: BTreeSet<PeerBytes>,
    /// Said that they are ready for a next round: they have nothing of this one.
    idle: BTreeSet<PeerBytes>,
    /// Too few for a quorum.
    waiting: Option<Waiting>,
    /// Those that have not attested when others have.
    stragglers: Stragglers,
}

/// Whether stragglers were asked in this view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stragglers {
    #[default]
    NotAsked,
    Asked,
}

/// Since when too few were there, and when they are asked again.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    since: Time,
    look_at: Time,
}

impl Reach {
    /// A new view: everybody is given another chance.
    pub(super) fn renew(&mut self) {
        let idle = std::mem::take(&mut self.idle);
        *self = Self {
            idle,
            ..Self::default()
        };
    }

    /// Everyone asked has answered or not.
    fn has_asked(&self) -> bool {
        self.open.is_empty()
    }

    /// How long others are heard: who was asked last has as long to answer as the first.
    pub(super) fn hearing(&self, hearing_ms: u64) -> u64 {
        if self.open.is_empty() {
            hearing_ms
        } else {
            2 * hearing_ms
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    pub(super) fn deadline(&self) -> Option<Deadline> {
        self.waiting
            .map(|w| (w.look_at, "members of whom too few answer for a quorum"))
    }

    pub(super) fn stragglers(&self) -> Stragglers {
        self.stragglers
    }

    pub(super) fn idle(&mut self, peer: &PeerBytes) {
        self.idle.insert(peer.clone());
    }
}

/// Members who can attest: who does not serve cannot.
pub(super) fn attesting(entries: &[Entry]) -> usize {
    let servers: BTreeSet<&PeerBytes> = entries.iter().map(|e| &e.server).collect();
    entries.iter().filter(|e| servers.contains(&e.member)).count()
}

impl Reducing {
    /// Asks a member that another calls silent, and those before it: should it be gone, nobody else waits for them.
    pub(super) fn ask(&mut self, accused: &PeerBytes, out: &mut Vec<Action>) {
        self.reach.accused.insert(accused.clone());
        self.probe(accused, out);
        for before in self.before(accused) {
            self.probe(&before, out);
        }
    }

    /// Who serves the slots before a member's.
    fn before(&self, peer: &PeerBytes) -> BTreeSet<PeerBytes> {
        let entries = u32::try_from(self.decided.entries.len()).unwrap_or(0);
        let Some(layout) = Layout::new(entries, self.decided.grid) else {
            return BTreeSet::new();
        };
        let server = |slot| {
            let entry = layout.served_as(slot)?;
            self.decided.entries.get(entry as usize).map(|e| &e.server)
        };
        let slots = (0..layout.slots()).filter(|slot| server(*slot) == Some(peer));
        let before = slots.flat_map(|slot| layout.axes().iter().map(move |axis| layout.before(slot, *axis)));
        let before = before.filter_map(server).filter(|p| *p != peer);
        before.cloned().collect()
    }

    /// Members that do not answer: those who were called silent, and before such a one those of whom nobody else would say it.
    pub(super) fn found_silent(&self) -> BTreeSet<PeerBytes> {
        let silent = &self.reach.silent;
        let mut found: BTreeSet<PeerBytes> = silent.intersection(&self.reach.accused).cloned().collect();
        let mut next: Vec<PeerBytes> = found.iter().cloned().collect();
        while let Some(peer) = next.pop() {
            for before in self.before(&peer).into_iter().filter(|p| silent.contains(p)) {
                if found.insert(before.clone()) {
                    next.push(before);
                }
            }
        }
        found
    }

    /// Everyone asked has answered or not, and somebody has not.
    pub(super) fn has_found_silence(&self) -> bool {
        self.reach.has_asked() && !self.found_silent().is_empty()
    }

    /// Asks a member: once a view.
    fn probe(&mut self, peer: &PeerBytes, out: &mut Vec<Action>) {
        if self.reach.asked.insert(peer.clone()) {
            self.reach.open.insert(peer.clone());
            out.push(Action::Probe {
                peer: peer.clone(),
                manifest: self.hash,
                within_ms: self.hearing_ms,
            });
        }
    }

    /// Asks those whose attests a quorum waits for: who does not answer is waited for no longer.
    pub(super) fn ask_stragglers(&mut self, out: &mut Vec<Action>) {
        self.reach.stragglers = Stragglers::Asked;
        let missing = self.expected().filter(|p| !self.attests.contains_key(*p));
        let missing: Vec<PeerBytes> = missing.take(MAX_STRAGGLERS).cloned().collect();
        missing.iter().for_each(|peer| {
            self.reach.accused.insert(peer.clone());
            self.probe(peer, out);
        });
    }

    /// Whether these, served as they are, can give a quorum. It is a quorum of the commits that count: were it one of those
    /// that are left, a part of a network could close a round by itself.
    pub(super) fn can_close(&self, entries: &[Entry]) -> bool {
        3 * attesting(entries) > 2 * self.counted
    }

    /// Whether nothing is to be heard of a member in this view.
    pub(super) fn is_away(&self, peer: &PeerBytes) -> bool {
        let reach = &self.reach;
        self.commits.gone.contains(peer)
            || self.replaced.contains(peer)
            || reach.silent.contains(peer)
            || reach.idle.contains(peer)
    }

    fn is_back(&mut self, peer: &PeerBytes) {
        self.reach.silent.remove(peer);
        if self.reach.is_waiting() && !self.reach.idle.contains(peer) {
            self.commits.gone.remove(peer);
        }
    }
}

impl Orchestrator {
    pub(super) fn on_probed(&mut self, peer: &PeerBytes, manifest: Hash32, answered: Answered) {
        let Phase::Reducing(r) = &mut self.phase else {
            return;
        };
        if r.hash != manifest {
            return;
        }
        r.reach.open.remove(peer);
        match answered {
            Answered::InTime => r.is_back(peer),
            Answered::NotInTime => _ = r.reach.silent.insert(peer.clone()),
        }
    }

    pub(super) fn on_seen(&mut self, peer: &PeerBytes) {
        self.candidates.seen(peer);
        self.lost.remove(peer);
        match &mut self.phase {
            Phase::Reducing(r) => r.is_back(peer),
            Phase::Collecting(c, collect) if !collect.idle.contains(peer) => _ = c.gone.remove(peer),
            Phase::Collecting(..)
            | Phase::Preparing
            | Phase::Recruiting { .. }
            | Phase::Training(_)
            | Phase::Paused
            | Phase::Finished => {}
        }
    }

    /// No server that is left makes a quorum possible.
    pub(super) fn begin_waiting(&mut self, now: Time, out: &mut Vec<Action>) {
        let Phase::Reducing(r) = &mut self.phase else {
            return;
        };
        if let Some(waiting) = &mut r.reach.waiting {
            // Those who answer were not enough after all: a later look may find more.
            waiting.look_at = now.plus(r.floor_ms);
            return;
        }
        out.push(Action::Notice(format!(
            "round {} view {}: too few members answer for a quorum; waiting for them",
            r.manifest.round, r.manifest.view
        )));
        r.reach.waiting = Some(Waiting {
            since: now,
            look_at: now,
        });
        self.wait_for_quorum(now, out);
    }

    /// Starts over with everybody's work once enough of the first manifest's members are there.
    pub(super) fn wait_for_quorum(&mut self, now: Time, out: &mut Vec<Action>) {
        let lost = &self.lost;
        let Phase::Reducing(r) = &mut self.phase else {
            return;
        };
        let Some(waiting) = r.reach.waiting else { return };
        let away: Vec<PeerBytes> = r
            .first
            .iter()
            .map(|e| &e.member)
            .filter(|m| {
                lost.contains_key(*m)
                    || r.commits.gone.contains(*m)
                    || r.reach.silent.contains(*m)
                    || r.reach.idle.contains(*m)
                    || r.is_out(m)
            })
            .cloned()
            .collect();
        if 3 * (r.first.len() - away.len()) > 2 * r.counted {
            r.start_over();
            self.raise_view(now, out);
        } else if now >= waiting.since.plus(r.attest_ms << r.manifest.view.0.min(6)) {
            self.void_round(now, "too few members answer for a quorum", out);
        } else if now >= waiting.look_at {
            r.reach.waiting = Some(Waiting {
                look_at: now.plus(r.floor_ms),
                ..waiting
            });
            r.reach.asked.clear();
            away.iter().for_each(|peer| {
                r.reach.accused.insert(peer.clone());
                r.probe(peer, out);
            });
        }
    }
}

/// Whether a member answered an orchestrator's probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// It did.
    InTime,
    /// It did not.
    NotInTime,
}
