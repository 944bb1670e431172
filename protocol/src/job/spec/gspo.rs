//! Loss and optimizer.

use serde::{Deserialize, Serialize};

/// The level at which the importance ratio is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum ImportanceSampling {
    /// One ratio a sequence, the geometric mean over its tokens (GSPO).
    #[default]
    Sequence,
    /// One ratio a token (GRPO).
    Token,
    /// GSPO-token: sg\[s_i\]·π/sg\[π\].
    SequenceToken,
}

/// How a sequence's token losses become the batch's loss. Names as TRL's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum LossType {
    /// Mean over sequences of the mean over their tokens.
    #[default]
    Grpo,
    /// Σ over the micro-batch's active tokens.
    Bnpo,
    /// Σ over the active tokens of the whole rollout batch.
    Dapo,
    /// Σ over sequences × `max_completion_length`.
    DrGrpo,
}

/// What the centred rewards of a group are divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum ScaleRewards {
    /// The group's sample standard deviation + 1e-4.
    #[default]
    Group,
    /// The batch's sample standard deviation + 1e-4.
    Batch,
    /// One.
    None,
}

/// How the learning rate moves after its warm-up. Names as TRL's `lr_scheduler_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum LrScheduler {
    /// It stays.
    #[default]
    #[serde(alias = "constant")]
    ConstantWithWarmup,
    /// It falls linearly and would reach 0 one update after the last.
    Linear,
    /// It falls along half a cosine and would reach 0 one update after the last.
    Cosine,
}

/// GSPO and optimizer parameters (TRAINING "GSPO").
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GspoSpec {
    /// Level of the importance ratio.
    pub importance_sampling_level: ImportanceSampling,
    /// Aggregation of the loss.
    pub loss_type: LossType,
    /// Weight of the KL term; 0 skips the reference pass.
    pub beta: f64,
    /// Completions a prompt, at least 2.
    #[serde(alias = "num_generations")]
    pub group_size: u32,
    /// Lower clip distance; `None` takes the level's default (3e-4 at sequence level, 0.2 at token level).
    #[serde(alias = "epsilon")]
    pub epsilon_low: Option<f64>,
    /// Upper clip distance; `None` takes the level's default (4e-4, 0.2).
    pub epsilon_high: Option<f64>,
    /// Divisor of the advantages.
    pub scale_rewards: ScaleRewards,
    /// Multiply the KL term by the differentiable ratio, as TRL does.
    #[serde(alias = "use_bias_correction_kl")]
    pub kl_bias_correction: bool,
    /// Leave truncated completions out of the loss.
    #[serde(alias = "mask_truncated_completions")]
    pub mask_truncated: bool,
    /// Prompts a step.
    pub prompts_per_step: u32,
    /// Optimizer passes over one rollout batch (μ).
    pub num_iterations: u32,
    /// Minibatches a pass: one optimizer update each.
    pub minibatches: u32,
    /// Equal parts of a minibatch whose losses are averaged, as TRL's micro-batches are. They matter to `bnpo` alone,
    /// which divides by a part's own tokens; what bounds memory is another thing and changes no result.
    pub gradient_accumulation_steps: u32,
    /// Keep only the blocks' inputs in the forward pass and run each block again in the backward pass: less memory,
    /// more time, the same gradients.
    pub gradient_checkpointing: bool,
    /// AdamW learning rate.
    pub learning_rate: f64,
    /// What the rate does after its warm-up.
    #[serde(alias = "lr_scheduler_type")]
    pub lr_scheduler: LrScheduler,
    /// Linear warm-up, in optimizer steps.
    pub warmup_steps: u32,
    /// AdamW β₁.
    pub adam_beta1: f64,
    /// AdamW β₂.
    pub adam_beta2: f64,
    /// AdamW ε.
    pub adam_epsilon: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Global gradient norm is clipped to this.
    pub max_grad_norm: f64,
    /// A worker stops after this many non-finite steps in a row.
    pub max_bad_steps: u32,
}

impl Default for GspoSpec {
    fn default() -> Self {
        Self {
            importance_sampling_level: ImportanceSampling::Sequence,
            loss_type: LossType::Grpo,
            beta: 0.1,
            group_size: 8,
            epsilon_low: None,
            epsilon_high: None,
            scale_rewards: ScaleRewards::Group,
            kl_bias_correction: true,
            mask_truncated: false,
            prompts_per_step: 4,
            num_iterations: 1,
            minibatches: 1,
            gradient_accumulation_steps: 1,
            gradient_checkpointing: false,
            learning_rate: 1e-5,
            lr_scheduler: LrScheduler::ConstantWithWarmup,
            warmup_steps: 0,
            adam_beta1: 0.9,
            adam_beta2: 0.999,
            adam_epsilon: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: 1.0,
            max_bad_steps: 8,
        }
    }
}

impl GspoSpec {
    /// (ε_low, ε_high) with the level's defaults filled in.
    #[must_use]
    pub fn epsilons(&self) -> (f64, f64) {
        let (low, high) = match self.importance_sampling_level {
            ImportanceSampling::Sequence | ImportanceSampling::SequenceToken => (3e-4, 4e-4),
            ImportanceSampling::Token => (0.2, 0.2),
        };
        (self.epsilon_low.unwrap_or(low), self.epsilon_high.unwrap_or(high))
    }

    /// Completions of a step.
    #[must_use]
    pub fn rollout_rows(&self) -> u64 {
        u64::from(self.group_size) * u64::from(self.prompts_per_step)
    }

    /// Optimizer updates of a step.
    #[must_use]
    pub fn updates_per_step(&self) -> u64 {
        u64::from(self.num_iterations) * u64::from(self.minibatches)
    }
}
