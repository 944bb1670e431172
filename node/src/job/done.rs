//! What comes back from work that runs beside the service's task.

use super::audit::JudgeResult;
use super::commit::Files;
use super::log::MessageId;
use super::member::add_checkpoint;
use super::service::Service;
use super::state::{ModelState, Origin};
use super::trainer::{JobFiles, Report};
use super::validate::Validator;
use crate::role::Role;
use gym_protocol::ids::{CidBytes, Hash32, PeerBytes, Round};
use gym_protocol::member::{DeltaFacts, Held};
use gym_protocol::message::{Entry, JobBody, Link, Reason};
use gym_protocol::orchestrator::Answered;
use gym_protocol::tensor::TensorSet;
use gym_protocol::{member, orchestrator};
use serde_json::json;
use std::sync::Arc;

/// For whom a state was fetched.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Purpose {
    /// The member's machine asked.
    Member,
    /// To evaluate a delta that starts from it.
    Delta { round: Round, entry: Entry },
    /// The job is done: the last checkpoint is evaluated.
    Last,
}

/// A finished piece of work.
#[derive(Debug)]
pub(crate) enum Done {
    /// A job file was resolved and its content added.
    Submitted {
        body: Box<JobBody>,
        answer: tokio::sync::oneshot::Sender<Result<CidBytes, String>>,
    },
    /// A peer answered a sync question.
    Synced {
        job: Option<CidBytes>,
        peer: PeerBytes,
        envelopes: Vec<Vec<u8>>,
        known: Vec<MessageId>,
    },
    /// Model and questions are on disk, or why not.
    Files {
        job: CidBytes,
        result: Result<JobFiles, String>,
    },
    /// The trainer thread says something.
    Trainer(Box<Report>),
    /// Checkpoint 0 is written and added.
    Zero {
        job: CidBytes,
        result: Result<(Arc<ModelState>, Held), String>,
    },
    /// A state was fetched and checked.
    State {
        job: CidBytes,
        held: Held,
        purpose: Purpose,
        result: Result<Arc<ModelState>, String>,
    },
    /// Round trips to the connected members.
    Measured { job: CidBytes, links: Vec<Link> },
    /// A commit is encoded, signed and added.
    Commit {
        job: CidBytes,
        roster: Hash32,
        result: Result<(CidBytes, Files), String>,
    },
    /// A replica was checked.
    Replica {
        job: CidBytes,
        from: PeerBytes,
        roster: Hash32,
        salt: Hash32,
        cid: CidBytes,
        outcome: Result<DeltaFacts, (Reason, String)>,
    },
    /// A committed delta was fetched and checked.
    Delta {
        job: CidBytes,
        roster: Hash32,
        member: PeerBytes,
        cid: CidBytes,
        outcome: Result<DeltaFacts, (Reason, String)>,
    },
    /// A delta that a validator wanted, with the state it starts from.
    Validated {
        job: CidBytes,
        round: Round,
        entry: Entry,
        state: Arc<ModelState>,
        delta: Result<Vec<f32>, String>,
    },
    /// A round's sum was replayed.
    Audited {
        job: CidBytes,
        manifest: Hash32,
        outcome: orchestrator::Audited,
        follows: Option<orchestrator::Follows>,
    },
    /// What a proof is about was replayed.
    Judged {
        job: CidBytes,
        accused: PeerBytes,
        round: Round,
        result: JudgeResult,
    },
    /// The outer step is taken and its checkpoint added.
    Applied {
        job: CidBytes,
        manifest: Hash32,
        result: Result<(Arc<ModelState>, CidBytes), String>,
    },
    /// A member that others call silent was asked for a sign of life.
    Probed {
        job: CidBytes,
        peer: PeerBytes,
        manifest: Hash32,
        answered: Answered,
    },
    /// A peer takes no frames.
    LinkDown(PeerBytes),
}

