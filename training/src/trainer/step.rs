//! One GSPO step.

use super::metrics::{self, Metrics, StepTime};
use super::update::{Role, TrainRow, Updates};
use super::{Rollout, StepError, Trainer};
use crate::generate::GenerateError;
use crate::gspo::{active, advantages};
use crate::reward::Scored;
use crate::sampling::{RolloutKey, derive_key};
use std::time::Instant;

/// Which questions to train on, and under which public numbers.
#[derive(Clone, Copy, Debug)]
pub struct StepInput<'a> {
    /// Rows of the training questions, `prompts_per_step` of them.
    pub rows: &'a [u64],
    /// The round's noise key.
    pub key: &'a RolloutKey,
    /// Local step of the round, from 0.
    pub step: u32,
}

/// What a step did.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// By TRL's names.
    pub metrics: Metrics,
    /// The completions, groups in a row.
    pub rollouts: Vec<Rollout>,
    /// Their judgement by function, in the same order.
    pub scores: Vec<Scored>,
    /// Their advantages.
    pub advantages: Vec<f64>,
    /// Completion tokens drawn.
    pub tokens: usize,
    /// Whether the adapter moved.
    pub outcome: Outcome,
    /// Where the time went.
    pub time: StepTime,
}

/// Whether a step's updates were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Adapter and moments moved.
    Updated,
    /// Something was not finite; adapter and moments are as before the step.
    Skipped {
        /// What was not finite.
        what: &'static str,
        /// Such steps in a row, this one included.
        in_a_row: u32,
    },
}

impl Trainer {
    /// One GSPO step: draws a group of completions for every row, judges them, updates the adapter.
    ///
    /// A step whose logits, loss, gradient or adapter is not finite changes nothing and is reported as skipped.
    ///
    /// # Errors
    /// A row that does not exist; text that cannot be decoded; `max_bad_steps` skipped steps in a row.
    pub fn step(&mut self, input: &StepInput<'_>) -> Result<StepReport, StepError> {
        let mut report = StepReport::new();
        let lora = self.learner.lora()?;
        let started = Instant::now();
        let drawn = match self.roll_out(&lora, input) {
            Err(StepError::Generate(GenerateError::NonFinite { .. })) => return self.skip("logits", report),
            drawn => drawn?,
        };
        report.time.rollout = started.elapsed();
        let started = Instant::now();
        let rollouts = self.judge(&drawn)?;
        drop(drawn);
        report.time.reward = started.elapsed();
        let rewards: Vec<Option<f64>> = rollouts.all.iter().map(|r| r.reward).collect();
        let spec = &self.plan.gspo;
        let advantages = advantages(&rewards, spec.group_size as usize, spec.scale_rewards);
        metrics::of_rollouts(&mut report.metrics, &rollouts, &self.rewards, &advantages);
        report.tokens = rollouts.all.iter().map(|r| r.tokens.len()).sum();
        report.rollouts = rollouts.all;
        report.scores = rollouts.scores;
        report.advantages = advantages.values;
        let started = Instant::now();
        let outcome = self.learn(&report.rollouts, &report.advantages, input);
        report.time.train = started.elapsed();
        metrics::of_time(&mut report.metrics, &report.time);
        match outcome {
            Ok(updates) => {
                self.bad_steps = 0;
                metrics::of_updates(&mut report.metrics, &updates, self.plan.gspo.beta);
                Ok(report)
            }
            Err(StepError::NonFinite { what }) => self.skip(what, report),
            Err(other) => Err(other),
        }
    }

    fn learn(
        &mut self,
        rollouts: &[Rollout],
        advantages: &[f64],
        input: &StepInput<'_>,
    ) -> Result<Updates, StepError> {
        let prompts: Vec<Vec<u32>> = rollouts
            .iter()
            .map(|r| self.question(r.row).map(|q| q.tokens.clone()))
            .collect::<Result<_, _>>()?;
        let mask_truncated = self.plan.gspo.mask_truncated;
        let kl = self.plan.gspo.beta > 0.0;
        let eos = self.tokenizer.eos_ids();
        let rows: Vec<TrainRow<'_>> = rollouts
            .iter()
            .zip(&prompts)
            .zip(advantages)
            .map(|((rollout, prompt), advantage)| {
                let completion = active(&rollout.tokens, eos);
                TrainRow {
                    prompt,
                    completion,
                    advantages: vec![*advantage; completion.len()],
                    role: match rollout.reward {
                        // What could not be judged trains nothing, not even through the KL term.
                        None => Role::Masked,
                        Some(_) if rollout.truncated && mask_truncated => Role::Masked,
                        Some(_) if *advantage == 0.0 && !kl => Role::Idle,
                        Some(_) => Role::Active,
                    },
                    sampled: &rollout.log_probs,
                }
            })
            .collect();
        let seed = self.plan.seed.to_le_bytes();
        let shuffle = derive_key(&[
            b"gym/shuffle/v1",
            &seed,
            &input.key.beacon,
            &input.step.to_le_bytes(),
        ]);
        self.learner.update(&rows, shuffle)
    }

    fn skip(&mut self, what: &'static str, mut report: StepReport) -> Result<StepReport, StepError> {
        self.bad_steps += 1;
        let in_a_row = self.bad_steps;
        report.metrics.insert("bad_steps".to_owned(), f64::from(in_a_row));
        tracing::warn!(what, in_a_row, "a step was not finite and is skipped");
        if in_a_row >= self.plan.gspo.max_bad_steps {
            return Err(StepError::TooManyBadSteps {
                count: in_a_row,
                what,
                rollouts: report.rollouts,
            });
        }
        report.outcome = Outcome::Skipped { what, in_a_row };
        Ok(report)
    }
}

impl StepReport {
    fn new() -> Self {
        Self {
            metrics: Metrics::new(),
            rollouts: Vec::new(),
            scores: Vec::new(),
            advantages: Vec::new(),
            tokens: 0,
            outcome: Outcome::Updated,
            time: StepTime::default(),
        }
    }
}
