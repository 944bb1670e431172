//! The next view: who serves in whose place, and whose work is given up (PROTOCOL section 6, "Failure").

use super::view::Reducing;
use super::{Action, Orchestrator, Phase};
use crate::ids::PeerBytes;
use crate::message::{Entry, LeftOut, Reason};
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// A round is void after this many views.
const MAX_VIEWS: u32 = 8;

/// What a next view would be; nothing of it holds until it is decided.
struct Next {
    entries: Vec<Entry>,
    left_out: Vec<LeftOut>,
    replaced: BTreeSet<PeerBytes>,
}

impl Reducing {
    /// Everybody's work again, by everybody who did not misbehave, or was accused for the first time: also by those for whom a holder stood in the first manifest.
    pub(super) fn start_over(&mut self) {
        self.manifest.entries = self.first.clone();
        for e in &mut self.manifest.entries {
            e.server = e.member.clone();
        }
        self.manifest.left_out = self.first_left_out.clone();
        self.accusers.clear();
        let accused = std::mem::take(&mut self.misbehaved);
        self.misbehaved = accused.intersection(&self.unforgiven).cloned().collect();
        self.unforgiven.extend(accused);
        self.replaced = self.misbehaved.clone();
        self.complaints.clear();
    }

    /// The view's entries without those who are replaced: a holder contributes in their slot, or nobody.
    fn next_view(&self, lost: &dyn Fn(&PeerBytes) -> bool) -> Next {
        let replaced = self.replacements(lost);
        let unavailable = |p: &PeerBytes| lost(p) || replaced.contains(p);
        let mut next = Next {
            entries: Vec::new(),
            left_out: self.manifest.left_out.clone(),
            replaced: BTreeSet::new(),
        };
        for e in &self.manifest.entries {
            let server = if unavailable(&e.server) {
                self.commits.server(&e.member, &e.cid, &unavailable)
            } else {
                Some(e.server.clone())
            };
            match server {
                Some(server) => next.entries.push(Entry { server, ..e.clone() }),
                None => next.left_out.push(LeftOut {
                    member: e.member.clone(),
                    reason: Reason::Unavailable,
                }),
            }
        }
        Next { replaced, ..next }
    }

    /// Decides a next view.
    fn decide(&mut self, now: Time, next: Next, out: &mut Vec<Action>) {
        let round = self.manifest.round;
        let servers: BTreeMap<&PeerBytes, &PeerBytes> = self
            .manifest
            .entries
            .iter()
            .map(|e| (&e.member, &e.server))
            .collect();
        for e in &next.entries {
            if servers.get(&e.member).is_some_and(|server| **server != e.server) {
                let text = format!("round {round}: {} contributes for {}", e.server, e.member);
                out.push(Action::Notice(text));
            }
        }
        self.manifest.entries = next.entries;
        self.manifest.left_out = next.left_out;
        self.replaced = next.replaced;
        self.reorder();
        self.keep_finished();
        self.manifest.view = self.manifest.view.next();
        let kept = match self.manifest.kept.len() {
            0 => String::new(),
            n => format!(", {n} of {} chunks are finished", self.members()),
        };
        out.push(Action::Notice(format!(
            "round {round}: view {}{kept}",
            self.manifest.view
        )));
        self.publish(now, out);
    }
}

impl Orchestrator {
    pub(super) fn raise_view(&mut self, now: Time, out: &mut Vec<Action>) {
        let lost = self.lost.clone();
        let Phase::Reducing(r) = &mut self.phase else {
            return;
        };
        let silent = r.found_silent();
        let is_lost = |p: &PeerBytes| lost.contains_key(p) || silent.contains(p);
        r.doubt_the_accused();
        // Whatever becomes of the view: who misbehaved is struck.
        for peer in r.convict_the_accused(&is_lost) {
            self.strike(&peer, out);
        }
        let Phase::Reducing(r) = &mut self.phase else {
            return;
        };
        if r.manifest.view.0 + 1 >= MAX_VIEWS {
            self.void_round(now, "no quorum in any view", out);
            return;
        }
        let next = r.next_view(&is_lost);
        if next.entries.is_empty() {
            self.void_round(now, "nobody is left to contribute", out);
        } else if r.can_close(&next.entries) {
            r.decide(now, next, out);
        } else if r.is_hopeless() {
            self.void_round(now, "without those who misbehaved there is no quorum", out);
        } else {
            self.begin_waiting(now, out);
        }
    }
}
