//! Carries out what an orchestrator's machine asks for.

use super::commit::{self, Awaited};
use super::done::Done;
use super::service::Service;
use gym_protocol::ids::{CidBytes, Hash32, PeerBytes, Round};
use gym_protocol::message::{Body, Close, Reason, Verified};
use gym_protocol::orchestrator::{Action, Config, Event, Orchestrator};

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
        flat_ring_max: service.tools.flat_ring_max,
    };
    let mut actions = Vec::new();
    job.orchestrator = Some(Orchestrator::new(config, &mut actions));
    for action in actions {
        service.orchestrator_action(id, action);
    }
}

impl Service {
    pub(crate) fn orchestrator_action(&mut self, id: &CidBytes, action: Action) {
        match action {
            Action::Publish(body) => self.publish(body, Vec::new()),
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
        let (Some(elements), Some(parent)) = (job.elements(), parent) else {
            return;
        };
        let awaited = Awaited {
            names: job.names.clone(),
            member: member.clone(),
            round,
            parent,
            elements,
        };
        let fetch = self.delta_fetch(&cid, from);
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
        let checkpoint = body.checkpoint.clone();
        self.publish(Body::Close(body), attests);
        self.keep_checkpoint(id, &checkpoint);
    }

    /// The job cannot start on this node.
    pub(crate) fn cannot_start(&mut self, id: &CidBytes, why: &str) {
        tracing::error!(job = %id, "{why}");
        self.notice(id, why);
        self.tell_orchestrator(id, Event::PrepareFailed(why.to_owned()));
    }
}
