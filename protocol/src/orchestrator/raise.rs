//! The next view: who serves in whose place, and whose work is given up (PROTOCOL section 6, "Failure").

use super::view::Reducing;
use super::{Action, Orchestrator, Phase};
use crate::ids::PeerBytes;
use crate::message::{Entry, LeftOut};
use crate::time::Time;

/// A round is void after this many views.
const MAX_VIEWS: u32 = 8;

impl Reducing {
    /// Everybody's work again, by everybody: also by those for whom a holder stood in the first manifest.
    pub(super) fn start_over(&mut self) {
        self.manifest.entries = self.first.clone();
        for e in &mut self.manifest.entries {
            e.server = e.member.clone();
        }
        self.manifest.left_out = self.first_left_out.clone();
        self.accusers.clear();
        self.replaced.clear();
        self.complaints.clear();
    }
}

impl Orchestrator {
    pub(super) fn raise_view(&mut self, now: Time, out: &mut Vec<Action>) {
        let lost = self.lost.clone();
        let Phase::Reducing(r) = &mut self.phase else {
            return;
        };
        if r.manifest.view.0 + 1 >= MAX_VIEWS {
            self.void_round(now, "no quorum in any view", out);
            return;
        }
        let silent = r.found_silent();
        let is_lost = |p: &PeerBytes| lost.contains_key(p) || silent.contains(p);
        r.doubt_the_accused();
        let replaced = r.decide_replacements(&is_lost);
        let fresh: Vec<PeerBytes> = replaced.difference(&r.replaced).cloned().collect();
        r.replaced.extend(replaced);
        let unavailable = |p: &PeerBytes| is_lost(p) || r.replaced.contains(p);
        let mut entries = Vec::new();
        for e in &r.manifest.entries {
            if !unavailable(&e.server) && !r.commits.gone.contains(&e.server) {
                entries.push(e.clone());
                continue;
            }
            match r.commits.server(&e.member, &e.cid, &unavailable) {
                Some(server) => {
                    out.push(Action::Notice(format!(
                        "round {}: {server} contributes for {}",
                        r.manifest.round, e.member
                    )));
                    entries.push(Entry { server, ..e.clone() });
                }
                None => {
                    let reason = crate::message::Reason::Unavailable;
                    r.manifest.left_out.push(LeftOut {
                        member: e.member.clone(),
                        reason,
                    });
                }
            }
        }
        if entries.is_empty() {
            self.void_round(now, "nobody is left to contribute", out);
            return;
        }
        if !r.can_close(&entries) {
            self.begin_waiting(now, out);
            return;
        }
        r.manifest.entries = entries;
        r.reorder();
        r.keep_finished();
        r.manifest.view = r.manifest.view.next();
        let kept = match r.manifest.kept.len() {
            0 => String::new(),
            n => format!(", {n} of {} chunks are finished", r.members()),
        };
        out.push(Action::Notice(format!(
            "round {}: view {}{kept}",
            r.manifest.round, r.manifest.view
        )));
        r.publish(now, out);
        let misbehaved: Vec<PeerBytes> = fresh
            .into_iter()
            .filter(|p| r.accusers.contains_key(p) && !is_lost(p))
            .collect();
        for peer in misbehaved {
            self.strike(&peer, out);
        }
    }
}
