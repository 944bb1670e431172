//! Optimizer updates from one rollout batch.

use super::StepError;
use super::learner::Learner;
use crate::gspo::log_probs::{Keep, LogProbs, Sequence, log_probs};
use crate::gspo::{Denominators, LossConfig, LossMetrics, LossRow, loss};
use crate::lora::Lora;
use crate::sampling::{Key, units};
use gym_protocol::job::spec::LossType;
use std::collections::BTreeSet;

/// A completion ready for training.
pub(super) struct TrainRow<'a> {
    pub(super) prompt: &'a [u32],
    pub(super) completion: &'a [u32],
    /// The advantage, once a token.
    pub(super) advantages: Vec<f64>,
    pub(super) role: Role,
    /// The sampler's log-probabilities.
    pub(super) sampled: &'a [f32],
}

/// What a row does in the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Has a gradient.
    Active,
    /// Its gradient is exactly zero (no advantage, no KL term), so the model is not run on it.
    Idle,
    /// Masked out whole; it still counts in the denominators.
    Masked,
}

impl TrainRow<'_> {
    /// Tokens that count.
    fn active_tokens(&self) -> usize {
        match self.role {
            Role::Active | Role::Idle => self.completion.len(),
            Role::Masked => 0,
        }
    }
}

/// What the updates did.
#[derive(Clone, Debug, Default)]
pub(super) struct Updates {
    pub(super) each: Vec<Update>,
    /// Summed over the updates.
    pub(super) metrics: LossMetrics,
    /// Σ exp(log π_old − log π_sampler) over `ratio_tokens` tokens.
    pub(super) ratio_sum: f64,
    pub(super) ratio_tokens: usize,
}

/// One optimizer update.
#[derive(Clone, Copy, Debug)]
pub(super) struct Update {
    pub(super) loss: f64,
    /// Before clipping.
    pub(super) grad_norm: f64,
    pub(super) learning_rate: f64,
}

/// Log-probabilities that stay fixed over the updates, one row a completion.
struct Fixed {
    /// `None` for rows of the first update until it is taken: old is new there, detached.
    old: Vec<Option<Vec<f64>>>,
    reference: Option<Vec<Vec<f64>>>,
}

