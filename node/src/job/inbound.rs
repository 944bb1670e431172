//! What the network brings: gossip, sync questions and answers, sealed frames, peers that come and go.

use super::active::Active;
use super::done::Done;
use super::log::MessageId;
use super::orchestrate;
use super::replica::{Part, Replica};
use super::service::Service;
use super::sync::{Answer, MAX_ENVELOPES, Question};
use crate::link::LinkOffence;
use crate::net::{Acceptance, NetEvent};
use gym_protocol::ids::{CidBytes, Hash32, PeerBytes};
use gym_protocol::member;
use gym_protocol::message::{
    Body, JobBody, LinkHeader, LinkKind, MessageError, Offence, Verified, VerifyError,
};
use gym_protocol::orchestrator::Event as OrchestratorEvent;
use std::collections::BTreeSet;
use tokio::sync::oneshot;

/// Bytes of envelopes pushed in one question, which has to fit [`crate::net::MAX_SYNC_REQUEST`].
const MAX_PUSH: usize = 60 * 1024;

impl Service {
    pub(crate) async fn on_net(&mut self, event: NetEvent) {
        match event {
            NetEvent::PeerJoined(info) => {
                if let Some(identity) = &info.identity
                    && let Err(e) = self.tools.keys.learn(&info.peer, identity)
                {
                    tracing::warn!(peer = %info.peer, "{e}");
                }
                self.connected.insert(info.peer.clone());
                self.tell_orchestrators(|| OrchestratorEvent::PeerSeen(info.peer.clone()));
                self.ask(&info.peer, Question::Jobs, None);
            }
            NetEvent::PeerLeft(peer) => {
                self.connected.remove(&peer);
                self.tell_orchestrators(|| OrchestratorEvent::PeerLost(peer.clone()));
                self.tell_members(&member::Event::PeerLost(peer));
            }
            NetEvent::Gossip {
                source, bytes, id, ..
            } => {
                let acceptance = self.take(&source, &bytes);
                self.tools.net.report_validation(id, acceptance).await;
            }
            NetEvent::SyncRequest { peer, bytes, reply } => self.answer(&peer, &bytes, reply),
            NetEvent::Sealed {
                from,
                header,
                payload,
            } => self.on_sealed(&from, *header, payload),
            NetEvent::LinkOffence { from, what } => {
                let offence = offence_of(what);
                tracing::warn!(peer = %from, "{what}");
                self.tell_members(&member::Event::LinkOffence { from, offence });
            }
            NetEvent::LinkFailed { to, reason, .. } => {
                tracing::warn!(peer = %to, "a frame was not delivered: {reason}");
                self.tell_members(&member::Event::PeerLost(to));
            }
        }
    }

    fn tell_orchestrators(&mut self, event: impl Fn() -> OrchestratorEvent) {
        let ids: Vec<CidBytes> = self
            .jobs
            .values()
            .filter(|j| j.orchestrator.is_some())
            .map(|j| j.id.clone())
            .collect();
        ids.iter().for_each(|id| self.tell_orchestrator(id, event()));
    }

    pub(crate) fn tell_members(&mut self, event: &member::Event) {
        let ids: Vec<CidBytes> = self
            .jobs
            .values()
            .filter(|j| j.member.is_some())
            .map(|j| j.id.clone())
            .collect();
        ids.iter().for_each(|id| self.tell_member(id, event.clone()));
    }

    /// Checks an envelope and takes what is new.
    fn take(&mut self, source: &PeerBytes, bytes: &[u8]) -> Acceptance {
        if self.jobs.values().any(|j| j.log.knows(bytes)) {
            return Acceptance::Accept;
        }
        match Verified::open(bytes, &self.tools.keys) {
            Ok(message) => {
                let known = self.jobs.contains_key(&message.job);
                let announces = matches!(message.body, Body::Job(_));
                if !known && !announces {
                    return Acceptance::Ignore;
                }
                if let Body::Ready(ready) = &message.body
                    && self.tools.keys.contradicts(&message.sender, &ready.record)
                {
                    // A roster would name that record, which the Ed25519 key alone vouches for.
                    tracing::warn!(peer = %message.sender, "says that it is ready under another identity record than is known");
                    return Acceptance::Ignore;
                }
                self.accept(message);
                Acceptance::Accept
            }
            Err(MessageError::Signature {
                sender,
                source: VerifyError::UnknownSender,
                ..
            }) => {
                self.learn(sender);
                Acceptance::Ignore
            }
            Err(e) => {
                tracing::warn!(peer = %source, "refused a message: {e}");
                self.tools.metrics.offence(Offence::BadMessage.label());
                Acceptance::Reject
            }
        }
    }

