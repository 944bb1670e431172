//! Peers that keep what they were asked for: their share goes to the others.

use std::collections::BTreeSet;
use std::time::Instant;

use cid::Cid;
use libp2p::PeerId;

use super::assign::{Letters, mix, send};
use super::{Action, Client, Peer, Stage};
use crate::content::bitswap::message::Entry;

impl Client {
    /// Takes everything back from peers that answer nothing, or far less than others would, and what has waited too long from those that answer
    /// something else.
    pub(super) fn release_late(&mut self, now: Instant, out: &mut Vec<Action>) {
        let config = self.config;
        let is_stalled = |peer: &Peer| peer.stalls_at(&config).is_some_and(|at| at <= now);
        let stalled: Vec<PeerId> = self
            .peers
            .iter()
            .filter(|(_, peer)| is_stalled(peer))
            .map(|(id, _)| *id)
            .collect();
        let outpaced = self.outpaced(now).into_iter();
        let lost: BTreeSet<PeerId> = outpaced.chain(stalled).collect();
        for id in lost {
            let cids = self.release(&id);
            self.peer(now, id).rest(now, &config);
            out.push(Action::Stalled(id));
            self.take_back(now, id, &cids, out);
        }
        let overdue: Vec<(PeerId, Vec<Cid>)> = self
            .peers
            .iter()
            .map(|(id, peer)| (*id, peer.overdue(now, &config)))
            .filter(|(_, cids)| !cids.is_empty())
            .collect();
        for (id, cids) in overdue {
            cids.iter().for_each(|cid| self.on_refusal(now, id, cid));
            self.take_back(now, id, &cids, out);
        }
    }

    /// Takes back everything that was asked of a peer, to be asked of others first thing. Returns what it was: the other
    /// side may hold entries for it still.
    pub(super) fn release(&mut self, id: &PeerId) -> Vec<Cid> {
        let Some(peer) = self.peers.get_mut(id) else {
            return Vec::new();
        };
        let (asked, probed) = peer.release();
        for cid in asked.iter().rev() {
            if let Some(want) = self.wants.get_mut(cid)
                && want.stage == Stage::Asked(*id)
            {
                want.stage = Stage::Waiting;
                self.waiting.push_front(*cid);
            }
        }
        for cid in &probed {
            if let Some(want) = self.wants.get_mut(cid) {
                want.probed.remove(id);
            }
        }
        asked.into_iter().chain(probed).collect()
    }

    /// Tells a peer that it is too late, and asks around: those who are named as providers may all be of its kind.
    fn take_back(&mut self, now: Instant, peer: PeerId, cids: &[Cid], out: &mut Vec<Action>) {
        for cid in cids {
            if let Some(want) = self.wants.get_mut(cid) {
                want.told.remove(&peer);
            }
        }
        let entries = cids.iter().copied().map(Entry::cancel).collect();
        out.push(Action::Tell { peer, entries });
        let Some(first) = cids.first() else { return };
        let mut letters = Letters::new();
        self.probe(now, first, &mut letters);
        self.search(now, first, out);
        send(letters, out);
    }

    /// The other side holds no entries of ours any more.
    pub(super) fn forget_told(&mut self, id: &PeerId) {
        for want in self.wants.values_mut() {
            want.told.remove(id);
            want.probed.remove(id);
        }
    }

    /// When nothing waits, providers that have nothing to do are asked for what others have kept for long, the oldest
    /// first, as far as a letter goes. Whoever brings it first, the others are told that it is over.
    pub(super) fn hedge(&mut self, now: Instant, letters: &mut Letters) {
        let mut idle = BTreeSet::new();
        for id in self.sessions.values().flat_map(|session| &session.providers) {
            if self.peers.get(id).is_some_and(|peer| peer.is_idle(now)) {
                idle.insert(*id);
            }
        }
        if idle.is_empty() {
            return;
        }
        let mut late: Vec<(Instant, Cid)> = Vec::new();
        for (id, peer) in &self.peers {
            let kept = peer.asked_before(now, self.config.stall);
            late.extend(kept.filter(|(_, cid)| {
                let stage = self.wants.get(cid).map(|want| want.stage);
                stage == Some(Stage::Asked(*id))
            }));
        }
        late.sort_unstable();
        for (_, cid) in late {
            let Some(helper) = self.helper(now, &cid, &idle) else {
                continue;
            };
            self.ask(now, &cid, helper, letters);
        }
    }

    /// One of `idle` that may have a block and has room for it.
    fn helper(&self, now: Instant, cid: &Cid, idle: &BTreeSet<PeerId>) -> Option<PeerId> {
        let want = self.wants.get(cid)?;
        let sessions = want.sessions.iter().filter_map(|id| self.sessions.get(id));
        let providers = sessions.flat_map(|session| &session.providers);
        providers
            .filter(|id| idle.contains(*id) && !want.told.contains(*id) && !self.has_refused(now, want, id))
            .filter_map(|id| Some((self.peers.get(id)?.rank(now)?, mix(id, self.salt), *id)))
            .min()
            .map(|(_, _, id)| id)
    }
}
