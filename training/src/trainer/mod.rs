//! One machine's GSPO: the model, its adapter, the optimizer and the training questions behind one handle.
//!
//! The node's trainer thread and `hanzod train` both drive it; it knows no network, clock (but to time itself) or
//! random source: a step is a function of adapter, moments, rows and public numbers.

mod error;
mod evaluate;
mod learner;
mod metrics;
mod plan;
pub(crate) mod replay;
mod rollout;
mod step;
mod update;

pub use error::{StepError, TrainerError};
pub use metrics::{Metrics, StepTime};
pub use plan::{Plan, Quantisation};
pub use rollout::Rollout;
pub use step::{Outcome, StepInput, StepReport};

use crate::data::Question;
use crate::memory::{DoesNotFit, Fit, Place, Requirements};
use crate::model::{Decoder, Loading, Precision};
use crate::optim::Moments;
use crate::reward::Rewards;
use crate::tokenizer::TextTokenizer;
use burn::tensor::Device;
use gym_protocol::job::spec::LrScheduler;
use gym_protocol::tensor::{LayoutError, TensorSet};
use learner::Learner;
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

/// A question with its prompt's tokens.
#[derive(Debug)]
struct Prepared {
    question: Question,
    text: String,
    tokens: Vec<u32>,
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
        if plan.gspo.lr_scheduler != LrScheduler::ConstantWithWarmup && plan.total_updates.is_none() {
            return Err(TrainerError::Horizon);
        }
        if plan.gspo.group_size < 2 {
            return Err(TrainerError::GroupSize(plan.gspo.group_size));
        }
        let loading = Loading {
            quantisation: plan.quantisation,
            precision: Precision::for_device(device),
        };
        let tokenizer = TextTokenizer::load(model_dir)?;
        let decoder = Decoder::load_as(model_dir, device, loading)?.drawing_below(tokenizer.id_limit());
        let (ours, models) = (tokenizer.vocab_size(), decoder.config().vocab_size);
        if ours > models {
            return Err(TrainerError::Vocabulary {
                tokenizer: ours,
                model: models,
            });
        }
        let rewards = Rewards::with_programs(&plan.rewards, plan.programs)?;
        let mut trainer = Self {
            learner: Learner::new(decoder, &plan)?,
            sampler: None,
            plan,
            tokenizer,
            rewards,
            questions: BTreeMap::new(),
            bad_steps: 0,
        };
        for question in train {
            let prepared = trainer.prepare(question)?;
            trainer.questions.insert(prepared.question.row, prepared);
        }
        Ok(trainer)
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

    /// Sets limits under which a step stays within `available` bytes: what does not fit at once is cut into smaller
    /// batches, and blocks are run again in the backward pass where that is not enough.
    ///
    /// # Errors
    /// When not even one sequence at a time fits; the limits are then as before.
    pub fn fit(&mut self, place: Place, available: u64) -> Result<Fit, DoesNotFit> {
        let longest = self.questions.values().map(|q| q.tokens.len()).max().unwrap_or(0);
        let config = self.learner.decoder.config();
        let fit =
            Requirements::new(config, &self.plan, place, longest as u64).fit(Limits::default(), available)?;
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

    fn prepare(&self, question: Question) -> Result<Prepared, StepError> {
        let tokens = self.tokenizer.encode_prompt(&question.prompt)?;
        let limit = self.plan.rollout.max_prompt_length;
        if tokens.len() > limit as usize {
            return Err(StepError::PromptLength {
                row: question.row,
                tokens: tokens.len(),
                limit,
            });
        }
        Ok(Prepared {
            text: question.prompt.text(),
            question,
            tokens,
        })
    }
}
