//! The providers of a fetch: a bounded number of places, which those that bring nothing give up.

use std::collections::BTreeSet;
use std::time::Instant;

use cid::Cid;
use libp2p::PeerId;

use super::peer::Standing;
use super::{Action, Client, Session, dial};
use crate::content::bitswap::SessionId;

/// What a newcomer is known for, and so whose place it may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    /// Somebody named it: those that cannot be reached, stalled or do not speak bitswap make room.
    Named,
    /// It is connected and says that it has what is wanted: so do those that said no, or are not connected yet.
    Has,
}

impl Client {
    pub(super) fn on_found(&mut self, now: Instant, cid: &Cid, peers: &[PeerId], out: &mut Vec<Action>) {
        let Some(want) = self.wants.get(cid) else { return };
        for session in want.sessions.clone() {
            self.add_providers(now, session, peers, out);
        }
    }

    pub(super) fn add_providers(
        &mut self,
        now: Instant,
        session: SessionId,
        peers: &[PeerId],
        out: &mut Vec<Action>,
    ) {
        for id in peers {
            if self.peer(now, *id).is_banned(now) || !self.give_place(now, session, *id, Claim::Named, None) {
                continue;
            }
            if let Some(peer) = self.peers.get_mut(id) {
                dial(now, *id, peer, out);
            }
        }
        self.forget_strangers(now);
    }

    /// A connected peer has a block: it is a provider of every fetch that wants it.
    pub(super) fn add_holder(&mut self, now: Instant, id: PeerId, cid: &Cid) {
        let sessions = self.wants.get(cid).map(|want| want.sessions.clone());
        for session in sessions.into_iter().flatten() {
            self.give_place(now, session, id, Claim::Has, Some(cid));
        }
    }

    /// Whether one more that has what is wanted would find a place.
    pub(super) fn has_place(&self, now: Instant, session: &Session, cid: &Cid) -> bool {
        session.providers.len() < self.config.providers
            || self.worst(now, session, Claim::Has, Some(cid)).is_some()
    }

    /// The providers of those who want a block.
    pub(in crate::content::bitswap) fn providers_of(&self, cid: &Cid) -> BTreeSet<PeerId> {
        let sessions = self.wants.get(cid).into_iter().flat_map(|want| &want.sessions);
        sessions
            .filter_map(|id| self.sessions.get(id))
            .flat_map(|session| &session.providers)
            .copied()
            .collect()
    }

    /// Whether a fetch has the peer among its providers afterwards.
    fn give_place(
        &mut self,
        now: Instant,
        id: SessionId,
        peer: PeerId,
        claim: Claim,
        cid: Option<&Cid>,
    ) -> bool {
        let Some(session) = self.sessions.get(&id) else {
            return false;
        };
        let is_full = session.providers.len() >= self.config.providers && !session.providers.contains(&peer);
        let worst = if is_full {
            self.worst(now, session, claim, cid)
        } else {
            None
        };
        if is_full && worst.is_none() {
            return false;
        }
        if let Some(session) = self.sessions.get_mut(&id) {
            worst.iter().for_each(|worst| _ = session.providers.remove(worst));
            session.providers.insert(peer);
        }
        true
    }

    /// The provider that would be missed least, if it may be replaced at all.
    fn worst(&self, now: Instant, session: &Session, claim: Claim, cid: Option<&Cid>) -> Option<PeerId> {
        let refused = cid.and_then(|cid| self.wants.get(cid)).map(|want| &want.refused);
        let standing = |id: &PeerId| {
            let known = self
                .peers
                .get(id)
                .map_or(Standing::Lost, |peer| peer.standing(now));
            let has_refused = refused.is_some_and(|refused| refused.contains_key(id));
            if has_refused {
                known.min(Standing::Refused)
            } else {
                known
            }
        };
        let worst = session.providers.iter().map(|id| (standing(id), *id)).min()?;
        let may_go = match claim {
            Claim::Named => worst.0 == Standing::Lost,
            Claim::Has => worst.0 < Standing::Connected,
        };
        may_go.then_some(worst.1)
    }
}
