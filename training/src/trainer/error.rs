//! What can go wrong when a trainer starts or steps.

use super::Rollout;
use crate::eval::EvalError;
use crate::generate::GenerateError;
use crate::lora::LoraError;
use crate::memory::DoesNotFit;
use crate::model::LoadError;
use crate::reward::RewardConfigError;
use crate::tokenizer::{EncodeError, TokenizerError};

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
    /// The memory.
    #[error(transparent)]
    Memory(#[from] DoesNotFit),
    /// A falling learning rate with no end to fall to.
    #[error(
        "gspo.lr_scheduler falls to the job's end, which schedule.epochs does not tell; give schedule.rounds"
    )]
    Horizon,
    /// A group that cannot be compared.
    #[error("gspo.group_size is {0}; it must be at least 2: one completion has nothing to be compared with")]
    GroupSize(u32),
    /// The tokenizer makes ids that the model does not know.
    #[error("the tokenizer has {tokenizer} ids and the model {model}; they are not one model's files")]
    Vocabulary {
        /// The tokenizer's.
        tokenizer: usize,
        /// The model's.
        model: usize,
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
    /// A prompt is empty.
    #[error("question {row} has an empty prompt, which nothing can follow: drop the question")]
    EmptyPrompt {
        /// The question's row.
        row: u64,
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
        "{count} steps in a row were not finite (the last one's {what}): gspo.learning_rate is likely too high"
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
