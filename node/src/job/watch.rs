//! What every node remembers of a job it hears about, and what validators do with it.

use super::done::{Done, Purpose};
use super::service::Service;
use super::trainer::Task;
use super::validate::Wish;
use gym_protocol::cbor::object_hash;
use gym_protocol::ids::CidBytes;
use gym_protocol::member::Held;
use gym_protocol::message::{Body, Standing, Status, Subject, Verified};
use serde_json::json;
use std::time::Duration;

/// How long a done job's watchers wait for a validator's report on its last checkpoint.
const LAST_REPORT: Duration = Duration::from_secs(60);

impl Service {
    /// Notes what a message says of the job's course.
    pub(crate) fn watch(&mut self, id: &CidBytes, message: &Verified) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        let sequenced = message.sender == job.body.orchestrator;
        match &message.body {
            Body::Roster(roster) if sequenced => {
                job.remember_roster(object_hash(&message.encoded), roster.clone())
            }
            Body::Manifest(m) if sequenced => job.remember_manifest(object_hash(&message.encoded), m.clone()),
            Body::Close(close) if sequenced => {
                let manifest = job.manifests.get(&close.manifest).cloned();
                let entries = manifest.iter().flat_map(|m| m.entries.iter().enumerate());
                let named = entries.filter(|(i, _)| close.names(*i)).map(|(_, e)| &e.member);
                let signers = message.nested.iter().map(|a| &a.sender).chain(named);
                let signers = signers.cloned().collect();
                job.remember_close(close, signers);
                let wish = manifest.and_then(|m| job.validator.as_mut()?.on_close(&m));
                self.grant(id, wish);
            }
            Body::Report(report) => {
                let what = match &report.subject {
                    Subject::Delta { member, .. } => format!("{member}'s delta of round {}", report.round),
                    Subject::Checkpoint { .. } => format!("the checkpoint after {} rounds", report.round),
                };
                tracing::info!(
                    by = %message.sender,
                    "report on {what}: {} of {} right before, {} after",
                    report.correct_before,
                    report.questions,
                    report.correct_after
                );
                job.remember_report(report, &message.sender);
                if job.standing.is_some() && matches!(report.subject, Subject::Checkpoint { .. }) {
                    job.events.end();
                }
            }
            Body::Proof(proof) if sequenced => {
                let (round, accused) = (proof.round.0, proof.accused.to_string());
                let event = json!({ "round": round, "accused": accused, "hops": hex::encode(&*proof.hops) });
                job.events.push("proof", event);
            }
            Body::Status(status) if sequenced => self.on_status(id, status),
            Body::Job(_)
            | Body::Roster(_)
            | Body::Manifest(_)
            | Body::Attest(_)
            | Body::Close(_)
            | Body::Ready(_)
            | Body::Commitment(_)
            | Body::Receipt(_)
            | Body::Cutoff(_)
            | Body::Reveal(_)
            | Body::Complaint(_)
            | Body::Status(_)
            | Body::Links(_)
            | Body::Proof(_)
            | Body::Holding(_) => {}
        }
    }

    fn on_status(&mut self, id: &CidBytes, status: &Status) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        let standing = match status.standing {
            1 => Standing::Done,
            2 => Standing::Cancelled,
            3 => Standing::Failed,
            _ => {
                job.events
                    .push("notice", json!({ "text": format!("paused: {}", status.why) }));
                return;
            }
        };
        job.abandon_training();
        job.standing = Some((standing, status.why.clone()));
        let name = format!("{standing:?}").to_lowercase();
        tracing::info!(job = %id, "job {name}: {}", status.why);
        job.events
            .push("finished", json!({ "standing": name, "why": status.why }));
        match standing {
            Standing::Done => {
                // The validators' word on the last checkpoint is still to come; it ends the events, or its absence does.
                let events = job.events.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(LAST_REPORT).await;
                    events.end();
                });
                self.fetch_last(id);
            }
            Standing::Paused | Standing::Cancelled | Standing::Failed => job.events.end(),
        }
    }

    /// A validator evaluates the last checkpoint.
    fn fetch_last(&mut self, id: &CidBytes) {
        let Some(job) = self.jobs.get(id) else { return };
        if job.validator.is_none() {
            return;
        }
        if let Some(held) = job.last_held() {
            self.fetch_state(id, held, Purpose::Last);
        }
    }

    /// Does what a validator asks for.
    pub(crate) fn grant(&mut self, id: &CidBytes, wishes: impl IntoIterator<Item = Wish>) {
        for wish in wishes {
            match wish {
                Wish::Evaluate {
                    tag,
                    adapter,
                    questions,
                } => {
                    let task = Task::Evaluate {
                        job: id.clone(),
                        tag,
                        adapter,
                        questions,
                    };
                    if !self.tools.trainer.ask(task) {
                        tracing::warn!(job = %id, "the trainer is too busy to evaluate");
                    }
                }
                Wish::FetchDelta { round, entry, parent } => {
                    let Some(job) = self.jobs.get(id) else { continue };
                    let roster = job
                        .rosters
                        .values()
                        .find(|r| r.round == round && r.parent == parent);
                    let Some(roster) = roster else { continue };
                    let held = Held {
                        closed: round.0,
                        state: parent,
                        checkpoint: roster.checkpoint.clone(),
                    };
                    self.fetch_state(id, held, Purpose::Delta { round, entry });
                }
                Wish::Publish(report) => self.publish(Body::Report(report), Vec::new()),
            }
        }
    }

    /// A state that a validator asked for is here.
    pub(crate) fn on_state_for_validator(
        &mut self,
        id: &CidBytes,
        held: &Held,
        purpose: Purpose,
        done: StateResult,
    ) {
        self.let_old_checkpoints_go(id);
        let Some(job) = self.jobs.get_mut(id) else { return };
        let state = match done {
            Ok(state) => state,
            Err(why) => {
                tracing::warn!(job = %id, "cannot evaluate round {}: {why}", held.closed);
                if let Some(v) = &mut job.validator {
                    v.on_delta_failed();
                }
                return;
            }
        };
        match purpose {
            Purpose::Member => {}
            Purpose::Last => {
                let round = gym_protocol::ids::Round(held.closed);
                let adapter = std::sync::Arc::new(state.adapter.clone());
                let wish = job
                    .validator
                    .as_mut()
                    .and_then(|v| v.on_last(round, held.checkpoint.clone(), adapter));
                self.grant(id, wish);
            }
            Purpose::Delta { round, entry } => {
                let awaited = super::commit::Awaited {
                    names: job.names.clone(),
                    member: entry.member.clone(),
                    round,
                    parent: held.state,
                    elements: state.adapter.elements(),
                };
                let keys = self.tools.keys.clone();
                let from = vec![entry.member.clone(), entry.server.clone()];
                let fetch = self.delta_fetch(&entry.cid, &from, awaited.max_bytes());
                let job = id.clone();
                self.tools.spawn(async move {
                    let delta = match fetch.await {
                        Ok(bytes) => super::commit::check(&bytes, &awaited, &keys)
                            .map(|f| f.delta)
                            .map_err(|(_, w)| w),
                        Err(why) => Err(why),
                    };
                    Done::Validated {
                        job,
                        round,
                        entry,
                        state,
                        delta,
                    }
                });
            }
        }
    }
}

type StateResult = Result<std::sync::Arc<super::state::ModelState>, String>;
