//! The validator's part in this version: it evaluates committed deltas and the last checkpoint on held-out questions and
//! signs what it found (PROTOCOL section 7.4).

use super::state::ModelState;
use gym_protocol::cbor::sha3_256;
use gym_protocol::ids::{CidBytes, Hash32, Round};
use gym_protocol::message::{Entry, Manifest, Report, Subject};
use gym_protocol::tensor::TensorSet;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Held-out questions for one delta: enough to see a large change, few enough to keep up with the rounds.
const DELTA_QUESTIONS: usize = 100;

/// What the validator asks for.
#[derive(Debug)]
pub(crate) enum Wish {
    /// Accuracy with an adapter, or of the base.
    Evaluate {
        tag: u64,
        adapter: Option<Arc<TensorSet>>,
        questions: usize,
    },
    /// A committed delta: its entry, the state it starts from and that state's checkpoint.
    FetchDelta {
        round: Round,
        entry: Entry,
        parent: Hash32,
    },
    /// Sign and gossip.
    Publish(Report),
}

#[derive(Debug)]
enum Pending {
    Base,
    DeltaBefore {
        round: Round,
        entry: Entry,
        state: Arc<TensorSet>,
        with_delta: Arc<TensorSet>,
    },
    DeltaAfter {
        round: Round,
        entry: Entry,
        with_delta: Arc<TensorSet>,
        before: u64,
    },
    Checkpoint {
        round: Round,
        cid: CidBytes,
        adapter: Arc<TensorSet>,
    },
}

/// Tries at the base or the last checkpoint, which nothing else stands for.
const TRIES: u32 = 3;

/// One job's evaluations.
#[derive(Debug)]
pub(crate) struct Validator {
    job: CidBytes,
    sampling: f64,
    eval_questions: usize,
    base: Option<(u64, u64)>,
    next_tag: u64,
    pending: BTreeMap<u64, Pending>,
    /// A delta is being fetched or evaluated; others of that time are passed over, so that rounds do not wait.
    busy: bool,
    /// Closed rounds whose drawn delta was passed over because another was being looked at.
    passed_over: u64,
    /// The last checkpoint, if the job is done before the base has been evaluated.
    last: Option<(Round, CidBytes, Arc<TensorSet>)>,
    /// The job is done; its last checkpoint is on its way.
    awaits_last: bool,
    /// What the trainer had no room for or failed at: asked again at the next [`Validator::again`].
    deferred: Vec<Pending>,
    /// Failures of the base or the last checkpoint.
    failures: u32,
}

impl Validator {
    pub(crate) fn new(job: CidBytes, sampling: f64, eval_questions: u32) -> Self {
        Self {
            job,
            sampling,
            eval_questions: eval_questions as usize,
            base: None,
            next_tag: 0,
            pending: BTreeMap::new(),
            busy: false,
            passed_over: 0,
            last: None,
            awaits_last: false,
            deferred: Vec::new(),
            failures: 0,
        }
    }

    /// Model and questions are loaded: the base comes first.
    pub(crate) fn on_loaded(&mut self) -> Wish {
        self.evaluate(Pending::Base)
    }

    /// Whether an evaluation is under way or to come, the last checkpoint's included.
    pub(crate) fn is_evaluating(&self) -> bool {
        self.awaits_last || self.last.is_some() || !self.pending.is_empty() || !self.deferred.is_empty()
    }

    /// Rounds whose drawn delta was passed over.
    pub(crate) fn passed_over(&self) -> u64 {
        self.passed_over
    }

    /// The job is done: its last checkpoint is being fetched.
    pub(crate) fn await_last(&mut self) {
        self.awaits_last = true;
    }

    /// It cannot be had.
    pub(crate) fn on_last_failed(&mut self) {
        self.awaits_last = false;
    }

