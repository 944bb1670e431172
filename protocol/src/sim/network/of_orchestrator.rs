//! What the orchestrator asks for, and what is noted of it.

use super::{BUILD_US, FETCH_US, LATE_US, Network};
use crate::ids::{Hash32, PeerBytes};
use crate::message::{Body, Close, Manifest, Verified};
use crate::orchestrator::{self, Answered};
use crate::ring::Scope;
use crate::sim::clock::After;
use crate::sim::{ClosedRound, OrchestratorFault, host, index_of, orchestrator_peer, signed, theory};
use std::sync::Arc;

impl Network {
    pub(super) fn orchestrator_event(&mut self, event: orchestrator::Event, after: After) {
        let mut actions = Vec::new();
        self.orchestrator.handle(self.clock.time(), event, &mut actions);
        let number = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
        self.clock
            .set_deadline(number, self.orchestrator.deadline(), after);
        self.orchestrator_actions(actions);
    }

    pub(super) fn orchestrator_actions(&mut self, actions: Vec<orchestrator::Action>) {
        use orchestrator::Action;
        let number = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
        for action in actions {
            match action {
                Action::Publish(body) => {
                    let second = self.second_manifest(&body);
                    self.publish(body);
                    second.into_iter().for_each(|body| self.publish(body));
                }
                Action::Prepare => {
                    self.orchestrator_in(BUILD_US, orchestrator::Event::Prepared(host::zero()));
                }
                Action::CheckDelta {
                    roster, member, cid, ..
                } => {
                    let outcome = host::inspect(&self.deltas, &cid, self.samples);
                    let event = orchestrator::Event::DeltaChecked {
                        roster,
                        member,
                        cid,
                        outcome,
                    };
                    self.orchestrator_in(FETCH_US, event);
                }
                Action::Audit { manifest, .. } => self.audit(manifest),
                Action::Probe {
                    peer,
                    manifest,
                    within_ms,
                } => self.probe(peer, manifest, within_ms),
                Action::Close { body, attests } => self.close(body, attests),
                Action::Penalise { offence, .. } => *self.offences.entry(offence.label()).or_default() += 1,
                Action::Notice(text) => self.trace.note(self.clock.now(), number, text.as_bytes()),
                Action::Finished(_) => self.finished_at = Some(self.clock.now()),
            }
        }
    }

    fn publish(&mut self, body: Body) {
        let number = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
        if let Some(m) = signed(&orchestrator_peer(), body, Vec::new()) {
            self.on_published(&m);
            self.gossip(number, m);
        }
    }

    /// The same entries in another order, in the name of the same view.
    fn second_manifest(&self, body: &Body) -> Option<Body> {
        let Body::Manifest(m) = body else { return None };
        let fault = OrchestratorFault::TwoManifests(m.round.0);
        let lies = m.view.0 == 0 && self.scenario.orchestrator_faults.contains(&fault);
        lies.then(|| {
            let mut second = m.clone();
            second.entries.reverse();
            Body::Manifest(second)
        })
    }

    /// A view after the one that is closed, decided before; everything the orchestrator says then comes late.
    fn decide_another_view(&mut self, close: &Close) {
        let fault = OrchestratorFault::LateClose(close.round.0);
        let another = self.manifests.get(&close.manifest).map(|scope| Manifest {
            view: close.view.next(),
            ..(*scope.manifest).clone()
        });
        if let Some(another) = another.filter(|_| self.scenario.orchestrator_faults.contains(&fault)) {
            self.publish(Body::Manifest(another));
            self.late_us = LATE_US;
        }
    }

    /// The living answer after a round trip, the dead never.
    fn probe(&mut self, peer: PeerBytes, manifest: Hash32, within_ms: u64) {
        let others = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
        let alive = index_of(&peer).filter(|i| self.hosts.get(*i as usize).is_some_and(|h| h.alive));
        let (us, answered) = match alive {
            Some(i) => (2 * self.wires.delay(i, others), Answered::InTime),
            None => (within_ms * 1000, Answered::NotInTime),
        };
        let event = orchestrator::Event::Probed {
            peer,
            manifest,
            answered,
        };
        self.orchestrator_in(us, event);
    }

    /// What the observer notes of the orchestrator's messages.
    fn on_published(&mut self, m: &Verified) {
        let now = self.clock.now();
        match &m.body {
            Body::Roster(roster) => {
                self.deltas.retain(|_, d| d.1 >= roster.round.0);
                for host in &mut self.hosts {
                    host.round_bytes = 0;
                    host.segments = 0;
                    host.hops.clear();
                }
                self.record.on_roster(now, roster);
            }
            Body::Cutoff(_) => self.record.on_cutoff(now),
            Body::Manifest(manifest) => {
                self.record.on_manifest(now);
                let hash = crate::cbor::object_hash(&m.encoded);
                let (wire, scenario) = (self.spec.wire, &self.scenario);
                let manifest = Arc::new(manifest.clone());
                let origin = |hash: Hash32| self.manifests.get(&hash).cloned();
                let (elements, segment) = (scenario.elements, scenario.segment);
                if let Ok(scope) = Scope::keeping(manifest, hash, wire, elements, segment, &origin) {
                    self.manifests.insert(hash, Arc::new(scope));
                }
            }
            Body::Job(_)
            | Body::Attest(_)
            | Body::Close(_)
            | Body::Report(_)
            | Body::Ready(_)
            | Body::Commitment(_)
            | Body::Receipt(_)
            | Body::Reveal(_)
            | Body::Complaint(_)
            | Body::Status(_)
            | Body::Links(_)
            | Body::Proof(_)
            | Body::Holding(_) => {}
        }
    }

    fn close(&mut self, body: Close, attests: Vec<Verified>) {
        let now = self.clock.now();
        self.decide_another_view(&body);
        if let Some(scope) = self.manifests.get(&body.manifest) {
            let m = &scope.manifest;
            let redundancy = self.spec.schedule.redundancy;
            let alive = |i: u32| self.hosts.get(i as usize).is_some_and(|h| h.alive);
            self.record.on_close(now, &body, m, redundancy, alive);
            let mean = theory::mean(scope, &self.deltas, self.scenario.payload);
            let right = mean.map(|mean| host::apply(m.parent, &mean).state);
            if right != Some(body.state) {
                self.record.sum_differs(m.round.0);
            }
            if m.view.0 == 0 {
                let sent: Vec<u64> = self.hosts.iter().map(|h| h.round_bytes).collect();
                let ratio = theory::bytes_ratio(m, self.spec.wire, self.scenario.elements, &sent);
                let away = |r: f64| (r - 1.0).abs();
                self.bytes_ratio = match (self.bytes_ratio, ratio) {
                    (Some(a), Some(b)) => Some(if away(b) > away(a) { b } else { a }),
                    (a, b) => a.or(b),
                };
            }
            self.closes.push(ClosedRound {
                round: body.round.0,
                view: body.view.0,
                summed: m.entries.iter().filter_map(|e| index_of(&e.member)).collect(),
                signers: body.signatures(),
                grid: m.grid.map(|g| (g.rows, g.columns)),
                kept: m.kept.len(),
            });
        }
        if let Some(m) = signed(&orchestrator_peer(), Body::Close(body), attests) {
            let number = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
            self.gossip(number, m);
        }
    }
}
