//! One machine's GSPO: the model, its adapter, the optimizer and the training questions behind one handle.
//!
//! The node's trainer thread and `hanzod train` both drive it; it knows no network, clock (but to time itself) or
//! random source: a step is a function of adapter, moments, rows and public numbers.

mod evaluate;
mod learner;
mod metrics;
mod plan;
mod rollout;
mod update;

pub use evaluate::{Answer, EvalReport};
pub use metrics::{Metrics, StepTime};
pub use plan::{Plan, Quantisation};
pub use rollout::Rollout;

use crate::data::Question;
use crate::eval::EvalError;
use crate::generate::GenerateError;
use crate::gspo::advantages;
use crate::lora::LoraError;
use crate::model::{Decoder, LoadError};
use crate::optim::Moments;
use crate::reward::{RewardConfigError, Rewards};
use crate::sampling::{RolloutKey, derive_key};
use crate::tokenizer::{EncodeError, TextTokenizer, TokenizerError};
use burn::tensor::Device;
use gym_protocol::tensor::{LayoutError, TensorSet};
use learner::Learner;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;
use update::{Role, TrainRow};

/// What bounds memory; no effect on results but the order of sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Completions generated together.
    pub rollout_rows: usize,
    /// Places, padding included, of one forward and backward pass.
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

