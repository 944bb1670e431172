//! Whom an auditor asks for their hops, and when what they show is enough.
//!
//! Every member keeps the word on each mean that it took, so one honest answer shows a mean that travelled and is false.
//! Liars show what should have been: they must neither know who will be asked nor be enough.

use super::Verdict;
use crate::ids::{Hash32, PeerBytes};
use crate::message::Manifest;
use crate::ring::chain::digest;
use std::collections::BTreeSet;

/// Answers that are enough in any ring, as far as it has so many members: two that collude are not.
const LEAST: usize = 3;
/// Answers that are enough however large the ring: of a third of its members that collude, so many drawn at random are once
/// in ten thousand audits.
const MOST: usize = 12;
/// Asked beyond those that are enough: one that is gone is not waited for.
const SPARE: usize = 2;

/// The members of one manifest, in the order in which they are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panel {
    members: Vec<PeerBytes>,
    enough: usize,
}

impl Panel {
    /// The order that `secret` gives, which nobody else may know. More than a third of the members are enough, up to a dozen.
    #[must_use]
    pub fn draw(manifest: &Manifest, secret: Hash32) -> Self {
        let servers: BTreeSet<&PeerBytes> = manifest.entries.iter().map(|e| &e.server).collect();
        let mut members: Vec<PeerBytes> = servers.into_iter().cloned().collect();
        members.sort_by_cached_key(|m| digest([&secret.0[..], m.as_bytes()].into_iter()));
        let enough = (members.len() / 3 + 1).clamp(LEAST, MOST).min(members.len());
        Self { members, enough }
    }

    /// Who is asked first.
    #[must_use]
    pub fn first(&self) -> &[PeerBytes] {
        self.members.get(..self.enough + SPARE).unwrap_or(&self.members)
    }

    /// Who is asked where the first do not settle it.
    #[must_use]
    pub fn rest(&self) -> &[PeerBytes] {
        self.members.get(self.enough + SPARE..).unwrap_or(&[])
    }

    /// Whether nobody else need be asked: what is shown is right, and shown by enough.
    #[must_use]
    pub fn is_settled(&self, verdict: &Verdict, answered: &BTreeSet<PeerBytes>) -> bool {
        *verdict == Verdict::Sound && answered.len() >= self.enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{CidBytes, Round, View};
    use crate::message::Entry;
    use crate::ring::audit::tests::peer;

    fn manifest(members: u32) -> Manifest {
        let entry = |i: u32| Entry {
            member: peer(i),
            cid: CidBytes::default(),
            weight: 1,
            server: peer(i),
        };
        Manifest {
            job: CidBytes::default(),
            round: Round(0),
            view: View(0),
            roster: Hash32::ZERO,
            parent: Hash32::ZERO,
            entries: (0..members).map(entry).collect(),
            grid: None,
            kept: Vec::new(),
            left_out: Vec::new(),
        }
    }

    #[test]
    fn a_third_of_the_members_are_never_enough_up_to_a_dozen_answers() {
        for n in 1..200 {
            let panel = Panel::draw(&manifest(n), Hash32([1; 32]));
            let n = n as usize;
            assert!(panel.enough > n / 3 || panel.enough == MOST, "{n}");
            assert!(panel.enough > 2 || panel.enough == n, "{n}");
            let mut all = [panel.first(), panel.rest()].concat();
            all.sort();
            all.dedup();
            assert_eq!(all.len(), n, "everyone is asked once");
            let answered = |k: usize| panel.members.iter().take(k).cloned().collect();
            assert!(panel.is_settled(&Verdict::Sound, &answered(panel.enough)));
            assert!(!panel.is_settled(&Verdict::Sound, &answered(panel.enough - 1)));
        }
    }

    #[test]
    fn nobody_knows_who_is_asked() {
        let first = |seed| {
            let panel = Panel::draw(&manifest(60), Hash32([seed; 32]));
            panel.first().to_vec()
        };
        let asked: BTreeSet<PeerBytes> = (0..200).flat_map(first).collect();
        assert_eq!(asked.len(), 60, "everyone at some time");
        assert_ne!(first(1), first(2));
    }
}
