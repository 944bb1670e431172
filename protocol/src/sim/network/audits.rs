//! Chains as they are asked for: the orchestrator's audit, and what members make of a proof.

use super::{FETCH_US, Network};
use crate::ids::{Hash32, PeerBytes};
use crate::message::{Offence, Proof};
use crate::orchestrator::{self, Audited};
use crate::ring::{Finding, Place, Scope, Verdict, expect, judge, placed_from_bytes};
use crate::ring::{Hop, HopKeys};
use crate::sim::keys::StandInKeys;
use crate::sim::{index_of, theory};
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

    /// Each chunk by the ring that finished it.
    fn verdict(&mut self, manifest: Hash32) -> Option<Verdict> {
        let scope = self.manifests.get(&manifest)?.clone();
        let chunks: BTreeSet<u32> = if scope.manifest.entries.len() <= WHOLE {
            (0..scope.chunks()).collect()
        } else {
            BTreeSet::from([self.rng.random_range(0..scope.chunks())])
        };
        let mut verdict = Verdict::Sound;
        for (of, chunks) in scope.by_origin(&chunks) {
            match self.verdict_on(&of, &chunks)? {
                Verdict::Sound => {}
                found @ Verdict::Found(_) => return Some(found),
                open @ Verdict::Unproven(_) => verdict = open,
            }
        }
        Some(verdict)
    }

    fn verdict_on(&self, scope: &Scope, chunks: &BTreeSet<u32>) -> Option<Verdict> {
        let there = (0u32..).zip(&self.hosts).filter(|(_, host)| host.alive);
        let hops = there.clone().filter_map(|(_, host)| host.hops.get(&scope.hash));
        let shown: Vec<(Place, Hop)> = hops.flatten().copied().collect();
        let answered: BTreeSet<PeerBytes> = there.map(|(i, _)| super::peer(i)).collect();
        let expected = expect(scope, &theory::parts(&scope.manifest, &self.deltas)?, chunks)?;
        let keys: &dyn HopKeys = &StandInKeys(u32::MAX);
        Some(judge(scope, &expected, &shown, &answered, keys))
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
        let shown = placed_from_bytes(&proof.hops)?;
        let chunks: BTreeSet<u32> = shown.iter().map(|(p, _)| scope.row_chunk(*p)).collect();
        let expected = expect(scope, &theory::parts(&scope.manifest, &self.deltas)?, &chunks)?;
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