    /// Asks a signer for its identity record; its messages come again by synchronisation.
    fn learn(&self, peer: PeerBytes) {
        let (net, keys) = (self.tools.net.clone(), self.tools.keys.clone());
        tokio::spawn(async move {
            match net.record(&peer).await {
                Ok(identity) => {
                    if let Err(e) = keys.learn(&peer, &identity) {
                        tracing::warn!(%peer, "{e}");
                    }
                }
                Err(e) => tracing::debug!("the identity of {peer} is not known yet: {e}"),
            }
        });
    }

    /// A job that is announced becomes one of this node's, whatever its roles: everyone can watch.
    pub(crate) fn on_job(&mut self, id: &CidBytes, body: &JobBody, message: &Verified) {
        if self.jobs.contains_key(id) || message.sender != body.orchestrator {
            return;
        }
        if !self.make_place(id, body) {
            return;
        }
        tracing::info!(job = %id, name = %body.spec.name, orchestrator = %body.orchestrator, "job announced");
        self.jobs.insert(
            id.clone(),
            Active::new(
                id.clone(),
                body.clone(),
                self.tools.identity.genesis(),
                self.tools.me(),
            ),
        );
        if body.orchestrator == self.tools.me() {
            orchestrate::begin(self, id);
        }
        self.queue(id, body);
    }

    fn on_sealed(&mut self, from: &PeerBytes, header: LinkHeader, payload: Vec<u8>) {
        let id = header.job.clone();
        let Some(job) = self.jobs.get_mut(&id) else { return };
        match LinkKind::from_number(header.kind) {
            Some(LinkKind::Ring) => {
                self.tell_member(
                    &id,
                    member::Event::Segment {
                        from: from.clone(),
                        header,
                        payload,
                    },
                );
            }
            Some(LinkKind::Replica) if !job.may_replicate(from, header.round) => {
                // Anybody can send: nothing of it is put together, and one line for each part would fill the log.
                self.tools.metrics.offence(Offence::Unexpected.label());
                tracing::debug!(peer = %from, round = header.round, "a part of a replica from no member of the round");
            }
            Some(LinkKind::Replica) => match job.assembly.add(from, &header, &payload) {
                Part::More => {}
                Part::Whole(bytes) => self.on_replica(&id, from, header.round, &bytes),
                Part::Wrong => self.penalise(
                    &id,
                    from,
                    Offence::Truncated,
                    "a part of its replica is out of order",
                ),
            },
            None => self.penalise(&id, from, Offence::Unexpected, "unknown kind of frame"),
        }
    }

    fn on_replica(&mut self, id: &CidBytes, from: &PeerBytes, round: u64, bytes: &[u8]) {
        let Some(replica) = Replica::decode(bytes) else {
            return self.penalise(id, from, Offence::DeltaMalformed, "its replica does not parse");
        };
        let me = self.tools.me();
        let Some(job) = self.jobs.get_mut(id) else { return };
        if job.takes_replica(from, &me, round, replica.roster) {
            self.check_replica(id, from.clone(), round, replica);
        } else {
            self.penalise(
                id,
                from,
                Offence::Unexpected,
                "its replica is of another roster, or one of too many",
            );
        }
    }

    /// Counts an offence and says it in one line.
    pub(crate) fn penalise(&mut self, id: &CidBytes, peer: &PeerBytes, offence: Offence, detail: &str) {
        self.tools.metrics.offence(offence.label());
        tracing::warn!(peer = %peer, offence = offence.label(), "peer {}: {detail}", offence.explain());
        if let Some(job) = self.jobs.get(id) {
            let event = serde_json::json!({
                "peer": peer.to_string(),
                "offence": offence.label(),
                "detail": format!("{}: {detail}", offence.explain()),
            });
            job.events.push("offence", event);
        }
    }

    // Synchronisation.