impl Service {
    pub(crate) fn on_done(&mut self, done: Done) {
        match done {
            Done::Submitted { body, answer } => self.on_submitted(*body, answer),
            Done::Synced {
                job,
                peer,
                envelopes,
                known,
            } => {
                self.on_synced(job.as_ref(), &peer, &envelopes, known);
            }
            Done::Files { job, result } => self.on_files(&job, result),
            Done::Trainer(report) => self.on_trainer(*report),
            Done::Zero { job, result } => self.on_zero(&job, result),
            Done::State {
                job,
                held,
                purpose: Purpose::Member,
                result,
            } => {
                self.on_state(&job, held, result);
            }
            Done::State {
                job,
                held,
                purpose,
                result,
            } => {
                self.on_state_for_validator(&job, &held, purpose, result);
            }
            Done::Measured { job, links } => self.tell_member(&job, member::Event::Measured(links)),
            Done::Commit { job, roster, result } => self.on_commit(&job, roster, result),
            Done::Replica {
                job,
                from,
                roster,
                salt,
                cid,
                outcome,
            } => {
                let outcome = outcome.map_err(|(reason, why)| {
                    tracing::warn!(peer = %from, "its delta is refused: {why}");
                    reason
                });
                self.tell_member(
                    &job,
                    member::Event::Replica {
                        from,
                        roster,
                        salt,
                        cid,
                        outcome,
                    },
                );
            }
            Done::Delta {
                job,
                roster,
                member,
                cid,
                outcome,
            } => {
                let outcome = outcome.map_err(|(reason, why)| {
                    tracing::warn!(peer = %member, "its delta is left out: {why}");
                    reason
                });
                self.tell_orchestrator(
                    &job,
                    orchestrator::Event::DeltaChecked {
                        roster,
                        member,
                        cid,
                        outcome,
                    },
                );
            }
            Done::Validated {
                job,
                round,
                entry,
                state,
                delta,
            } => {
                let Some(validator) = self.jobs.get_mut(&job).and_then(|j| j.validator.as_mut()) else {
                    return;
                };
                let wish = match delta {
                    Ok(delta) => validator.on_delta(round, entry, &state, &delta),
                    Err(why) => {
                        tracing::warn!(job = %job, "cannot evaluate {}'s delta of round {round}: {why}", entry.member);
                        validator.on_delta_failed();
                        None
                    }
                };
                self.grant(&job, wish);
            }
            Done::Applied {
                job,
                manifest,
                result,
            } => self.on_applied(&job, manifest, result),
            Done::Audited {
                job,
                manifest,
                outcome,
                follows,
            } => {
                let event = orchestrator::Event::Audited {
                    manifest,
                    outcome,
                    follows,
                };
                self.tell_orchestrator(&job, event);
            }
            Done::Judged {
                job,
                accused,
                round,
                result,
            } => self.on_judged(&job, &accused, round.0, result),
            Done::Probed {
                job,
                peer,
                manifest,
                answered,
            } => {
                let event = orchestrator::Event::Probed {
                    peer,
                    manifest,
                    answered,
                };
                self.tell_orchestrator(&job, event);
            }
            Done::LinkDown(peer) => self.tell_members(&member::Event::PeerLost(peer)),
        }
    }

    fn on_trainer(&mut self, report: Report) {
        match report {
            Report::Loaded { job, adapter } => self.on_loaded(&job, adapter),
            Report::Step {
                job,
                round,
                step,
                metrics,
            } => {
                let Some(active) = self.jobs.get(&job) else { return };
                let steps = active.body.spec.schedule.aggregate_interval;
                let event = json!({ "round": round, "step": step, "steps": steps, "metrics": metrics });
                active.events.push("step", event);
            }
            Report::Trained {
                job,
                roster,
                delta,
                trained,
            } => {
                let Some(active) = self.jobs.get_mut(&job) else {
                    return;
                };
                let samples = trained.samples;
                active.trained = trained;
                self.tell_member(
                    &job,
                    member::Event::Trained {
                        roster,
                        delta,
                        samples,
                    },
                );
            }
            Report::Evaluated {
                job,
                tag,
                correct,
                questions,
            } => {
                let validator = self.jobs.get_mut(&job).and_then(|j| j.validator.as_mut());
                let wishes = validator
                    .map(|v| v.on_evaluated(tag, correct, questions))
                    .unwrap_or_default();
                self.grant(&job, wishes);
            }
            Report::Failed {
                job,
                roster,
                tag,
                why,
            } => self.on_trainer_failed(&job, roster, tag, why),
        }
    }

