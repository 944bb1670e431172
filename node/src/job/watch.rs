//! What every node remembers of a job it hears about, and what validators do with it.

use super::done::{Done, Purpose};
use super::service::Service;
use super::trainer::Task;
use super::validate::{Validator, Wish};
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
        self.note_heard(id, &message.sender);
        let Some(job) = self.jobs.get_mut(id) else { return };
        let sequenced = message.sender == job.body.orchestrator;
        match &message.body {
            Body::Roster(roster) if sequenced => {
                job.remember_roster(object_hash(&message.encoded), roster.clone());
                self.note_roster(id, roster);
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
                if let Some(v) = &job.validator {
                    let job = id.to_string();
                    let labels = [("job", job.as_str())];
                    self.tools
                        .metrics
                        .set("gym_validator_passed_over_total", &labels, v.passed_over());
                }
                self.grant(id, wish);
                self.fetch_last(id);
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
                job.last_wanted = Some(status.closed);
                // The validators' word on the last checkpoint is still to come; it ends the events, or its absence does.
                let (events, holds) = (job.events.clone(), job.holds.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(LAST_REPORT).await;
                    events.end();
                    holds.drop_before(u64::MAX);
                });
                self.fetch_last(id);
            }
            Standing::Paused | Standing::Cancelled | Standing::Failed => {
                job.holds.drop_before(u64::MAX);
                job.events.end();
            }
        }
        if !self.turns.has(id) {
            self.turns.remove(id);
        }
        self.take_turns();
    }

    /// A validator evaluates the last checkpoint, once the job is done and its last round's close is here, in whichever order
    /// they come.
    fn fetch_last(&mut self, id: &CidBytes) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        let Some(wanted) = job.last_wanted.filter(|rounds| *rounds > 0) else {
            return;
        };
        let Some(validator) = &mut job.validator else {
            return;
        };
        validator.await_last();
        let Some(held) = job.last_held().filter(|held| held.closed >= wanted) else {
            return;
        };
        job.last_wanted = None;
        self.fetch_state(id, held, Purpose::Last);
    }

    /// Tells a job's validator something, where there is one.
    fn of_validator<T>(&mut self, id: &CidBytes, tell: impl FnOnce(&mut Validator) -> T) -> Option<T> {
        self.jobs.get_mut(id)?.validator.as_mut().map(tell)
    }

    /// What the trainer had no room for is asked for again.
    pub(crate) fn evaluate_again(&mut self) {
        let Some(id) = self.turns.current().cloned() else {
            return;
        };
        let wishes = self.of_validator(&id, Validator::again).unwrap_or_default();
        self.grant(&id, wishes);
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
                        self.of_validator(id, |v| v.on_refused(tag));
                    }
                }
                Wish::FetchDelta { round, entry, parent } => {
                    let rosters = self.jobs.get(id).map(|job| &job.rosters);
                    let roster = rosters
                        .into_iter()
                        .flat_map(|all| all.values())
                        .find(|r| r.round == round && r.parent == parent);
                    let Some(roster) = roster else {
                        tracing::warn!(job = %id, "cannot evaluate {}'s delta of round {round}: its roster is not known", entry.member);
                        self.of_validator(id, Validator::on_delta_failed);
                        continue;
                    };
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
                match (&mut job.validator, purpose) {
                    (Some(v), Purpose::Delta { .. }) => v.on_delta_failed(),
                    (Some(v), Purpose::Last) => v.on_last_failed(),
                    (None, _) | (_, Purpose::Member) => {}
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
                let Some(job) = self.jobs.get(id) else { return };
                let Some(awaited) = self.awaited(job, &entry.member, round, held.state) else {
                    self.of_validator(id, Validator::on_delta_failed);
                    return;
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
