//! What members ask for.

use super::{APPLY_US, BUILD_US, FETCH_US, Network};
use crate::ids::{Hash32, PeerBytes};
use crate::member;
use crate::message::{LinkHeader, Offence};
use crate::sim::host::{self, Fault};
use crate::sim::{Order, hash, peer, signed};
use rand::Rng;

impl Network {
    pub(super) fn member_action(&mut self, i: u32, action: member::Action) {
        use member::Action;
        match action {
            Action::Publish(body) => {
                let body = self.said(i, body);
                self.forge_reveals(i, &body);
                if let Some(m) = signed(&peer(i), body, Vec::new()) {
                    self.gossip(i, m);
                }
            }
            Action::Fetch(held) => {
                let answer = match self.states.get(&held.state) {
                    Some(state) => member::Event::Synced(state.clone()),
                    None => member::Event::FetchFailed("no such state".into()),
                };
                self.member_in(FETCH_US, i, answer);
            }
            Action::Train { round, roster, .. } => {
                let delta = self.hosts[i as usize].train(round.0);
                let base = self.scenario.train_ms * 1000;
                let takes = base + self.rng.random_range(0..base / 2 + 1);
                let samples = self.samples;
                let event = member::Event::Trained {
                    roster,
                    delta,
                    samples,
                };
                self.member_in(takes, i, event);
            }
            Action::BuildCommit {
                round,
                roster,
                parent,
                delta,
            } => {
                if self.scenario.order == Order::Measured {
                    let links = self.wires.measure(i);
                    self.member_in(0, i, member::Event::Measured(links));
                }
                let cid = self.hosts[i as usize].build_commit(round.0, parent, &delta, &mut self.deltas);
                let salt = hash(&[b"salt", &i.to_le_bytes(), &roster.0]);
                self.member_in(BUILD_US, i, member::Event::CommitBuilt { roster, cid, salt });
            }
            Action::SendReplica {
                to,
                roster,
                cid,
                salt,
                ..
            } => {
                let outcome = host::inspect(&self.deltas, &cid, self.samples);
                let bytes = outcome.as_ref().map_or(0, |f| f.delta.len() as u64 * 4);
                let event = member::Event::Replica {
                    from: peer(i),
                    roster,
                    salt,
                    cid,
                    outcome,
                };
                self.link(i, &to, bytes, event);
            }
            Action::SendSegment { to, header, payload } => self.send_segment(i, &to, header, payload),
            Action::Apply { manifest, mean, .. } => self.apply(i, manifest, &mean),
            Action::KeepHops { manifest, hops, .. } => {
                self.hosts[i as usize].hops.insert(manifest, hops);
            }
            Action::Judge(proof) => self.judge(i, &proof),
            Action::Promote(held) => self.record.on_promote(i, held.closed, held.state),
            Action::AbandonTraining | Action::Notice(_) | Action::Finished(_) => {}
            Action::Penalise { offence, .. } => self.hosts[i as usize].count(offence),
        }
    }

    fn send_segment(&mut self, i: u32, to: &PeerBytes, mut header: LinkHeader, mut payload: Vec<u8>) {
        let round = header.round;
        let (elements, _) = self.carried(&header, payload.len());
        self.accuse(i, &header);
        let host = &mut self.hosts[i as usize];
        host.ring_bytes += elements;
        host.round_bytes += elements;
        host.segments += 1;
        if host.has(Fault::MuteInReduce(round)) {
            return;
        }
        if host.has(Fault::WrongRound(round)) {
            header.round += 1;
        }
        if host.has(Fault::Truncate(round)) {
            payload.truncate(payload.len() / 2);
        }
        let (_, bytes) = self.carried(&header, payload.len());
        let host = &self.hosts[i as usize];
        let event = if host.has(Fault::BadSeal(round)) {
            member::Event::LinkOffence {
                from: peer(i),
                offence: Offence::BadSeal,
            }
        } else {
            member::Event::Segment {
                from: peer(i),
                header,
                payload,
            }
        };
        self.link(i, to, bytes, event);
    }

    fn apply(&mut self, i: u32, manifest: Hash32, mean: &[f32]) {
        let Some(m) = self.manifests.get(&manifest).map(|scope| &scope.manifest) else {
            return;
        };
        self.record.on_reduced(self.clock.now());
        let mut held = host::apply(m.parent, mean);
        held.closed = m.round.0 + 1;
        if self.hosts[i as usize].has(Fault::OtherState(m.round.0)) {
            held.state = hash(&[b"other", &held.state.0]);
        } else {
            self.states.insert(held.state, held.clone());
        }
        let event = member::Event::Applied {
            manifest,
            state: held.state,
            checkpoint: held.checkpoint,
        };
        self.member_in(APPLY_US, i, event);
    }
}
