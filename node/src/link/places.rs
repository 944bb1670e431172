//! Places for the links of others: most are kept for members of running jobs, whose segments and replicas come over them.

use gym_protocol::ids::PeerBytes;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

/// Links accepted at once.
const MAX_LINKS: usize = 1024;
/// Of them, from peers that are no members: a roster may name them before it is here.
const MAX_OF_STRANGERS: usize = 256;
/// Links of one peer: its current one, and those it has given up but that we still hold.
const MAX_OF_PEER: usize = 4;

/// The members of running jobs; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Members(Arc<RwLock<BTreeSet<PeerBytes>>>);

impl Members {
    /// They are these now.
    pub fn set(&self, members: BTreeSet<PeerBytes>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = members;
    }

    pub(crate) fn contains(&self, peer: &PeerBytes) -> bool {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(peer)
    }
}

/// Whose place a link has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    peer: PeerBytes,
    of: Of,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Members,
    Strangers,
}

/// The places that are taken.
#[derive(Debug, Default)]
pub(super) struct Places {
    members: Members,
    of_peer: HashMap<PeerBytes, usize>,
    of_members: usize,
    of_strangers: usize,
}

impl Places {
    pub(super) fn new(members: Members) -> Self {
        Self {
            members,
            ..Self::default()
        }
    }

    /// A place for one more link of a peer, if there is one.
    pub(super) fn take(&mut self, peer: &PeerBytes) -> Option<Place> {
        let has = self.of_peer.get(peer).copied().unwrap_or(0);
        let of = if self.members.contains(peer) {
            Of::Members
        } else {
            Of::Strangers
        };
        let full = self.of_members + self.of_strangers >= MAX_LINKS;
        if has >= MAX_OF_PEER || full || (of == Of::Strangers && self.of_strangers >= MAX_OF_STRANGERS) {
            return None;
        }
        *self.of_peer.entry(peer.clone()).or_default() += 1;
        *self.count(of) += 1;
        Some(Place {
            peer: peer.clone(),
            of,
        })
    }

    pub(super) fn give_back(&mut self, place: &Place) {
        let count = self.count(place.of);
        *count = count.saturating_sub(1);
        if let Some(has) = self.of_peer.get_mut(&place.peer) {
            *has = has.saturating_sub(1);
            if *has == 0 {
                self.of_peer.remove(&place.peer);
            }
        }
    }

    fn count(&mut self, of: Of) -> &mut usize {
        match of {
            Of::Members => &mut self.of_members,
            Of::Strangers => &mut self.of_strangers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u32) -> PeerBytes {
        PeerBytes::new(n.to_le_bytes().to_vec()).unwrap()
    }

    #[test]
    fn strangers_leave_room_for_members() {
        let members = Members::default();
        let mut places = Places::new(members.clone());
        let mut taken: Vec<Place> = (0..3_000).filter_map(|n| places.take(&peer(n))).collect();
        assert_eq!(taken.len(), MAX_OF_STRANGERS);
        members.set((5_000..8_000).map(peer).collect());
        assert_eq!(places.take(&peer(4_000)), None);
        let before = taken.len();
        taken.extend((5_000..8_000).filter_map(|n| places.take(&peer(n))));
        assert_eq!(taken.len() - before, MAX_LINKS - MAX_OF_STRANGERS);
        assert_eq!(places.take(&peer(5_000)), None, "all are taken");
        // Who has become a stranger since gives back the place it took.
        members.set(BTreeSet::new());
        taken.iter().for_each(|place| places.give_back(place));
        assert_eq!(
            (places.of_members, places.of_strangers, places.of_peer.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn a_peer_has_few_places() {
        let mut places = Places::default();
        let taken: Vec<Place> = (0..9).filter_map(|_| places.take(&peer(1))).collect();
        assert_eq!(taken.len(), MAX_OF_PEER);
        assert!(places.take(&peer(2)).is_some());
        places.give_back(&taken[0]);
        assert!(places.take(&peer(1)).is_some());
    }
}
