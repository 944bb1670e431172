//! Giving waiting wants to peers.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use cid::Cid;
use libp2p::PeerId;

use super::peer::{Peer, Readiness};
use super::{Action, Client, LOOK, MAX_STORING, Stage, Want, dial};
use crate::content::bitswap::message::{Entry, EntryKind};

/// Peers that are asked at once whether they have a block.
const MAX_PROBES: usize = 32;

/// What is to be told whom.
pub(super) type Letters = BTreeMap<PeerId, Vec<Entry>>;

/// Which wants are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scan {
    /// All that wait.
    Everything,
    /// From the first on, as long as a provider has room.
    WhileRoom,
}

/// Who can take a want.
enum Choice {
    Ask(PeerId),
    /// Somebody soon.
    Wait,
    Nobody,
}

impl Client {
    /// Asks for what is waiting as far as windows allow; what is left stays in order.
    pub(super) fn assign(&mut self, now: Instant, scan: Scan, out: &mut Vec<Action>) {
        if self.storing >= MAX_STORING {
            return;
        }
        self.peers.values_mut().for_each(Peer::begin_letter);
        let mut letters = Letters::new();
        let mut left = VecDeque::new();
        let mut goes_on = scan == Scan::Everything || self.has_room(now);
        while goes_on && let Some(cid) = self.waiting.pop_front() {
            let Some(want) = self.wants.get(&cid).filter(|want| want.stage == Stage::Waiting) else {
                continue;
            };
            match self.choose(now, want) {
                Choice::Ask(peer) => {
                    self.ask(now, &cid, peer, &mut letters);
                    goes_on = scan == Scan::Everything || self.has_room(now);
                    continue;
                }
                Choice::Wait => self.widen(now, &cid, &mut letters),
                Choice::Nobody => self.look(now, &cid, &mut letters, out),
            }
            left.push_back(cid);
        }
        left.append(&mut self.waiting);
        self.waiting = left;
        if scan == Scan::Everything && self.waiting.is_empty() {
            self.hedge(now, &mut letters);
        }
        send(letters, out);
    }

    fn has_room(&self, now: Instant) -> bool {
        let mut providers = self.sessions.values().flat_map(|session| &session.providers);
        let is_ready = |peer: &Peer| matches!(peer.readiness(now), Readiness::Ready(_));
        providers.any(|id| self.peers.get(id).is_some_and(is_ready))
    }

    /// The provider with the most room that has not said no lately, those that failed last after the others.
    fn choose(&self, now: Instant, want: &Want) -> Choice {
        let mut best = None;
        let mut choice = Choice::Nobody;
        for id in want
            .sessions
            .iter()
            .filter_map(|id| self.sessions.get(id))
            .flat_map(|fetch| &fetch.providers)
        {
            let refused = self.has_refused(now, want, id);
            let Some(peer) = self.peers.get(id).filter(|_| !refused) else {
                continue;
            };
            match peer.readiness(now) {
                Readiness::Ready(rank) => {
                    let rank = (rank, mix(id, self.salt));
                    if best.is_none_or(|(least, _)| rank < least) {
                        best = Some((rank, *id));
                    }
                }
                Readiness::Busy => choice = Choice::Wait,
                Readiness::No => {}
            }
        }
        best.map_or(choice, |(_, id)| Choice::Ask(id))
    }

    /// Whether a peer has said lately that it does not have a block.
    pub(super) fn has_refused(&self, now: Instant, want: &Want, id: &PeerId) -> bool {
        let at = want.refused.get(id);
        at.is_some_and(|at| now < *at + self.config.refusal)
    }

    pub(super) fn ask(&mut self, now: Instant, cid: &Cid, id: PeerId, letters: &mut Letters) {
        let (Some(want), Some(peer)) = (self.wants.get_mut(cid), self.peers.get_mut(&id)) else {
            return;
        };
        want.stage = Stage::Asked(id);
        want.told.insert(id);
        want.refused.remove(&id);
        peer.ask(now, *cid, want.size);
        letters
            .entry(id)
            .or_default()
            .push(Entry::want(*cid, EntryKind::Block));
    }

    /// No provider can be asked: dials those that are away, asks connected peers whether they have the block, and has
    /// others looked for.
    fn look(&mut self, now: Instant, cid: &Cid, letters: &mut Letters, out: &mut Vec<Action>) {
        let Some(want) = self.wants.get_mut(cid) else {
            return;
        };
        if want.look_at.is_some_and(|at| now < at) {
            return;
        }
        want.look_at = Some(now + LOOK);
        for session in want.sessions.iter().filter_map(|id| self.sessions.get(id)) {
            for id in &session.providers {
                if let Some(peer) = self.peers.get_mut(id) {
                    dial(now, *id, peer, out);
                }
            }
        }
        self.probe(now, cid, letters);
        self.search(now, cid, out);
    }

    /// Those who have it are busy: others are asked whether they have it too, one block of a fetch at a time. Who answered
    /// first of several need not be the only one to give.
    fn widen(&mut self, now: Instant, cid: &Cid, letters: &mut Letters) {
        let Some(want) = self.wants.get(cid) else {
            return;
        };
        let mut due = false;
        for id in want.sessions.clone() {
            let session = self.sessions.get(&id);
            let is_due = session.is_some_and(|session| {
                session.widened.is_none_or(|at| now >= at + LOOK) && self.has_place(now, session, cid)
            });
            if is_due && let Some(session) = self.sessions.get_mut(&id) {
                session.widened = Some(now);
                due = true;
            }
        }
        if due {
            self.probe(now, cid, letters);
        }
    }

    /// Asks connected peers that are no providers whether they have a block.
    pub(super) fn probe(&mut self, now: Instant, cid: &Cid, letters: &mut Letters) {
        let Some(want) = self.wants.get_mut(cid) else {
            return;
        };
        let mut known = want.probed.clone();
        let sessions = want.sessions.iter().filter_map(|id| self.sessions.get(id));
        known.extend(sessions.flat_map(|session| &session.providers));
        let strangers = self
            .peers
            .iter_mut()
            .filter(|(id, peer)| !known.contains(id) && peer.takes_probe(now));
        for (id, peer) in strangers.take(MAX_PROBES) {
            peer.probe(*cid);
            want.told.insert(*id);
            want.probed.insert(*id);
            letters
                .entry(*id)
                .or_default()
                .push(Entry::want(*cid, EntryKind::Have));
        }
    }

    /// Has providers looked for, once an interval for each fetch; those who were asked before are asked again then.
    pub(super) fn search(&mut self, now: Instant, cid: &Cid, out: &mut Vec<Action>) {
        let Some(want) = self.wants.get_mut(cid) else {
            return;
        };
        let mut due = false;
        for id in &want.sessions {
            let Some(session) = self.sessions.get_mut(id) else {
                continue;
            };
            if session.searched.is_none_or(|at| now >= at + self.config.search) {
                session.searched = Some(now);
                due = true;
            }
        }
        if due {
            want.probed.clear();
            out.push(Action::Find(*cid));
        }
    }
}

pub(super) fn send(letters: Letters, out: &mut Vec<Action>) {
    out.extend(
        letters
            .into_iter()
            .map(|(peer, entries)| Action::Tell { peer, entries }),
    );
}

/// An order of peers that differs from node to node (FNV-1a).
pub(super) fn mix(id: &PeerId, salt: u64) -> u64 {
    id.to_bytes()
        .iter()
        .fold(salt ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
}