/// Why a trainer cannot start.
#[derive(Debug, thiserror::Error)]
pub enum TrainerError {
    /// The model.
    #[error(transparent)]
    Model(#[from] LoadError),
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The reward functions.
    #[error(transparent)]
    Rewards(#[from] RewardConfigError),
    /// The adapter's targets.
    #[error(transparent)]
    Adapter(#[from] LoraError),
    /// A training question.
    #[error(transparent)]
    Question(#[from] StepError),
    /// The plan asks for what this build has not.
    #[error(
        "use_4bit is true, and this build holds weights in f32 only; set use_4bit = false in the job file"
    )]
    Quantisation,
    /// The tokenizer makes ids that the model does not know.
    #[error("the tokenizer has {tokenizer} ids and the model {model}; they are not one model's files")]
    Vocabulary {
        /// The tokenizer's.
        tokenizer: usize,
        /// The model's.
        model: usize,
    },
}

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

/// Why a step cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// No such training question.
    #[error("there is no training question {row}; the file has {questions}")]
    Row {
        /// The row asked for.
        row: u64,
        /// Questions there are.
        questions: usize,
    },
    /// A question's text cannot be encoded, or a completion decoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// A prompt is too long.
    #[error(
        "question {row} has a prompt of {tokens} tokens; rollout.max_prompt_length is {limit}: raise it or drop the question"
    )]
    PromptLength {
        /// The question's row.
        row: u64,
        /// Its prompt's tokens.
        tokens: usize,
        /// The limit.
        limit: u32,
    },
    /// Generation failed.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// Evaluation failed.
    #[error(transparent)]
    Evaluate(#[from] EvalError),
    /// The adapter does not fit the model.
    #[error(transparent)]
    Adapter(#[from] LoraError),
    /// Loss, gradient or adapter is not finite.
    #[error("the {what} is not finite")]
    NonFinite {
        /// Which.
        what: &'static str,
    },
    /// Too many such steps in a row.
    #[error(
        "{count} steps in a row were not finite ({what}); lower the learning rate or look at the saved batch"
    )]
    TooManyBadSteps {
        /// How many.
        count: u32,
        /// What was not finite in the last one.
        what: &'static str,
        /// The last batch, for inspection; empty when generation itself failed.
        rollouts: Vec<Rollout>,
    },
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
        if plan.quantisation == Quantisation::Nf4 {
            return Err(TrainerError::Quantisation);
        }
        let decoder = Decoder::load(model_dir, device)?;
        let tokenizer = TextTokenizer::load(model_dir)?;
        let (ours, models) = (tokenizer.vocab_size(), decoder.config().vocab_size);
        if ours > models {
            return Err(TrainerError::Vocabulary {
                tokenizer: ours,
                model: models,
            });
        }
        let rewards = Rewards::from_specs(&plan.rewards)?;
        let mut trainer = Self {
            learner: Learner::new(decoder, &plan, tokenizer.pad_id())?,
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

    /// Sets what bounds memory.
    pub fn set_limits(&mut self, limits: Limits) {
        self.learner.limits = limits;
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

    /// Training questions.
    #[must_use]
    pub fn questions(&self) -> usize {
        self.questions.len()
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

    /// One GSPO step: draws a group of completions for every row, judges them, updates the adapter.
    ///
    /// A step whose logits, loss, gradient or adapter is not finite changes nothing and is reported as skipped.
    ///
    /// # Errors
    /// A row that does not exist; text that cannot be decoded; `max_bad_steps` skipped steps in a row.
    pub fn step(&mut self, input: &StepInput<'_>) -> Result<StepReport, StepError> {
        let mut time = StepTime::default();
        let lora = self.learner.lora()?;
        let started = Instant::now();
        let drawn = match self.roll_out(&lora, input) {
            Err(StepError::Generate(GenerateError::NonFinite { .. })) => {
                return self.skip("logits", Metrics::new(), Vec::new(), time);
            }
            drawn => drawn?,
        };
        time.rollout = started.elapsed();
        let started = Instant::now();
        let rollouts = self.judge(&drawn)?;
        drop(drawn);
        time.reward = started.elapsed();
        let rewards: Vec<Option<f64>> = rollouts.all.iter().map(|r| r.reward).collect();
        let spec = &self.plan.gspo;
        let advantages = advantages(&rewards, spec.group_size as usize, spec.scale_rewards);
        let mut metrics = Metrics::new();
        metrics::of_rollouts(&mut metrics, &rollouts, &self.rewards, &advantages);
        let started = Instant::now();
        let outcome = self.learn(&rollouts.all, &advantages.values, input);
        time.train = started.elapsed();
        metrics::of_time(&mut metrics, &time);
        match outcome {
            Ok(updates) => {
                self.bad_steps = 0;
                metrics::of_updates(&mut metrics, &updates, self.plan.gspo.beta);
                Ok(StepReport {
                    tokens: rollouts.all.iter().map(|r| r.tokens.len()).sum(),
                    metrics,
                    rollouts: rollouts.all,
                    outcome: Outcome::Updated,
                    time,
                })
            }
            Err(StepError::NonFinite { what }) => self.skip(what, metrics, rollouts.all, time),
            Err(other) => Err(other),
        }
    }

    fn learn(
        &mut self,
        rollouts: &[Rollout],
        advantages: &[f64],
        input: &StepInput<'_>,
    ) -> Result<update::Updates, StepError> {
        let prompts: Vec<Vec<u32>> = rollouts
            .iter()
            .map(|r| self.question(r.row).map(|q| q.tokens.clone()))
            .collect::<Result<_, _>>()?;
        let mask_truncated = self.plan.gspo.mask_truncated;
        let kl = self.plan.gspo.beta > 0.0;
        let rows: Vec<TrainRow<'_>> = rollouts
            .iter()
            .zip(&prompts)
            .zip(advantages)
            .map(|((rollout, prompt), advantage)| TrainRow {
                prompt,
                completion: &rollout.tokens,
                advantages: vec![*advantage; rollout.tokens.len()],
                role: match rollout.truncated && mask_truncated {
                    true => Role::Masked,
                    false if *advantage == 0.0 && !kl => Role::Idle,
                    false => Role::Active,
                },
                sampled: &rollout.log_probs,
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

    fn skip(
        &mut self,
        what: &'static str,
        mut metrics: Metrics,
        rollouts: Vec<Rollout>,
        time: StepTime,
    ) -> Result<StepReport, StepError> {
        self.bad_steps += 1;
        metrics.insert("bad_steps".to_owned(), f64::from(self.bad_steps));
        tracing::warn!(
            what,
            in_a_row = self.bad_steps,
            "a step was not finite and is skipped"
        );
        if self.bad_steps >= self.plan.gspo.max_bad_steps {
            return Err(StepError::TooManyBadSteps {
                count: self.bad_steps,
                what,
                rollouts,
            });
        }
        Ok(StepReport {
            metrics,
            tokens: rollouts.iter().map(|r| r.tokens.len()).sum(),
            rollouts,
            outcome: Outcome::Skipped {
                what,
                in_a_row: self.bad_steps,
            },
            time,
        })
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
