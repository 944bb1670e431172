//! One machine's GSPO: the model, its adapter, the optimizer and the training questions behind one handle.
//!
//! The node's trainer thread and `hanzod train` both drive it; it knows no network, clock (but to time itself) or
//! random source: a step is a function of adapter, moments, rows and public numbers.

mod error;
mod evaluate;
mod learner;
mod metrics;
mod plan;
mod ready;
pub(crate) mod replay;
mod rollout;
mod step;
mod update;

pub use error::{StepError, TrainerError};
pub use metrics::{Metrics, StepTime};
pub use plan::{Plan, Quantisation};
pub use ready::prompt_tokens;
pub use rollout::Rollout;
pub use step::{Outcome, StepInput, StepReport};

use crate::data::Question;
use crate::memory::{Budget, DoesNotFit, Fit};
use crate::model::{Decoder, LoadError, Loading, ModelConfig, Precision};
use crate::optim::Moments;
use crate::reward::Rewards;
use crate::tokenizer::TextTokenizer;
use burn::tensor::Device;
use gym_protocol::tensor::{LayoutError, TensorSet};
use learner::Learner;
use ready::{Prepared, Ready};
use std::collections::BTreeMap;
use std::path::Path;

/// What bounds memory; no effect on results but the order of sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Completions generated together.
    pub rollout_rows: usize,
    /// Tokens of one forward and backward pass; a shared prompt counts once.
    pub micro_batch_tokens: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            rollout_rows: 128,
            micro_batch_tokens: 8192,
        }
    }
}

/// A model in training.
#[derive(Debug)]
pub struct Trainer {
    plan: Plan,
    learner: Learner,
    /// Draws rollouts in place of the learner's own model.
    sampler: Option<Decoder>,
    tokenizer: TextTokenizer,
    rewards: Rewards,
    questions: BTreeMap<u64, Prepared>,
    bad_steps: u32,
}

impl Trainer {
    /// Loads model and tokenizer from a Hugging Face directory, encodes the training questions and makes the
    /// round-0 adapter from the plan's seed.
    ///
    /// # Errors
    /// Anything in model, tokenizer, plan or questions that cannot be used, said by name.
    pub fn new(
        plan: Plan,
        model_dir: &Path,
        device: &Device,
        train: Vec<Question>,
    ) -> Result<Self, TrainerError> {
        Ready::new(plan, model_dir, train)?.load(model_dir, device)
    }

    /// As [`Trainer::new`], with limits under which its work stays within `budget`. Nothing of the model is loaded when
    /// that cannot be.
    ///
    /// # Errors
    /// Those of [`Trainer::new`]; [`TrainerError::Memory`] when not even one sequence at a time fits.
    pub fn within(
        budget: Budget,
        plan: Plan,
        model_dir: &Path,
        device: &Device,
        train: Vec<Question>,
    ) -> Result<(Self, Fit), TrainerError> {
        let ready = Ready::new(plan, model_dir, train)?;
        let config = ModelConfig::load(model_dir).map_err(LoadError::from)?;
        ready.fit(&config, budget)?;
        let mut trainer = ready.load(model_dir, device)?;
        let fit = trainer.fit(budget)?;
        Ok((trainer, fit))
    }

    /// Draws rollouts from a second copy of the model, which computes in `precision`, as an inference engine beside the
    /// trainer does. `model_dir` is the model's. Training and evaluation stay with the first.
    ///
    /// # Errors
    /// Anything in the model that cannot be used.
    pub fn sample_in(&mut self, model_dir: &Path, precision: Precision) -> Result<(), TrainerError> {
        let loading = Loading {
            quantisation: self.plan.quantisation,
            precision,
        };
        let sampler = Decoder::load_as(model_dir, self.learner.decoder.device(), loading)?;
        self.sampler = Some(sampler.drawing_below(self.tokenizer.id_limit()));
        Ok(())
    }

    /// Sets what bounds memory.
    pub fn set_limits(&mut self, limits: Limits) {
        self.learner.limits = limits;
    }

    /// Sets limits under which work stays within the budget: what does not fit at once is cut into smaller batches, and
    /// blocks are run again in the backward pass where that is not enough.
    ///
    /// # Errors
    /// When not even one sequence at a time fits; the limits are then as before.
    pub fn fit(&mut self, budget: Budget) -> Result<Fit, DoesNotFit> {
        let fit = ready::fit(
            self.learner.decoder.config(),
            &self.plan,
            self.questions.values(),
            budget,
        )?;
        self.learner.limits = fit.limits;
        self.learner.spec.gradient_checkpointing = fit.checkpointing;
        Ok(fit)
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The frozen model.
    #[must_use]
    pub fn decoder(&self) -> &Decoder {
        &self.learner.decoder
    }

    /// The model's tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &TextTokenizer {
        &self.tokenizer
    }

    /// The job's reward functions.
    #[must_use]
    pub fn rewards(&self) -> &Rewards {
        &self.rewards
    }

    /// Training questions.
    #[must_use]
    pub fn questions(&self) -> usize {
        self.questions.len()
    }

    /// A training question's prompt as text.
    #[must_use]
    pub fn prompt(&self, row: u64) -> Option<&str> {
        Some(self.questions.get(&row)?.text.as_str())
    }

    /// The adapter under PEFT's names.
    #[must_use]
    pub fn adapter(&self) -> TensorSet {
        self.learner.adapter()
    }

    /// The adapter as one vector in name order (PROTOCOL section 6).
    #[must_use]
    pub fn flat_adapter(&self) -> &[f32] {
        &self.learner.flat
    }

    /// Replaces the adapter, as at a round's start. Moments stay.
    ///
    /// # Errors
    /// When names, shapes or lengths differ from the model's adapter.
    pub fn set_adapter(&mut self, adapter: &TensorSet) -> Result<(), StepError> {
        Ok(self.learner.set_adapter(adapter)?)
    }

    /// Replaces the adapter by a flat vector in name order. Moments stay.
    ///
    /// # Errors
    /// When the length differs.
    pub fn set_flat_adapter(&mut self, flat: &[f32]) -> Result<(), LayoutError> {
        self.learner.set_flat(flat)
    }

    /// The optimizer's state.
    #[must_use]
    pub fn moments(&self) -> &Moments {
        self.learner.optimizer.moments()
    }

    /// Continues from saved optimizer state.
    ///
    /// # Errors
    /// When its vectors are not as long as the adapter.
    pub fn set_moments(&mut self, moments: Moments) -> Result<(), LayoutError> {
        self.learner.set_moments(moments)
    }

    /// Zeroes the optimizer's state, as a joiner starts.
    pub fn reset_moments(&mut self) {
        self.learner.reset_moments();
    }

    /// Says how many updates the job has taken before the next one, where they are not this optimizer's own: a falling
    /// learning rate goes by them.
    pub fn set_job_updates(&mut self, updates: u64) {
        self.learner.set_job_updates(updates);
    }

    fn question(&self, row: u64) -> Result<&Prepared, StepError> {
        self.questions.get(&row).ok_or(StepError::Row {
            row,
            questions: self.questions.len(),
        })
    }
}