    /// A round has closed: one of its deltas may be looked at. Which one follows from the roster's hash, which nobody
    /// chose alone.
    pub(crate) fn on_close(&mut self, manifest: &Manifest) -> Option<Wish> {
        if manifest.entries.is_empty() {
            return None;
        }
        let draw = |what: &[u8]| sha3_256(&[b"gym/validate/v1", &manifest.roster.0, what]).0;
        let word = |d: [u8; 32]| u64::from_le_bytes([d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]]);
        let uniform = word(draw(b"whether")) as f64 / u64::MAX as f64;
        // The rate is per delta; at most one is taken, so a round is looked at with the chance that any is drawn.
        let any = 1.0 - (1.0 - self.sampling).powi(i32::try_from(manifest.entries.len()).unwrap_or(i32::MAX));
        if uniform >= any {
            return None;
        }
        if self.busy {
            // Whoever is behind goes on with the newest round.
            self.passed_over += 1;
            return None;
        }
        let at = (word(draw(b"which")) % manifest.entries.len() as u64) as usize;
        self.busy = true;
        let entry = manifest.entries[at].clone();
        Some(Wish::FetchDelta {
            round: manifest.round,
            entry,
            parent: manifest.parent,
        })
    }

    /// The delta is here, with the state it starts from.
    pub(crate) fn on_delta(
        &mut self,
        round: Round,
        entry: Entry,
        state: &ModelState,
        delta: &[f32],
    ) -> Option<Wish> {
        let flat: Vec<f32> = state
            .adapter
            .flatten()
            .iter()
            .zip(delta)
            .map(|(s, d)| s + d)
            .collect();
        let Ok(with_delta) = state.adapter.with_flat(&flat) else {
            self.busy = false;
            return None;
        };
        let pending = Pending::DeltaBefore {
            round,
            entry,
            state: Arc::new(state.adapter.clone()),
            with_delta: Arc::new(with_delta),
        };
        Some(self.evaluate(pending))
    }

    /// It could not be had.
    pub(crate) fn on_delta_failed(&mut self) {
        self.busy = false;
    }

    /// The job is done and its last checkpoint is here.
    pub(crate) fn on_last(&mut self, round: Round, cid: CidBytes, adapter: Arc<TensorSet>) -> Option<Wish> {
        self.awaits_last = false;
        if self.base.is_none() {
            self.last = Some((round, cid, adapter));
            return None;
        }
        Some(self.evaluate(Pending::Checkpoint { round, cid, adapter }))
    }

    /// An evaluation is done.
    pub(crate) fn on_evaluated(&mut self, tag: u64, correct: u64, questions: u64) -> Vec<Wish> {
        match self.pending.remove(&tag) {
            Some(Pending::Base) => {
                self.base = Some((correct, questions));
                let last = self.last.take();
                last.and_then(|(round, cid, adapter)| self.on_last(round, cid, adapter))
                    .into_iter()
                    .collect()
            }
            Some(Pending::DeltaBefore {
                round,
                entry,
                with_delta,
                ..
            }) => vec![self.evaluate(Pending::DeltaAfter {
                round,
                entry,
                with_delta,
                before: correct,
            })],
            Some(Pending::DeltaAfter {
                round, entry, before, ..
            }) => {
                self.busy = false;
                let subject = Subject::Delta {
                    member: entry.member,
                    cid: entry.cid,
                };
                vec![self.report(round, subject, questions, before, correct)]
            }
            Some(Pending::Checkpoint { round, cid, .. }) => {
                let before = self.base.map_or(0, |(correct, _)| correct);
                vec![self.report(round, Subject::Checkpoint { cid }, questions, before, correct)]
            }
            None => Vec::new(),
        }
    }

    /// The trainer has no room for an evaluation. A delta is passed over, as those that come while it is busy; the base and
    /// the last checkpoint are asked for again.
    pub(crate) fn on_refused(&mut self, tag: u64) {
        match self.pending.remove(&tag) {
            Some(Pending::DeltaBefore { .. } | Pending::DeltaAfter { .. }) => {
                self.busy = false;
                self.passed_over += 1;
            }
            Some(pending @ (Pending::Base | Pending::Checkpoint { .. })) => self.deferred.push(pending),
            None => {}
        }
    }

    /// An evaluation failed; `false` when the last checkpoint is given up for it.
    pub(crate) fn on_failed(&mut self, tag: u64) -> bool {
        match self.pending.remove(&tag) {
            Some(Pending::DeltaBefore { .. } | Pending::DeltaAfter { .. }) => {
                self.busy = false;
                true
            }
            Some(pending @ (Pending::Base | Pending::Checkpoint { .. })) => {
                self.failures += 1;
                if self.failures < TRIES {
                    self.deferred.push(pending);
                    return true;
                }
                self.last = None;
                false
            }
            None => true,
        }
    }

    /// What has to be asked for again.
    pub(crate) fn again(&mut self) -> Vec<Wish> {
        let deferred = std::mem::take(&mut self.deferred);
        deferred.into_iter().map(|p| self.evaluate(p)).collect()
    }

    fn evaluate(&mut self, pending: Pending) -> Wish {
        let few = DELTA_QUESTIONS.min(self.eval_questions);
        let (adapter, questions) = match &pending {
            Pending::Base => (None, self.eval_questions),
            Pending::DeltaBefore { state, .. } => (Some(state.clone()), few),
            Pending::DeltaAfter { with_delta, .. } => (Some(with_delta.clone()), few),
            Pending::Checkpoint { adapter, .. } => (Some(adapter.clone()), self.eval_questions),
        };
        let tag = self.next_tag;
        self.next_tag += 1;
        self.pending.insert(tag, pending);
        Wish::Evaluate {
            tag,
            adapter,
            questions,
        }
    }

    fn report(&self, round: Round, subject: Subject, questions: u64, before: u64, after: u64) -> Wish {
        Wish::Publish(Report {
            job: self.job.clone(),
            round,
            subject,
            questions,
            correct_before: before,
            correct_after: after,
        })
    }
}
