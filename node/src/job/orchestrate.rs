//! Carries out what an orchestrator's machine asks for.

use super::commit;
use super::done::Done;
use super::faults::FaultKind;
use super::service::Service;
use super::sync::Question;
use crate::net::incoming_room;
use gym_protocol::ids::{CidBytes, Hash32, PeerBytes, Round};
use gym_protocol::message::{Body, Close, Manifest, Reason, Verified};
use gym_protocol::orchestrator::{Action, Answered, Config, Event, Orchestrator};
use gym_protocol::quant::SEGMENT;
use std::time::Duration;

/// This node's own job begins: its machine waits for checkpoint 0.
pub(crate) fn begin(service: &mut Service, id: &CidBytes) {
    let me = service.tools.me();
    let Some(job) = service.jobs.get_mut(id) else {
        return;
    };
    let config = Config {
        me,
        genesis: job.names.genesis,
        job: id.clone(),
        spec: (*job.body.spec).clone(),
        rows: job.body.rows,
        segment: SEGMENT,
        flat_ring_max: service.tools.flat_ring_max,
    };
    let workers = job.body.spec.schedule.max_workers;
    let too_few = too_few_connections(workers, service.tools.max_connections);
    let mut actions = Vec::new();
    job.orchestrator = Some(Orchestrator::new(config, &mut actions));
    for action in actions {
        service.orchestrator_action(id, action);
    }
    if let Some(why) = too_few {
        tracing::warn!(job = %id, "{why}");
        service.notice(id, &why);
    }
    // Who joined before the job was there.
    for peer in service.connected.clone() {
        service.tell_orchestrator(id, Event::PeerSeen(peer));
    }
}

/// Workers call their orchestrator, and only those who are connected are called to a round. Of its connections a quarter is for
/// those it makes itself.
fn too_few_connections(workers: u32, connections: u32) -> Option<String> {
    let room = incoming_room(connections);
    let needed = workers.saturating_add(workers / 3).saturating_add(8);
    (workers > room).then(|| {
        format!(
            "up to {workers} workers may join this job, and this node takes {room} connections of others at once: those beyond \
             are not called. Set network.max_connections = {needed} or more in config.toml (now {connections}), allow as many open \
             files (ulimit -n), and start the node again"
        )
    })
}

impl Service {
    pub(crate) fn orchestrator_action(&mut self, id: &CidBytes, action: Action) {
        match action {
            Action::Publish(body) => {
                let second = self.second_manifest(&body);
                self.publish(body, Vec::new());
                second.into_iter().for_each(|body| self.publish(body, Vec::new()));
            }
            // Checkpoint 0 follows from the job's files, which are on their way already.
            Action::Prepare => {}
            Action::CheckDelta {
                roster,
                round,
                member,
                cid,
                from,
            } => {
                self.check_delta(id, roster, round, member, cid, &from);
            }
            Action::Audit { manifest, .. } => self.audit(id, manifest),
            Action::Probe {
                peer,
                manifest,
                within_ms,
            } => self.probe(id, peer, manifest, within_ms),
            Action::Close { body, attests } => self.close(id, body, attests),
            Action::Penalise {
                peer,
                offence,
                detail,
            } => self.penalise(id, &peer, offence, &detail),
            Action::Notice(text) => self.notice(id, &text),
            Action::Finished(standing) => tracing::info!(job = %id, "the job is over: {standing:?}"),
        }
    }

    /// Any answer is a sign of life; what it says does not matter.
    fn probe(&self, id: &CidBytes, peer: PeerBytes, manifest: Hash32, within_ms: u64) {
        let Ok(question) = Question::Jobs.encode() else {
            return;
        };
        let (net, job) = (self.tools.net.clone(), id.clone());
        self.tools.spawn(async move {
            let within = Duration::from_millis(within_ms);
            let answer = tokio::time::timeout(within, net.sync_request(&peer, question)).await;
            let answered = match answer {
                Ok(Ok(_)) => Answered::InTime,
                Ok(Err(_)) | Err(_) => Answered::NotInTime,
            };
            Done::Probed {
                job,
                peer,
                manifest,
                answered,
            }
        });
    }

    fn check_delta(
        &mut self,
        id: &CidBytes,
        roster: Hash32,
        round: Round,
        member: PeerBytes,
        cid: CidBytes,
        from: &[PeerBytes],
    ) {
        let Some(job) = self.jobs.get(id) else { return };
        let parent = job.rosters.get(&roster).map(|r| r.parent);
        let Some(awaited) = parent.and_then(|parent| self.awaited(job, &member, round, parent)) else {
            return;
        };
        job.holds.hold(&self.tools.content, round.0, &cid);
        let fetch = self.delta_fetch(&cid, from, awaited.max_bytes());
        let (keys, job) = (self.tools.keys.clone(), id.clone());
        self.tools.spawn(async move {
            let outcome = match fetch.await {
                Ok(bytes) => commit::check(&bytes, &awaited, &keys),
                Err(why) => Err((Reason::Unavailable, why)),
            };
            Done::Delta {
                job,
                roster,
                member,
                cid,
                outcome,
            }
        });
    }

    fn close(&mut self, id: &CidBytes, body: Close, attests: Vec<Verified>) {
        let (round, checkpoint) = (body.round, body.checkpoint.clone());
        self.decide_another_view(id, &body);
        self.publish(Body::Close(body), attests);
        self.keep_checkpoint(id, round, &checkpoint);
    }

    /// For scenarios: the same entries in another order, in the name of the same view.
    fn second_manifest(&self, body: &Body) -> Option<Body> {
        let Body::Manifest(m) = body else { return None };
        let lies = m.view.0 == 0 && self.tools.faults.has(FaultKind::TwoManifests, m.round.0);
        lies.then(|| {
            let mut second = m.clone();
            second.entries.reverse();
            Body::Manifest(second)
        })
    }

    /// For scenarios: the view after the one that is about to be closed.
    fn decide_another_view(&mut self, id: &CidBytes, close: &Close) {
        let manifest = self.jobs.get(id).and_then(|j| j.manifests.get(&close.manifest));
        let lies = self.tools.faults.has(FaultKind::LateClose, close.round.0);
        if let Some(m) = manifest.filter(|_| lies) {
            let view = close.view.next();
            self.publish(Body::Manifest(Manifest { view, ..m.clone() }), Vec::new());
        }
    }

    /// The job cannot start on this node.
    pub(crate) fn cannot_start(&mut self, id: &CidBytes, why: &str) {
        tracing::error!(job = %id, "{why}");
        self.notice(id, why);
        self.turns.remove(id);
        self.tell_orchestrator(id, Event::PrepareFailed(why.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_of_more_workers_than_connections_says_what_to_set() {
        assert_eq!(too_few_connections(64, 512), None);
        assert_eq!(too_few_connections(384, 512), None);
        for workers in [385, 1_000, 4_096, u32::MAX] {
            let why = too_few_connections(workers, 512).unwrap();
            assert!(why.contains(&format!("{workers} workers")), "{why}");
            let set = why.split("max_connections = ").nth(1).unwrap();
            let set: u32 = set.split(' ').next().unwrap().parse().unwrap();
            assert!(
                workers == u32::MAX || too_few_connections(workers, set).is_none(),
                "{why}"
            );
        }
    }
}
