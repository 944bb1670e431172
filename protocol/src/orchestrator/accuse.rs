//! Complaints: who is accused by whom, and who of them is replaced (PROTOCOL section 6, "Failure").

use super::view::Reducing;
use super::{Action, Orchestrator, Phase};
use crate::ids::PeerBytes;
use crate::message::{Complaint, Offence};
use crate::time::Time;
use std::collections::BTreeSet;

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

    /// Who is not asked again in this round: two different members accused it (one, in a ring of two), or it is gone.
    pub(super) fn decide_replacements(&mut self, lost: &dyn Fn(&PeerBytes) -> bool) -> BTreeSet<PeerBytes> {
        self.accuse_the_silent();
        let needed = if self.members() <= 2 { 1 } else { 2 };
        let accused = self
            .accusers
            .iter()
            .filter(|(_, by)| by.len() >= needed)
            .map(|(p, _)| p);
        let servers = self.manifest.entries.iter().map(|e| &e.server);
        accused
            .chain(servers.filter(|s| lost(s) || self.commits.gone.contains(*s)))
            .cloned()
            .collect()
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