    fn on_trainer_failed(&mut self, job: &CidBytes, roster: Option<Hash32>, tag: Option<u64>, why: String) {
        tracing::warn!(job = %job, "trainer: {why}");
        match (roster, tag) {
            (Some(roster), _) => self.tell_member(job, member::Event::TrainFailed { roster, why }),
            (None, Some(tag)) => {
                if let Some(v) = self.jobs.get_mut(job).and_then(|j| j.validator.as_mut())
                    && !v.on_failed(tag)
                {
                    tracing::error!(job = %job, "the last checkpoint is not evaluated: {why}");
                }
            }
            (None, None) => self.cannot_start(job, &why),
        }
    }

    /// The trainer has model and questions: checkpoint 0 follows.
    fn on_loaded(&mut self, id: &CidBytes, adapter: TensorSet) {
        let dir = self.checkpoint_dir(id, 0);
        let Some(job) = self.jobs.get(id).filter(|_| self.turns.has(id)) else {
            return;
        };
        let (names, content, job) = (job.names.clone(), self.tools.content.clone(), id.clone());
        self.tools.spawn(async move {
            let result = match ModelState::new(&names, 0, adapter, TensorSet::default()) {
                Ok(state) => add_checkpoint(&content, &names, Arc::new(state), Origin::default(), dir).await,
                Err(e) => Err(e.to_string()),
            };
            let result = result.map(|(state, checkpoint)| {
                let held = Held {
                    closed: 0,
                    state: state.hash,
                    checkpoint,
                };
                (state, held)
            });
            Done::Zero { job, result }
        });
    }

    fn on_zero(&mut self, id: &CidBytes, result: Result<(Arc<ModelState>, Held), String>) {
        let (state, held) = match result {
            Ok(zero) => zero,
            Err(why) => return self.cannot_start(id, &format!("checkpoint 0 cannot be made: {why}")),
        };
        let roles = self.tools.roles.clone();
        let Some(job) = self.jobs.get_mut(id).filter(|_| self.turns.has(id)) else {
            return;
        };
        self.turns.came_closer(id, super::service::now());
        tracing::info!(job = %id, state = %held.state.short(), "model and questions loaded");
        job.zero_state = Some(state.clone());
        job.model = Some(state);
        if job.orchestrator.is_some() {
            self.tell_orchestrator(id, orchestrator::Event::Prepared(held.clone()));
        }
        if roles.has(Role::Validator) {
            let wish = self.jobs.get_mut(id).map(|job| {
                let s = &job.body.spec.schedule;
                let mut validator = Validator::new(id.clone(), s.validator_sampling, s.eval_questions);
                let wish = validator.on_loaded();
                job.validator = Some(validator);
                wish
            });
            self.grant(id, wish);
        }
        if roles.has(Role::Worker) {
            self.begin_member(id, held);
        }
    }

    fn on_state(&mut self, id: &CidBytes, held: Held, result: Result<Arc<ModelState>, String>) {
        match result {
            Ok(state) => {
                if let Some(job) = self.jobs.get_mut(id) {
                    job.model = Some(state);
                }
                self.tell_member(id, member::Event::Synced(held));
            }
            Err(why) => self.tell_member(id, member::Event::FetchFailed(why)),
        }
    }
}