    /// Asks the orchestrators of running jobs what was missed.
    pub(crate) fn ask_peers(&mut self) {
        let me = self.tools.me();
        let running = self
            .jobs
            .values()
            .filter(|j| j.standing.is_none() && j.body.orchestrator != me);
        let questions: Vec<(PeerBytes, Question, CidBytes)> = running
            .map(|j| {
                let question = Question::Round {
                    job: j.id.clone(),
                    known: j.log.ids(),
                };
                (j.body.orchestrator.clone(), question, j.id.clone())
            })
            .collect();
        for (peer, question, id) in questions {
            self.ask(&peer, question, Some(id));
        }
        if self.jobs.is_empty()
            && let Some(peer) = self.connected.iter().next().cloned()
        {
            self.ask(&peer, Question::Jobs, None);
        }
    }

    fn ask(&self, peer: &PeerBytes, question: Question, job: Option<CidBytes>) {
        let Ok(bytes) = question.encode() else { return };
        let (net, peer) = (self.tools.net.clone(), peer.clone());
        self.tools.spawn(async move {
            let answer = match net.sync_request(&peer, bytes).await {
                Ok(reply) => Answer::decode(&reply).unwrap_or_default(),
                Err(e) => {
                    tracing::debug!("synchronisation: {e}");
                    Answer::default()
                }
            };
            Done::Synced {
                job,
                peer,
                envelopes: answer.envelopes,
                known: answer.known,
            }
        });
    }

    pub(crate) fn on_synced(
        &mut self,
        job: Option<&CidBytes>,
        peer: &PeerBytes,
        envelopes: &[Vec<u8>],
        known: Vec<MessageId>,
    ) {
        for envelope in envelopes {
            self.take(peer, envelope);
        }
        let Some(id) = job.filter(|_| !known.is_empty()) else {
            return;
        };
        self.note_heard(id, peer);
        let known: BTreeSet<MessageId> = known.into_iter().collect();
        let Some(active) = self.jobs.get(id) else { return };
        let lacking = active.log.own_lacking(&known, MAX_PUSH);
        if !lacking.is_empty() {
            self.ask(
                peer,
                Question::Push {
                    job: id.clone(),
                    envelopes: lacking,
                },
                None,
            );
        }
    }

    /// Reads what this node has of a ring's hops beside the task.
    fn show_hops(&self, job: &CidBytes, manifest: Hash32, reply: oneshot::Sender<Vec<u8>>) {
        if !self.jobs.contains_key(job) {
            return;
        }
        let store = self.hop_store(job);
        tokio::task::spawn_blocking(move || {
            let answer = Answer {
                envelopes: store.read(manifest).into_iter().collect(),
                known: Vec::new(),
            };
            if let Ok(bytes) = answer.encode() {
                // The asker may be gone.
                let _ = reply.send(bytes);
            }
        });
    }

    fn answer(&mut self, peer: &PeerBytes, bytes: &[u8], reply: oneshot::Sender<Vec<u8>>) {
        let answer = match Question::decode(bytes) {
            Some(Question::Jobs) => {
                let none = BTreeSet::new();
                // What is over needs no more members.
                let running = self.jobs.values().filter(|j| j.is_running());
                let first = running.filter_map(|j| j.log.lacking(&none, MAX_ENVELOPES).into_iter().next());
                Answer {
                    envelopes: first.collect(),
                    known: Vec::new(),
                }
            }
            Some(Question::Round { job, known }) => match self.jobs.get(&job) {
                Some(active) => {
                    let known: BTreeSet<MessageId> = known.into_iter().collect();
                    Answer {
                        envelopes: active.log.lacking(&known, MAX_ENVELOPES),
                        known: active.log.ids(),
                    }
                }
                None => Answer::default(),
            },
            Some(Question::Hops { job, manifest }) => {
                self.show_hops(&job, manifest, reply);
                return;
            }
            Some(Question::Push { envelopes, .. }) => {
                for envelope in &envelopes {
                    self.take(peer, envelope);
                }
                Answer::default()
            }
            None => {
                tracing::warn!(peer = %peer, "sent a sync question that does not parse");
                self.tools.metrics.offence(Offence::BadMessage.label());
                return;
            }
        };
        if let Ok(bytes) = answer.encode() {
            // The asker may be gone.
            let _ = reply.send(bytes);
        }
    }
}

fn offence_of(what: LinkOffence) -> Offence {
    match what {
        LinkOffence::BadTag | LinkOffence::Handshake => Offence::BadSeal,
        LinkOffence::Truncated | LinkOffence::Oversized => Offence::Truncated,
        LinkOffence::BadHeader | LinkOffence::WrongSender | LinkOffence::WrongReceiver => Offence::Unexpected,
    }
}
