//! The frozen model, the adapter and its optimizer: what an update changes and reads.

use super::{Limits, Plan, StepError};
use crate::lora::{Lora, LoraError};
use crate::model::Decoder;
use crate::optim::{AdamW, AdamWConfig, Moments, Schedule};
use gym_protocol::job::spec::{GspoSpec, LoraSpec};
use gym_protocol::tensor::{LayoutError, TensorSet};

/// A model whose adapter is being trained. Its updates are in `update.rs`.
#[derive(Debug)]
pub(super) struct Learner {
    pub(super) decoder: Decoder,
    pub(super) spec: GspoSpec,
    pub(super) temperature: f64,
    pub(super) max_completion_length: usize,
    pub(super) limits: Limits,
    /// The adapter's values in name order.
    pub(super) flat: Vec<f32>,
    pub(super) optimizer: AdamW,
    schedule: Schedule,
    /// Updates the job had taken when this optimizer's moments were zero.
    ahead: u64,
    lora: LoraSpec,
    /// The adapter's names and shapes.
    layout: TensorSet,
}

impl Learner {
    /// With the round-0 adapter of the plan's seed and zero moments.
    pub(super) fn new(decoder: Decoder, plan: &Plan) -> Result<Self, LoraError> {
        let layout = Lora::init(&decoder, &plan.lora, plan.seed)?.to_tensors();
        let flat = layout.flatten();
        Ok(Self {
            decoder,
            spec: plan.gspo.clone(),
            temperature: plan.rollout.temperature,
            max_completion_length: plan.rollout.max_completion_length as usize,
            limits: Limits::default(),
            optimizer: AdamW::new(AdamWConfig::from(&plan.gspo), flat.len()),
            flat,
            schedule: Schedule {
                rate: plan.gspo.learning_rate,
                scheduler: plan.gspo.lr_scheduler,
                warmup: plan.gspo.warmup_steps,
                total: plan.total_updates,
            },
            ahead: 0,
            lora: plan.lora.clone(),
            layout,
        })
    }

    /// The next update's learning rate.
    pub(super) fn learning_rate(&self) -> f64 {
        let own = self.optimizer.moments().updates;
        self.schedule.at(own, own.saturating_add(self.ahead))
    }

    /// The job has taken `updates` before the next one.
    pub(super) fn set_job_updates(&mut self, updates: u64) {
        self.ahead = updates.saturating_sub(self.optimizer.moments().updates);
    }

    pub(super) fn adapter(&self) -> TensorSet {
        // The flat vector has the layout's length throughout, so this cannot fail.
        self.layout.with_flat(&self.flat).unwrap_or_default()
    }

    pub(super) fn set_adapter(&mut self, adapter: &TensorSet) -> Result<(), LoraError> {
        Lora::from_tensors(&self.decoder, &self.lora, adapter)?;
        self.flat = adapter.flatten();
        Ok(())
    }

    pub(super) fn set_flat(&mut self, flat: &[f32]) -> Result<(), LayoutError> {
        self.layout.with_flat(flat)?;
        self.flat = flat.to_vec();
        Ok(())
    }

    pub(super) fn set_moments(&mut self, moments: Moments) -> Result<(), LayoutError> {
        for part in [&moments.m, &moments.v] {
            self.layout.with_flat(part)?;
        }
        self.optimizer.set_moments(moments);
        Ok(())
    }

    pub(super) fn reset_moments(&mut self) {
        self.optimizer.set_moments(Moments::zeros(self.flat.len()));
    }

    /// The adapter on the device, without gradients.
    pub(super) fn lora(&self) -> Result<Lora, StepError> {
        Ok(Lora::from_tensors(&self.decoder, &self.lora, &self.adapter())?)
    }
}
