//! Complaints: who is accused by whom, and who of them is replaced (PROTOCOL section 6, "Failure").

use super::view::Reducing;
use super::{Action, Orchestrator, Phase};
use crate::ids::PeerBytes;
use crate::job::spec::Wire;
use crate::message::{Complaint, Offence};
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Who has accused so many members over so many views (in a small ring: everyone else), each alone, is at fault itself.
const FALSE_ACCUSATIONS: usize = 3;

/// One complaint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Heard {
    pub(super) accuser: PeerBytes,
    pub(super) accused: PeerBytes,
    pub(super) offence: Offence,
    pub(super) missing: u32,
}

impl Reducing {
    /// Where the silence starts: a stall spreads around the ring, and the member that misses most is next to its source.
    fn accuse_the_silent(&mut self) {
        let silence = |c: &&Heard| c.offence.is_silence();
        let Some(most) = self.most_missing() else {
            return;
        };
        for c in self
            .complaints
            .iter()
            .filter(silence)
            .filter(|c| c.missing == most)
        {
            self.accusers
                .entry(c.accused.clone())
                .or_default()
                .insert(c.accuser.clone());
        }
    }

    /// Segments that the member which misses most says to miss, of those that complain of silence.
    pub(super) fn most_missing(&self) -> Option<u32> {
        let silence = self.complaints.iter().filter(|c| c.offence.is_silence());
        silence.map(|c| c.missing).max()
    }

    /// Whom two different members accused (one, in a ring of two).
    fn accused(&self) -> impl Iterator<Item = &PeerBytes> {
        let needed = if self.members() <= 2 { 1 } else { 2 };
        let accused = self.accusers.iter().filter(move |(_, by)| by.len() >= needed);
        accused.map(|(p, _)| p)
    }

    /// Takes it that whoever is accused, and is there, has misbehaved: who is new among them. They stay replaced for the round,
    /// also where it starts over.
    pub(super) fn convict_the_accused(&mut self, lost: &dyn Fn(&PeerBytes) -> bool) -> BTreeSet<PeerBytes> {
        self.accuse_the_silent();
        let there = |p: &&PeerBytes| !lost(p) && !self.commits.gone.contains(*p);
        let accused = self.accused().chain(self.false_accusers(lost)).filter(there);
        let fresh = accused.filter(|p| !self.misbehaved.contains(*p));
        let fresh: BTreeSet<PeerBytes> = fresh.cloned().collect();
        self.misbehaved.extend(fresh.iter().cloned());
        // A round strikes once.
        fresh
            .into_iter()
            .filter(|p| !self.unforgiven.contains(p))
            .collect()
    }

    /// Members that accuse one after another of whom nobody else does, and who are there: a liar that only complains would
    /// otherwise use a round's views up.
    fn false_accusers(&self, lost: &dyn Fn(&PeerBytes) -> bool) -> Vec<&PeerBytes> {
        let others = self.first.len().saturating_sub(1);
        if others < 2 || (self.manifest.view.0 as usize) + 1 < FALSE_ACCUSATIONS {
            return Vec::new();
        }
        let stands = |p: &PeerBytes| {
            !lost(p)
                && !self.commits.gone.contains(p)
                && !self.replaced.contains(p)
                && !self.misbehaved.contains(p)
        };
        let mut alone: BTreeMap<&PeerBytes, usize> = BTreeMap::new();
        for (_, by) in self
            .accusers
            .iter()
            .filter(|(accused, by)| by.len() == 1 && stands(accused))
        {
            by.iter()
                .for_each(|accuser| *alone.entry(accuser).or_default() += 1);
        }
        let enough = FALSE_ACCUSATIONS.min(others);
        let accusers = alone.into_iter().filter(|(_, accused)| *accused >= enough);
        accusers.map(|(accuser, _)| accuser).collect()
    }

    /// Segments that a slot receives at most in this view, somewhat more in a grid.
    fn most_segments(&self, wire: Wire, segment: usize) -> usize {
        let lines = if self.decided.grid.is_some() { 4 } else { 2 };
        let phases = match wire {
            Wire::F32 | Wire::Bf16 => lines,
            // The scales' too.
            Wire::Q8 | Wire::Q4 => 2 * lines,
        };
        let slots = self.layout().slots() as usize;
        phases * (self.commits.elements.div_ceil(segment.max(1)) + slots)
    }

    /// Who is not asked again in this round: it misbehaved, is accused, or is gone.
    pub(super) fn replacements(&self, lost: &dyn Fn(&PeerBytes) -> bool) -> BTreeSet<PeerBytes> {
        let servers = self.manifest.entries.iter().map(|e| &e.server);
        let gone = servers.filter(|s| lost(s) || self.commits.gone.contains(*s));
        let earlier = self.replaced.iter().chain(&self.misbehaved);
        self.accused().chain(gone).chain(earlier).cloned().collect()
    }

    /// It misbehaved, and has no second chance left.
    pub(super) fn is_out(&self, peer: &PeerBytes) -> bool {
        self.misbehaved.contains(peer) && self.unforgiven.contains(peer)
    }

    /// Without those who misbehaved there is no quorum, whoever comes back.
    pub(super) fn is_hopeless(&self) -> bool {
        let honest = self.first.iter().filter(|e| !self.is_out(&e.member));
        3 * honest.count() <= 2 * self.counted
    }
}

impl Orchestrator {
    pub(super) fn on_complaint(
        &mut self,
        now: Time,
        accuser: &PeerBytes,
        b: &Complaint,
        out: &mut Vec<Action>,
    ) {
        let Some(offence) = Offence::from_number(b.offence) else {
            return;
        };
        let Phase::Reducing(r) = &mut self.phase else {
            self.on_delta_refused(accuser, b, offence);
            return;
        };
        let known = b.context == r.hash && r.serves(accuser) && r.serves(&b.accused) && *accuser != b.accused;
        let complaint = Heard {
            accuser: accuser.clone(),
            accused: b.accused.clone(),
            offence,
            missing: b.missing,
        };
        let same = |c: &Heard| {
            c.accuser == complaint.accuser && c.accused == complaint.accused && c.offence == offence
        };
        if !known || r.complaints.iter().any(same) {
            return;
        }
        let most = r.most_segments(self.config.spec.wire, self.config.segment);
        if offence.is_silence() && b.missing as usize > most {
            let detail = format!(
                "round {}: it misses {} segments of at most {most}",
                b.round, b.missing
            );
            out.push(Action::Penalise {
                peer: accuser.clone(),
                offence: Offence::BadMessage,
                detail,
            });
            return;
        }
        out.push(Action::Notice(format!(
            "round {} view {}: {accuser} says that {} {}",
            b.round,
            b.view,
            b.accused,
            offence.explain()
        )));
        if !offence.is_silence() {
            r.accusers
                .entry(b.accused.clone())
                .or_default()
                .insert(accuser.clone());
            let detail = format!("round {}, by word of {accuser}", b.round);
            out.push(Action::Penalise {
                peer: b.accused.clone(),
                offence,
                detail,
            });
        }
        if offence.is_silence() {
            r.ask(&b.accused, out);
        }
        r.complaints.push(complaint);
        r.first_complaint.get_or_insert(now);
    }
}
