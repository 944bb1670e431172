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
        with_delta: Arc<TensorSet>,
    },
    DeltaAfter {
        round: Round,
        entry: Entry,
        before: u64,
    },
    Checkpoint {
        round: Round,
        cid: CidBytes,
    },
}

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
    /// The last checkpoint, if the job is done before the base has been evaluated.
    last: Option<(Round, CidBytes, Arc<TensorSet>)>,
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
            last: None,
        }
    }

    /// Model and questions are loaded: the base comes first.
    pub(crate) fn on_loaded(&mut self) -> Wish {
        let questions = self.eval_questions;
        self.evaluate(Pending::Base, None, questions)
    }

    /// A round has closed: one of its deltas may be looked at. Which one follows from the roster's hash, which nobody
    /// chose alone.
    pub(crate) fn on_close(&mut self, manifest: &Manifest) -> Option<Wish> {
        if self.busy || manifest.entries.is_empty() {
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
        let before = Arc::new(state.adapter.clone());
        let pending = Pending::DeltaBefore {
            round,
            entry,
            with_delta: Arc::new(with_delta),
        };
        Some(self.evaluate(pending, Some(before), DELTA_QUESTIONS.min(self.eval_questions)))
    }

    /// It could not be had.
    pub(crate) fn on_delta_failed(&mut self) {
        self.busy = false;
    }

    /// The job is done and its last checkpoint is here.
    pub(crate) fn on_last(&mut self, round: Round, cid: CidBytes, adapter: Arc<TensorSet>) -> Option<Wish> {
        if self.base.is_none() {
            self.last = Some((round, cid, adapter));
            return None;
        }
        let questions = self.eval_questions;
        Some(self.evaluate(Pending::Checkpoint { round, cid }, Some(adapter), questions))
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
            }) => {
                let asked = DELTA_QUESTIONS.min(self.eval_questions);
                vec![self.evaluate(
                    Pending::DeltaAfter {
                        round,
                        entry,
                        before: correct,
                    },
                    Some(with_delta),
                    asked,
                )]
            }
            Some(Pending::DeltaAfter { round, entry, before }) => {
                self.busy = false;
                let subject = Subject::Delta {
                    member: entry.member,
                    cid: entry.cid,
                };
                vec![self.report(round, subject, questions, before, correct)]
            }
            Some(Pending::Checkpoint { round, cid }) => {
                let before = self.base.map_or(0, |(correct, _)| correct);
                vec![self.report(round, Subject::Checkpoint { cid }, questions, before, correct)]
            }
            None => Vec::new(),
        }
    }

    /// An evaluation failed.
    pub(crate) fn on_failed(&mut self, tag: u64) {
        if matches!(
            self.pending.remove(&tag),
            Some(Pending::DeltaBefore { .. } | Pending::DeltaAfter { .. })
        ) {
            self.busy = false;
        }
    }

    fn evaluate(&mut self, pending: Pending, adapter: Option<Arc<TensorSet>>, questions: usize) -> Wish {
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