impl Learner {
    /// μ passes over the rows in minibatches, cut after a shuffle under `shuffle`. Either all updates are taken, or
    /// an error leaves adapter and moments as they were.
    pub(super) fn update(&mut self, rows: &[TrainRow<'_>], shuffle: Key) -> Result<Updates, StepError> {
        let before = (self.flat.clone(), self.optimizer.moments().clone());
        let result = self.passes(rows, shuffle);
        if result.is_err() {
            self.flat = before.0;
            self.optimizer.set_moments(before.1);
        }
        result
    }

    fn passes(&mut self, rows: &[TrainRow<'_>], shuffle: Key) -> Result<Updates, StepError> {
        let (iterations, minibatches) = (self.spec.num_iterations, self.spec.minibatches as usize);
        let mut order: Vec<usize> = (0..rows.len()).collect();
        if minibatches > 1 {
            permute(&mut order, shuffle);
        }
        let size = rows.len().div_ceil(minibatches).max(1);
        let mut fixed = self.fixed(rows, order.get(size..).unwrap_or_default())?;
        let mut updates = Updates::default();
        for _ in 0..iterations {
            for part in order.chunks(size) {
                self.one_update(rows, part, &mut fixed, &mut updates)?;
            }
        }
        Ok(updates)
    }

    /// `later`: rows that the first update does not take.
    #[tracing::instrument(level = "debug", name = "fixed_log_probs", skip_all)]
    fn fixed(&self, rows: &[TrainRow<'_>], later: &[usize]) -> Result<Fixed, StepError> {
        let all: Vec<usize> = (0..rows.len()).collect();
        let over = |lora: Option<&Lora>, some: &[usize]| {
            let mut out = vec![None; rows.len()];
            for micro in self.micro_batches(rows, some) {
                let log_probs = self.forward(lora, rows, &micro, Keep::All);
                for (i, row) in micro.iter().zip(log_probs.rows) {
                    out[*i] = Some(row);
                }
            }
            out
        };
        let lora = self.lora()?;
        let reference = (self.spec.beta > 0.0).then(|| over(None, &all));
        Ok(Fixed {
            old: over(Some(&lora), later),
            reference: reference.map(|rows| rows.into_iter().map(Option::unwrap_or_default).collect()),
        })
    }

    fn one_update(
        &mut self,
        rows: &[TrainRow<'_>],
        part: &[usize],
        fixed: &mut Fixed,
        updates: &mut Updates,
    ) -> Result<(), StepError> {
        let config = LossConfig::from(&self.spec);
        let lora = self.lora()?.tracked();
        let mut gradient = vec![0f32; self.flat.len()];
        let mut value = 0.0;
        for (denominators, micro) in self.parts(rows, part) {
            let _span = tracing::debug_span!("train").entered();
            let log_probs = self.forward(Some(&lora), rows, &micro, self.keep());
            let loss_rows: Vec<LossRow<'_>> = micro
                .iter()
                .zip(&log_probs.rows)
                .map(|(i, new)| LossRow {
                    new,
                    old: fixed.old[*i].as_ref().unwrap_or(new),
                    reference: fixed.reference.as_ref().map(|r| r[*i].as_slice()),
                    advantages: &rows[*i].advantages,
                })
                .collect();
            let loss = loss(&config, &denominators, &loss_rows).scaled(self.minibatch_share());
            for (i, row) in micro.iter().zip(&loss_rows) {
                updates.add_sampling_ratios(row.old, rows[*i].sampled);
            }
            value += loss.value;
            updates.metrics.add(&loss.metrics);
            for (i, new) in micro.iter().zip(&log_probs.rows) {
                fixed.old[*i].get_or_insert_with(|| new.clone());
            }
            self.accumulate(&lora, rows, &micro, log_probs, &loss.gradient, &mut gradient);
        }
        updates.metrics.add(&quiet_metrics(
            &config,
            &self.denominators(rows, part),
            rows,
            part,
        ));
        if !value.is_finite() {
            return Err(StepError::NonFinite { what: "loss" });
        }
        updates.each.push(self.apply(&gradient, value)?);
        Ok(())
    }

    /// Adds one micro-batch's ∂L/∂adapter to `total`.
    fn accumulate(
        &self,
        lora: &Lora,
        rows: &[TrainRow<'_>],
        micro: &[usize],
        log_probs: LogProbs,
        by_log_prob: &[Vec<f64>],
        total: &mut [f32],
    ) {
        let sequences = sequences(rows, micro);
        let gradients = log_probs.backward(&self.decoder, lora, &sequences, by_log_prob, self.temperature);
        let flat = gradients.0.values().flat_map(|t| &t.data);
        for (sum, g) in total.iter_mut().zip(flat) {
            *sum += g;
        }
    }

    fn apply(&mut self, gradient: &[f32], loss: f64) -> Result<Update, StepError> {
        let learning_rate = self.learning_rate();
        let grad_norm = self
            .optimizer
            .update(&mut self.flat, gradient, learning_rate)
            .map_err(|_| StepError::NonFinite { what: "gradient" })?;
        if self.flat.iter().any(|v| !v.is_finite()) {
            return Err(StepError::NonFinite { what: "adapter" });
        }
        Ok(Update {
            loss,
            grad_norm,
            learning_rate,
        })
    }

    fn forward(&self, lora: Option<&Lora>, rows: &[TrainRow<'_>], micro: &[usize], keep: Keep) -> LogProbs {
        log_probs(
            &self.decoder,
            lora,
            &sequences(rows, micro),
            self.temperature,
            keep,
        )
    }

    fn keep(&self) -> Keep {
        if self.spec.gradient_checkpointing {
            Keep::BlockInputs
        } else {
            Keep::All
        }
    }

    /// A minibatch's micro-batches: parts whose losses are averaged, each cut so that it fits in memory.
    fn parts(&self, rows: &[TrainRow<'_>], minibatch: &[usize]) -> Vec<(Denominators, Vec<usize>)> {
        let parts = self.spec.gradient_accumulation_steps.max(1) as usize;
        let size = minibatch.len().div_ceil(parts).max(1);
        let micro_batches = |part: &[usize]| {
            let denominators = self.denominators(rows, part).accumulated(parts);
            let micro = self.micro_batches(rows, part).into_iter();
            micro.map(move |micro| (denominators, micro)).collect::<Vec<_>>()
        };
        minibatch.chunks(size).flat_map(micro_batches).collect()
    }

    /// What dapo's sum over the whole rollout batch is multiplied by, so that a minibatch's gradient does not shrink with
    /// their number (TRL divides by the batch's tokens × accumulation / steps per generation).
    fn minibatch_share(&self) -> f64 {
        match self.spec.loss_type {
            LossType::Dapo => f64::from(self.spec.minibatches),
            LossType::Grpo | LossType::Bnpo | LossType::DrGrpo => 1.0,
        }
    }

    /// Active rows of `part`, cut so that no micro-batch has more tokens than the limit.
    fn micro_batches(&self, rows: &[TrainRow<'_>], part: &[usize]) -> Vec<Vec<usize>> {
        let mut all: Vec<Vec<usize>> = Vec::new();
        let mut prompts: BTreeSet<&[u32]> = BTreeSet::new();
        let mut tokens = 0;
        for i in part.iter().copied().filter(|i| rows[*i].role == Role::Active) {
            let (prompt, completion) = (rows[i].prompt, rows[i].completion.len());
            let added = if prompts.contains(prompt) {
                completion
            } else {
                prompt.len() + completion
            };
            match all.last_mut() {
                Some(micro) if tokens + added <= self.limits.micro_batch_tokens => {
                    micro.push(i);
                    tokens += added;
                }
                _ => {
                    all.push(vec![i]);
                    prompts.clear();
                    tokens = prompt.len() + completion;
                }
            }
            prompts.insert(prompt);
        }
        all
    }

    fn denominators(&self, rows: &[TrainRow<'_>], part: &[usize]) -> Denominators {
        Denominators {
            rows: part.len(),
            minibatch_tokens: part.iter().map(|i| rows[*i].active_tokens()).sum(),
            rollout_tokens: rows.iter().map(TrainRow::active_tokens).sum(),
            max_completion_length: self.max_completion_length,
        }
    }
}

impl Updates {
    fn add_sampling_ratios(&mut self, old: &[f64], sampled: &[f32]) {
        self.ratio_tokens += old.len();
        let ratios = old
            .iter()
            .zip(sampled)
            .map(|(old, s)| (old - f64::from(*s)).clamp(-20.0, 20.0).exp());
        self.ratio_sum += ratios.sum::<f64>();
    }
}

/// What rows without a gradient add to the metrics: a ratio of one, unclipped.
fn quiet_metrics(
    config: &LossConfig,
    denominators: &Denominators,
    rows: &[TrainRow<'_>],
    part: &[usize],
) -> LossMetrics {
    let quiet: Vec<Vec<f64>> = part
        .iter()
        .filter(|i| rows[**i].role != Role::Active)
        .map(|i| vec![0.0; rows[*i].active_tokens()])
        .collect();
    let rows: Vec<LossRow<'_>> = quiet
        .iter()
        .map(|zeros| LossRow {
            new: zeros,
            old: zeros,
            reference: None,
            advantages: zeros,
        })
        .collect();
    loss(config, denominators, &rows).metrics
}

fn sequences<'a>(rows: &[TrainRow<'a>], micro: &[usize]) -> Vec<Sequence<'a>> {
    let one = |i: &usize| Sequence {
        prompt: rows[*i].prompt,
        completion: rows[*i].completion,
    };
    micro.iter().map(one).collect()
}

/// Fisher and Yates's shuffle, from one stream of numbers.
fn permute(order: &mut [usize], key: Key) {
    let count = order.len();
    for (i, u) in (1..count).rev().zip(units(key, count)) {
        order.swap(i, (u * (i + 1) as f64) as usize);
    }
}

#[cfg(test)]
mod tests;
