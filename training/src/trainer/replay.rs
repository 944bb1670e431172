//! Updates on completions that were drawn elsewhere: what reference numbers are compared with.

use super::learner::Learner;
use super::update::{Role, TrainRow};
use super::{Plan, StepError};
use crate::adapter::Adapter;
use crate::gspo::LossMetrics;
use crate::model::Decoder;
use gym_protocol::tensor::TensorSet;

/// A rollout batch with its advantages.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) prompts: Vec<Vec<u32>>,
    pub(crate) completions: Vec<Vec<u32>>,
    /// One a completion.
    pub(crate) advantages: Vec<f64>,
}

/// What some updates made.
#[derive(Debug)]
pub(crate) struct Replayed {
    pub(crate) losses: Vec<f64>,
    /// Before clipping.
    pub(crate) grad_norms: Vec<f64>,
    /// Summed over the updates.
    pub(crate) metrics: LossMetrics,
    pub(crate) adapter: TensorSet,
    /// AdamW's first moments, under the adapter's names.
    pub(crate) first_moments: TensorSet,
}

/// The plan's updates (`num_iterations`) of `adapter` on `batch`.
pub(crate) fn replay(
    decoder: &Decoder,
    plan: &Plan,
    adapter: &Adapter,
    batch: &Batch,
) -> Result<Replayed, StepError> {
    let mut learner = Learner::new(decoder.clone(), plan)?;
    learner.set_adapter(&adapter.tensors)?;
    let rows: Vec<TrainRow<'_>> = batch
        .prompts
        .iter()
        .zip(&batch.completions)
        .zip(&batch.advantages)
        .map(|((prompt, completion), advantage)| TrainRow {
            prompt,
            completion,
            advantages: vec![*advantage; completion.len()],
            role: Role::Active,
            sampled: &[],
        })
        .collect();
    let updates = learner.update(&rows, [0, 0])?;
    let adapter = learner.adapter();
    let first_moments = adapter
        .with_flat(&learner.optimizer.moments().m)
        .unwrap_or_default();
    Ok(Replayed {
        losses: updates.each.iter().map(|u| u.loss).collect(),
        grad_norms: updates.each.iter().map(|u| u.grad_norm).collect(),
        metrics: updates.metrics,
        adapter,
        first_moments,
    })
}
