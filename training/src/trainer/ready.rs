//! What a trainer has before a weight is read: tokenizer, rewards and encoded questions.

use super::learner::Learner;
use super::{Limits, Plan, StepError, Trainer, TrainerError};
use crate::data::Question;
use crate::memory::{Budget, DoesNotFit, Fit, Requirements};
use crate::model::{Decoder, Loading, ModelConfig, Precision};
use crate::reward::Rewards;
use crate::tokenizer::TextTokenizer;
use burn::tensor::Device;
use gym_protocol::job::spec::LrScheduler;
use std::collections::BTreeMap;
use std::path::Path;

/// A question with its prompt's tokens.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) question: Question,
    pub(super) text: String,
    pub(super) tokens: Vec<u32>,
}

/// Everything but the model.
pub(super) struct Ready {
    plan: Plan,
    tokenizer: TextTokenizer,
    rewards: Rewards,
    questions: BTreeMap<u64, Prepared>,
}

impl Ready {
    pub(super) fn new(plan: Plan, model_dir: &Path, train: Vec<Question>) -> Result<Self, TrainerError> {
        if plan.gspo.lr_scheduler != LrScheduler::ConstantWithWarmup && plan.total_updates.is_none() {
            return Err(TrainerError::Horizon);
        }
        if plan.gspo.group_size < 2 {
            return Err(TrainerError::GroupSize(plan.gspo.group_size));
        }
        let tokenizer = TextTokenizer::load(model_dir)?;
        let rewards = Rewards::with_programs(&plan.rewards, plan.programs)?;
        let limit = plan.rollout.max_prompt_length;
        let questions = train
            .into_iter()
            .map(|question| Ok((question.row, prepare(&tokenizer, question, limit)?)))
            .collect::<Result<_, StepError>>()?;
        Ok(Self {
            plan,
            tokenizer,
            rewards,
            questions,
        })
    }

    /// Whether the model of this configuration can be trained within `budget`.
    pub(super) fn fit(&self, config: &ModelConfig, budget: Budget) -> Result<Fit, DoesNotFit> {
        fit(config, &self.plan, self.questions.values(), budget)
    }

    pub(super) fn load(self, model_dir: &Path, device: &Device) -> Result<Trainer, TrainerError> {
        let loading = Loading {
            quantisation: self.plan.quantisation,
            precision: Precision::for_device(device),
        };
        let decoder = Decoder::load_as(model_dir, device, loading)?.drawing_below(self.tokenizer.id_limit());
        let (ours, models) = (self.tokenizer.vocab_size(), decoder.config().vocab_size);
        if ours > models {
            return Err(TrainerError::Vocabulary {
                tokenizer: ours,
                model: models,
            });
        }
        Ok(Trainer {
            learner: Learner::new(decoder, &self.plan)?,
            sampler: None,
            plan: self.plan,
            tokenizer: self.tokenizer,
            rewards: self.rewards,
            questions: self.questions,
            bad_steps: 0,
        })
    }
}

pub(super) fn fit<'a>(
    config: &ModelConfig,
    plan: &Plan,
    questions: impl Iterator<Item = &'a Prepared>,
    budget: Budget,
) -> Result<Fit, DoesNotFit> {
    let longest = questions.map(|q| q.tokens.len()).max().unwrap_or(0);
    Requirements::new(config, plan, budget.place, budget.work, longest as u64)
        .fit(Limits::default(), budget.bytes)
}

fn prepare(tokenizer: &TextTokenizer, question: Question, limit: u32) -> Result<Prepared, StepError> {
    Ok(Prepared {
        tokens: prompt_tokens(tokenizer, &question, limit)?,
        text: question.prompt.text(),
        question,
    })
}

/// The tokens of a training question's prompt, at most `limit` (`rollout.max_prompt_length`).
///
/// # Errors
/// A prompt that the tokenizer refuses, that is empty or that is longer.
pub fn prompt_tokens(
    tokenizer: &TextTokenizer,
    question: &Question,
    limit: u32,
) -> Result<Vec<u32>, StepError> {
    let tokens = tokenizer.encode_prompt(&question.prompt)?;
    match tokens.len() {
        0 => Err(StepError::EmptyPrompt { row: question.row }),
        n if n > limit as usize => Err(StepError::PromptLength {
            row: question.row,
            tokens: n,
            limit,
        }),
        _ => Ok(tokens),
    }
}
