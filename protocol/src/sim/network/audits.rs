//! Chains as they are asked for: the orchestrator's audit, and what members make of a proof.

use super::{FETCH_US, Network};
use crate::ids::{Hash32, PeerBytes};
use crate::message::{Manifest, Offence, Proof};
use crate::orchestrator::{self, Audited};
use crate::ring::{Finding, Part, Place, Verdict, expect, judge, placed_from_bytes};
use crate::ring::{Hop, HopKeys};
use crate::sim::index_of;
use crate::sim::keys::StandInKeys;
use rand::Rng;
use std::collections::BTreeSet;

/// All chunks are replayed up to so many members; one of them above.
const WHOLE: usize = 64;

impl Network {
    /// Asks the manifest's servers for their chains and replays.
    pub(super) fn audit(&mut self, manifest: Hash32) {
        let outcome = self
            .verdict(manifest)
            .map_or_else(|| Audited::Open("the manifest is not known".into()), audited);
        self.orchestrator_in(FETCH_US, orchestrator::Event::Audited { manifest, outcome });
    }

    fn verdict(&mut self, manifest: Hash32) -> Option<Verdict> {
        let scope = self.manifests.get(&manifest)?;
        let m = &scope.manifest;
        let servers = m.entries.iter().filter_map(|e| index_of(&e.server));
        let there: BTreeSet<u32> = servers.filter(|i| self.hosts[*i as usize].alive).collect();
        let chunks: BTreeSet<u32> = if m.entries.len() <= WHOLE {
            (0..scope.chunks()).collect()
        } else {
            BTreeSet::from([self.rng.random_range(0..scope.chunks())])
        };
        let hops = there
            .iter()
            .filter_map(|i| self.hosts[*i as usize].hops.get(&manifest));
        let shown: Vec<(Place, Hop)> = hops.flatten().copied().collect();
        let answered: BTreeSet<PeerBytes> = there.iter().map(|i| super::peer(*i)).collect();
        let expected = expect(scope, &self.parts(m)?, &chunks)?;
        let keys: &dyn HopKeys = &StandInKeys(u32::MAX);
        Some(judge(scope, &expected, &shown, &answered, keys))
    }

    fn parts(&self, m: &Manifest) -> Option<Vec<Part>> {
        let part = |e: &crate::message::Entry| {
            Some(Part {
                delta: self.deltas.get(&e.cid)?.3.clone(),
                weight: e.weight,
            })
        };
        m.entries.iter().map(part).collect()
    }

    /// A member replays what a proof is about, and names whom it finds.
    pub(super) fn judge(&mut self, i: u32, proof: &Proof) {
        let found = self.found(i, proof);
        if let Some(finding) = found.filter(|f| f.member == proof.accused)
            && let Some(liar) = index_of(&finding.member)
        {
            self.hosts[i as usize].count(Offence::FalseSum);
            self.named.entry(liar).or_default().insert(i);
        }
    }

    fn found(&self, i: u32, proof: &Proof) -> Option<Finding> {
        let scope = self.manifests.get(&proof.manifest)?;
        let m = &scope.manifest;
        let shown = placed_from_bytes(&proof.hops)?;
        let chunks: BTreeSet<u32> = shown.iter().map(|(p, _)| scope.row_chunk(*p)).collect();
        let expected = expect(scope, &self.parts(m)?, &chunks)?;
        let answered = BTreeSet::from([proof.accused.clone()]);
        match judge(scope, &expected, &shown, &answered, &StandInKeys(i)) {
            Verdict::Found(finding) => Some(*finding),
            Verdict::Sound | Verdict::Unproven(_) => None,
        }
    }
}

fn audited(verdict: Verdict) -> Audited {
    match verdict {
        Verdict::Sound => Audited::Sound,
        Verdict::Found(finding) => Audited::Found(finding),
        Verdict::Unproven(place) => Audited::Open(format!("not all hops are shown, {place:?} is missing")),
    }
}

impl Network {
    /// Bytes of a segment on the link: its hop is as long whatever the scale.
    pub(super) fn carried(&self, header: &crate::message::LinkHeader, bytes: usize) -> (u64, u64) {
        let hop = self.manifests.get(&header.manifest).is_some_and(|scope| {
            crate::message::Phase::from_number(header.phase).is_some_and(|phase| {
                let place = scope.signed_at(phase, header.step, header.chunk, header.slot);
                header.segment + 1 == scope.segments(place)
            })
        });
        let hop = if hop { crate::ring::HOP_BYTES.min(bytes) } else { 0 };
        let elements = (bytes - hop) as u64;
        (elements, elements + hop as u64 / self.scenario.scale.max(1))
    }
}
