//! Chains as they are asked for: the orchestrator's audit, and what members make of a proof.

use super::{FETCH_US, Network};
use crate::ids::{Hash32, PeerBytes};
use crate::message::{Offence, Proof};
use crate::orchestrator::{self, Audited, Follows};
use crate::ring::{Finding, Hop, HopKeys, Panel, Place, Scope, Verdict, expect, judge, placed_from_bytes};
use crate::sim::keys::StandInKeys;
use crate::sim::{host, index_of, orchestrator_peer, peer, theory};
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
        let event = orchestrator::Event::Audited {
            manifest,
            outcome,
            follows: self.follows(manifest),
        };
        self.orchestrator_in(FETCH_US, event);
    }

    /// The state that the committed deltas lead to, where all of the sum is replayed.
    fn follows(&self, manifest: Hash32) -> Option<Follows> {
        let scope = self.manifests.get(&manifest)?;
        let is_whole = scope.manifest.entries.len() <= WHOLE;
        let mean = theory::mean(scope, &self.deltas, self.scenario.payload).filter(|_| is_whole)?;
        let held = host::apply(scope.manifest.parent, &mean);
        Some(Follows {
            state: held.state,
            checkpoint: held.checkpoint,
        })
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
        // Nobody here foresees the manifest.
        let panel = Panel::draw(&scope.manifest, manifest);
        for (of, chunks) in scope.by_origin(&chunks) {
            match self.verdict_on(&of, &chunks, &panel)? {
                Verdict::Sound => {}
                found @ Verdict::Found(_) => return Some(found),
                open @ Verdict::Unproven(_) => verdict = open,
            }
        }
        Some(verdict)
    }

    /// Asks a few first; where they do not settle it, everyone.
    fn verdict_on(&self, scope: &Scope, chunks: &BTreeSet<u32>, panel: &Panel) -> Option<Verdict> {
        let expected = expect(scope, &theory::parts(&scope.manifest, &self.deltas)?, chunks)?;
        let keys: &dyn HopKeys = &StandInKeys(orchestrator_peer());
        let judged = |asked: &[PeerBytes]| {
            let (shown, answered) = self.shown(scope.hash, asked);
            (judge(scope, &expected, &shown, &answered, keys), answered)
        };
        let (verdict, answered) = judged(panel.first());
        if panel.is_settled(&verdict, &answered) {
            return Some(verdict);
        }
        Some(judged(&[panel.first(), panel.rest()].concat()).0)
    }

    /// The hops that those of `asked` show who live, and who they are.
    fn shown(&self, manifest: Hash32, asked: &[PeerBytes]) -> (Vec<(Place, Hop)>, BTreeSet<PeerBytes>) {
        let hosts = asked.iter().filter_map(|peer| {
            let host = self.hosts.get(index_of(peer)? as usize)?;
            host.alive.then_some((peer, host))
        });
        let hops = hosts.clone().filter_map(|(_, host)| host.hops.get(&manifest));
        let shown = hops.flatten().copied().collect();
        (shown, hosts.map(|(peer, _)| peer.clone()).collect())
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
        match judge(scope, &expected, &shown, &answered, &StandInKeys(peer(i))) {
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
