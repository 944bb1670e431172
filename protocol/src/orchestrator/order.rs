//! The ring's order from what members say of their links (PROTOCOL section 6, "Order").

use crate::ids::PeerBytes;
use crate::message::{Entry, Link, Links};
use crate::quant::SEGMENT;
use crate::ring::{Costs, Layout, order};
use std::collections::BTreeMap;

/// Members whose links are kept.
const MAX_MEMBERS: usize = 4096;
/// What a whole segment has at f32: its time on the link is part of an edge's cost.
const SEGMENT_BYTES: u64 = SEGMENT as u64 * 4;

/// The latest measurements, by who made them.
#[derive(Debug, Default)]
pub(super) struct MeasuredLinks {
    by_member: BTreeMap<PeerBytes, BTreeMap<PeerBytes, Link>>,
}

impl MeasuredLinks {
    pub(super) fn hear(&mut self, sender: &PeerBytes, said: &Links) {
        if !self.by_member.contains_key(sender) && self.by_member.len() >= MAX_MEMBERS {
            return;
        }
        let links = said.links.iter().map(|l| (l.peer.clone(), l.clone()));
        self.by_member.insert(sender.clone(), links.collect());
    }

    /// Entries in ring order; as they came where nothing was measured.
    pub(super) fn order(&self, entries: Vec<Entry>, flat_ring_max: u32) -> Vec<Entry> {
        let known: Vec<Option<&BTreeMap<PeerBytes, Link>>> =
            entries.iter().map(|e| self.by_member.get(&e.server)).collect();
        let one_way = |i: usize, j: usize| {
            let link = known.get(i).copied().flatten()?.get(&entries.get(j)?.server)?;
            Some(cost(link))
        };
        // Both directions carry segments where a grid or another order uses them: the slower one counts.
        let both = |i, j| one_way(i, j).max(one_way(j, i));
        let pairs = || (0..entries.len()).flat_map(|i| (i + 1..entries.len()).map(move |j| (i, j)));
        let Some(slowest) = pairs().filter_map(|(i, j)| both(i, j)).max() else {
            return entries;
        };
        // Nobody measured it: as slow as the slowest, so that it is taken last.
        let costs = Costs::new(entries.len(), |i, j| both(i, j).unwrap_or(slowest));
        let layout = Layout::for_members(u32::try_from(entries.len()).unwrap_or(u32::MAX), flat_ring_max);
        let places = order(&costs, layout);
        places
            .into_iter()
            .filter_map(|i| entries.get(i).cloned())
            .collect()
    }
}

/// Microseconds until a whole segment has arrived.
fn cost(link: &Link) -> u32 {
    let carrying = (SEGMENT_BYTES * 1000)
        .checked_div(link.bytes_per_ms.into())
        .unwrap_or(0);
    u32::try_from(u64::from(link.delay_us).saturating_add(carrying)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::CidBytes;

    fn peer(n: u8) -> PeerBytes {
        PeerBytes::new(vec![n]).unwrap()
    }

    fn entries(n: u8) -> Vec<Entry> {
        (0..n)
            .map(|i| Entry {
                member: peer(i),
                cid: CidBytes::default(),
                weight: 1,
                server: peer(i),
            })
            .collect()
    }

    fn say(links: &mut MeasuredLinks, from: u8, to: &[(u8, u32, u32)]) {
        let list: Vec<Link> = to
            .iter()
            .map(|(n, delay_us, bytes_per_ms)| Link {
                peer: peer(*n),
                delay_us: *delay_us,
                bytes_per_ms: *bytes_per_ms,
            })
            .collect();
        let said = Links {
            job: CidBytes::default(),
            links: list.try_into().unwrap(),
        };
        links.hear(&peer(from), &said);
    }

    #[test]
    fn nothing_measured_leaves_the_order() {
        let links = MeasuredLinks::default();
        assert_eq!(links.order(entries(5), 64), entries(5));
    }

    #[test]
    fn slow_pairs_are_not_neighbours() {
        // 0-2 and 1-3 are far apart in delay, 0-1 is narrow: the ring 0 2 1 3 would be slow, so would 0 1 2 3.
        let mut links = MeasuredLinks::default();
        say(&mut links, 0, &[(1, 10_000, 0), (2, 90_000, 0), (3, 10_000, 0)]);
        say(&mut links, 1, &[(2, 10_000, 0), (3, 90_000, 0)]);
        say(&mut links, 3, &[(2, 10_000, 0)]);
        let names = |e: &[Entry]| e.iter().map(|e| e.server.as_bytes()[0]).collect::<Vec<_>>();
        let ring = names(&links.order(entries(4), 64));
        let far = |a: u8, b: u8| a.abs_diff(b) == 2;
        assert!((0..4).all(|i| !far(ring[i], ring[(i + 1) % 4])), "{ring:?}");
        // One direction of 0-1 carries a tenth of the rest: with it every ring has a slow edge, the narrow one is slower.
        say(&mut links, 1, &[(0, 10_000, 1), (2, 10_000, 0), (3, 10_000, 0)]);
        say(&mut links, 0, &[(1, 10_000, 0), (2, 10_000, 0), (3, 10_000, 0)]);
        let ring = names(&links.order(entries(4), 64));
        let narrow = |a: u8, b: u8| a.min(b) == 0 && a.max(b) == 1;
        assert!((0..4).all(|i| !narrow(ring[i], ring[(i + 1) % 4])), "{ring:?}");
    }
}
