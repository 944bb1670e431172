//! Which finished chunks a new view keeps (PROTOCOL section 6, "Failure"): those that somebody who serves in it holds, while
//! the contributors are the same.
//!
//! A member's word on what it holds is believed as long as nothing speaks against it: what it then sends is checked by
//! everyone against the owner's signature, and the sum is replayed before the close, so that a lie costs time alone. Whoever
//! is accused in a view that keeps chunks is not believed again in the round, and few views of a round keep any.

use super::view::Reducing;
use super::{Orchestrator, Phase};
use crate::ids::{Hash32, PeerBytes};
use crate::message::{Holding, Kept, MAX_KEPT};
use std::collections::{BTreeMap, BTreeSet};

/// Views of a round that keep chunks.
const MAX_KEEPING: u32 = 3;

/// What is known of who holds what.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    /// What members said in this view: means by chunk.
    said: BTreeMap<PeerBytes, BTreeMap<u32, Hash32>>,
    /// Accused in a view that kept chunks.
    doubted: BTreeSet<PeerBytes>,
    /// Views that kept chunks.
    views: u32,
}

impl Holdings {
    /// A new view: what was said is of the one before.
    pub(super) fn renew(&mut self) {
        self.said.clear();
    }

    /// A member has restarted: it holds nothing.
    pub(super) fn idle(&mut self, peer: &PeerBytes) {
        self.said.remove(peer);
        self.doubted.insert(peer.clone());
    }
}

impl Reducing {
    /// Nobody waits for a word that does not come, or does not matter: whether all who serve, and are there, have said what
    /// they hold.
    pub(super) fn has_heard_holders(&self, is_away: &dyn Fn(&PeerBytes) -> bool) -> bool {
        let said = |p: &PeerBytes| self.holdings.said.contains_key(p) || is_away(p);
        !self.can_keep() || self.decided.entries.iter().all(|e| said(&e.server))
    }

    fn can_keep(&self) -> bool {
        let ring = self.decided.grid.is_none() && (2..=MAX_KEPT).contains(&self.decided.entries.len());
        ring && self.holdings.views < MAX_KEEPING
    }

    /// Something false may be in what was finished.
    pub(super) fn forget_finished(&mut self) {
        self.holdings.renew();
        self.decided.kept.clear();
    }

    /// Names the chunks of the view that was decided last which the next one keeps.
    pub(super) fn keep_finished(&mut self) {
        self.manifest.kept = if self.can_keep() && self.manifest.sums_the_same(&self.decided) {
            let chunks = u32::try_from(self.decided.entries.len()).unwrap_or(0);
            (0..chunks).filter_map(|chunk| self.kept(chunk, chunks)).collect()
        } else {
            Vec::new()
        };
        if !self.manifest.kept.is_empty() {
            self.holdings.views += 1;
        }
    }

    fn kept(&self, chunk: u32, slots: u32) -> Option<Kept> {
        let holdings = &self.holdings;
        let earlier = self.decided.kept.iter().find(|kept| kept.chunk == chunk);
        let said: Vec<(&PeerBytes, Hash32)> = holdings
            .said
            .iter()
            .filter(|(peer, _)| !holdings.doubted.contains(*peer))
            .filter_map(|(peer, held)| Some((peer, *held.get(&chunk)?)))
            .collect();
        let mean = match (earlier, said.first()) {
            (Some(kept), _) => kept.mean,
            // Where words differ somebody lies: the chunk is summed again.
            (None, Some((_, mean))) if said.iter().all(|(_, other)| other == mean) => *mean,
            (None, _) => return None,
        };
        let mut holding: BTreeSet<&PeerBytes> =
            said.iter().filter(|(_, m)| *m == mean).map(|(p, _)| *p).collect();
        // Who was named as a holder before, and has said nothing since.
        let named = earlier.and_then(|kept| kept.holders(slots)).unwrap_or_default();
        holding.extend(
            named
                .into_iter()
                .filter_map(|slot| self.decided.entries.get(slot as usize))
                .map(|entry| &entry.server)
                .filter(|peer| !holdings.said.contains_key(*peer) && !holdings.doubted.contains(*peer)),
        );
        let servers = (0u32..).zip(&self.manifest.entries);
        let holders: BTreeSet<u32> = servers
            .filter(|(_, entry)| holding.contains(&entry.server))
            .map(|(slot, _)| slot)
            .collect();
        (!holders.is_empty()).then(|| Kept {
            chunk,
            origin: earlier.map_or(self.hash, |kept| kept.origin),
            mean,
            holders: Kept::bits(slots, &holders),
        })
    }

    /// Whoever is accused in a view that keeps chunks may be a holder that is none.
    pub(super) fn doubt_the_accused(&mut self) {
        if self.decided.kept.is_empty() {
            return;
        }
        let most = self.most_missing();
        let accused = self
            .complaints
            .iter()
            .filter(|c| !c.offence.is_silence() || Some(c.missing) == most)
            .map(|c| c.accused.clone());
        self.holdings.doubted.extend(accused);
    }
}

impl Orchestrator {
    pub(super) fn on_holding(&mut self, sender: &PeerBytes, b: &Holding) {
        let Phase::Reducing(r) = &mut self.phase else {
            return;
        };
        let chunks = r.decided.entries.len();
        let possible = b.held.iter().all(|held| (held.chunk as usize) < chunks);
        if b.manifest == r.hash && r.serves(sender) && possible {
            let held = b.held.iter().map(|held| (held.chunk, held.mean)).collect();
            r.holdings.said.insert(sender.clone(), held);
        }
    }
}
