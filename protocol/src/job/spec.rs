//! What a job asks for: the job file a person writes (TOML) and the specification that is signed (DAG-CBOR).
//!
//! Defaults are those of PROTOCOL section 5 and TRAINING "GSPO". A [`JobFile`] names a model and question files by
//! path or CID; [`JobFile::resolve`] replaces them with the CIDs under which the content store holds them.

use crate::ids::CidBytes;
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

/// The adapter (TRAINING "LoRA").
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoraSpec {
    /// Rank r.
    #[serde(alias = "lora_rank", alias = "r")]
    pub rank: u32,
    /// Scale numerator: the adapter's product is multiplied by alpha/r.
    #[serde(alias = "lora_alpha")]
    pub alpha: f64,
    /// Module names as in PEFT's `target_modules`, or the single entry `all-linear`.
    pub target_modules: Vec<String>,
}

impl Default for LoraSpec {
    fn default() -> Self {
        Self {
            rank: 16,
            alpha: 32.0,
            target_modules: vec!["all-linear".into()],
        }
    }
}

/// How completions are drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RolloutSpec {
    /// Softmax temperature T.
    pub temperature: f64,
    /// Keep the k likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of tokens with this mass; 1 keeps all.
    pub top_p: f64,
    /// Drop tokens below this share of the likeliest one's probability; 0 drops none.
    pub min_p: f64,
    /// Divide (multiply when negative) the logits of tokens already present; 1 is off.
    pub repetition_penalty: f64,
    /// Texts that end a completion, with the token that completes one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// Longer prompts are refused when the data is loaded, in tokens.
    pub max_prompt_length: u32,
    /// Completions are cut here, in tokens, EOS included.
    pub max_completion_length: u32,
}

impl Default for RolloutSpec {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            stop: Vec::new(),
            max_prompt_length: 512,
            max_completion_length: 512,
        }
    }
}

/// One reward function and its share of the sum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RewardSpec {
    /// `exact`, `numeric`, `math`, `boxed`, `format`, `length`, `json_schema` or `command`.
    pub name: String,
    /// Factor in the weighted sum.
    #[serde(default = "one")]
    pub weight: f64,
    /// A regular expression, for `format`.
    #[serde(default)]
    pub pattern: Option<String>,
    /// Tokens beyond which `length` takes away reward.
    #[serde(default)]
    pub max_length: Option<u32>,
    /// A JSON schema as JSON text, for `json_schema`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// Program and arguments, for `command`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Vec<String>>,
    /// The longest that `command` may take for one sample, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_timeout_ms: Option<u32>,
    /// The longest that `command` may take for one step's samples, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_timeout_ms: Option<u32>,
}

impl RewardSpec {
    /// The function of this name, with weight 1 and no setting.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            weight: one(),
            pattern: None,
            max_length: None,
            schema: None,
            program: None,
            sample_timeout_ms: None,
            batch_timeout_ms: None,
        }
    }
}

fn one() -> f64 {
    1.0
}

/// Which columns of the question file are what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ColumnsSpec {
    /// The question's column (`question`, `prompt` or `messages`).
    pub prompt: String,
    /// The reference answer's column.
    pub answer: String,
}

impl Default for ColumnsSpec {
    fn default() -> Self {
        Self {
            prompt: "question".into(),
            answer: "answer".into(),
        }
    }
}

/// Precision of the ring's traffic (PROTOCOL section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Wire {
    /// Exact f32 sums in ring order.
    #[default]
    F32,
    /// Exact integer sums under shared block scales.
    Q8,
}

impl Wire {
    /// Every precision.
    pub const ALL: [Self; 2] = [Self::F32, Self::Q8];

    /// Its name in job files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Q8 => "q8",
        }
    }
}

/// A name that no wire precision has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no wire precision: one of {names}", names = Wire::ALL.map(Wire::name).join(", "))]
pub struct WireNameError(String);

impl std::str::FromStr for Wire {
    type Err = WireNameError;

    fn from_str(name: &str) -> Result<Self, WireNameError> {
        let found = Self::ALL.into_iter().find(|w| w.name() == name);
        found.ok_or_else(|| WireNameError(name.to_owned()))
    }
}

/// The outer step taken with the mean delta.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum OuterSpec {
    /// θ' = θ + mean.
    #[default]
    Average,
    /// SGD with Nesterov momentum on the mean (DiLoCo).
    Nesterov {
        /// Outer learning rate.
        learning_rate: f64,
        /// Momentum factor.
        momentum: f64,
    },
}

/// Deadlines of a round's phases, in milliseconds; each phase ends early when everyone has answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeadlinesSpec {
    /// From announcement to the first roster, once `min_workers` have joined.
    pub recruit_ms: u64,
    /// From the roster to the last commitment.
    pub train_ms: u64,
    /// From a commitment to its receipts, and to the reveal.
    pub commit_ms: u64,
    /// Floor of the wait for one ring step.
    pub ring_floor_ms: u64,
    /// Cap of the wait for one ring step.
    pub ring_cap_ms: u64,
    /// From the end of the ring to the close.
    pub attest_ms: u64,
}

impl Default for DeadlinesSpec {
    fn default() -> Self {
        Self {
            recruit_ms: 30_000,
            train_ms: 1_800_000,
            commit_ms: 60_000,
            ring_floor_ms: 5_000,
            ring_cap_ms: 120_000,
            attest_ms: 60_000,
        }
    }
}

/// How many rounds with how many members.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleSpec {
    /// Rounds to close; exactly one of `rounds` and `epochs` is given.
    pub rounds: Option<u64>,
    /// Passes over the questions; converted to rounds when the roster's size is known.
    pub epochs: Option<f64>,
    /// Local GSPO steps a round.
    pub aggregate_interval: u32,
    /// The job pauses below this many workers.
    pub min_workers: u32,
    /// Joiners beyond this many wait.
    pub max_workers: u32,
    /// Replica holders a commit needs.
    pub redundancy: u32,
    /// Share of committed deltas a validator evaluates, 0 to 1.
    pub validator_sampling: f64,
    /// Held-out questions of an evaluation.
    pub eval_questions: u32,
    /// Phase deadlines.
    pub deadlines: DeadlinesSpec,
}

impl Default for ScheduleSpec {
    fn default() -> Self {
        Self {
            rounds: None,
            epochs: None,
            aggregate_interval: 50,
            min_workers: 2,
            max_workers: 64,
            redundancy: 1,
            validator_sampling: 1.0,
            eval_questions: 500,
            deadlines: DeadlinesSpec::default(),
        }
    }
}

macro_rules! job_struct {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$fdoc])* pub $field: $ty,)*
            /// A name for people.
            pub name: String,
            /// Seeds the round-0 adapter and the prompt order.
            #[serde(default)]
            pub seed: u64,
            /// Hold frozen linear weights in NF4.
            #[serde(default = "yes", alias = "load_in_4bit")]
            pub use_4bit: bool,
            /// Question-file columns.
            #[serde(default)]
            pub columns: ColumnsSpec,
            /// Reward functions; their weighted sum is the reward.
            pub rewards: Vec<RewardSpec>,
            /// Loss and optimizer.
            #[serde(default)]
            pub gspo: GspoSpec,
            /// Adapter.
            #[serde(default)]
            pub lora: LoraSpec,
            /// Sampling.
            #[serde(default)]
            pub rollout: RolloutSpec,
            /// Rounds, members, deadlines.
            #[serde(default)]
            pub schedule: ScheduleSpec,
            /// Ring precision.
            #[serde(default)]
            pub wire: Wire,
            /// Outer step.
            #[serde(default)]
            pub outer: OuterSpec,
            /// Base units of GYM put up for the job.
            #[serde(default)]
            pub bounty: u64,
        }
    };
}

fn yes() -> bool {
    true
}

job_struct! {
    /// The job file a person writes, TOML.
    JobFile {
        /// A Hugging Face model directory, or its CID.
        model: String,
        /// Training questions: a JSONL or Parquet file, or its CID.
        train: String,
        /// Held-out questions: a JSONL or Parquet file, or its CID.
        heldout: String,
    }
}

job_struct! {
    /// The specification that is signed and announced, DAG-CBOR. A job's id is the CID of this body.
    JobSpec {
        /// The base model's directory.
        base: CidBytes,
        /// The training questions.
        train: CidBytes,
        /// The held-out questions.
        heldout: CidBytes,
    }
}

/// Why a job file is refused. The message names the key and says what it may be.
#[derive(Debug, thiserror::Error)]
pub enum JobFileError {
    /// Not TOML, an unknown key or a wrong type; the source names line and column.
    #[error("the job file does not parse: {0}")]
    Parse(#[from] toml::de::Error),
    /// A value out of its range.
    #[error("job file: {key} is {got}; it must be {must}")]
    Range {
        /// The key, dotted.
        key: &'static str,
        /// What the file says.
        got: String,
        /// What is allowed.
        must: &'static str,
    },
}

/// The CIDs that stand for a job file's paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Base model directory.
    pub base: CidBytes,
    /// Training questions.
    pub train: CidBytes,
    /// Held-out questions.
    pub heldout: CidBytes,
}

impl JobFile {
    /// Parses and checks a job file.
    ///
    /// # Errors
    /// An unknown key, a wrong type or a value out of range, named.
    pub fn parse(text: &str) -> Result<Self, JobFileError> {
        let file: Self = toml::from_str(text)?;
        file.check()?;
        Ok(file)
    }

    fn check(&self) -> Result<(), JobFileError> {
        let range = |ok: bool, key, got: String, must| {
            if ok {
                Ok(())
            } else {
                Err(JobFileError::Range { key, got, must })
            }
        };
        let s = &self.schedule;
        let g = &self.gspo;
        let r = &self.rollout;
        range(
            !self.name.is_empty() && self.name.len() <= 128,
            "name",
            format!("{:?}", self.name),
            "1 to 128 bytes",
        )?;
        range(
            s.rounds.is_some() != s.epochs.is_some(),
            "schedule.rounds / schedule.epochs",
            format!("{:?} / {:?}", s.rounds, s.epochs),
            "exactly one of the two",
        )?;
        range(s.rounds != Some(0), "schedule.rounds", "0".into(), "at least 1")?;
        range(
            s.epochs.is_none_or(|e| e.is_finite() && e > 0.0),
            "schedule.epochs",
            format!("{:?}", s.epochs),
            "above 0",
        )?;
        range(
            s.min_workers >= 1,
            "schedule.min_workers",
            s.min_workers.to_string(),
            "at least 1",
        )?;
        range(
            s.max_workers >= s.min_workers && s.max_workers <= 4096,
            "schedule.max_workers",
            s.max_workers.to_string(),
            "at least min_workers and at most 4096",
        )?;
        range(
            s.aggregate_interval >= 1,
            "schedule.aggregate_interval",
            "0".into(),
            "at least 1",
        )?;
        range(
            s.redundancy <= 8,
            "schedule.redundancy",
            s.redundancy.to_string(),
            "at most 8",
        )?;
        range(
            (0.0..=1.0).contains(&s.validator_sampling),
            "schedule.validator_sampling",
            s.validator_sampling.to_string(),
            "0 to 1",
        )?;
        range(
            (2..=1024).contains(&g.group_size),
            "gspo.group_size",
            g.group_size.to_string(),
            "2 to 1024: one completion has nothing to be compared with",
        )?;
        range(
            (1..=4096).contains(&g.prompts_per_step),
            "gspo.prompts_per_step",
            g.prompts_per_step.to_string(),
            "1 to 4096",
        )?;
        range(
            g.num_iterations >= 1,
            "gspo.num_iterations",
            "0".into(),
            "at least 1",
        )?;
        range(g.minibatches >= 1, "gspo.minibatches", "0".into(), "at least 1")?;
        range(
            g.gradient_accumulation_steps >= 1,
            "gspo.gradient_accumulation_steps",
            "0".into(),
            "at least 1",
        )?;
        let parts = u64::from(g.minibatches) * u64::from(g.gradient_accumulation_steps);
        range(
            g.rollout_rows().is_multiple_of(parts),
            "gspo.minibatches × gspo.gradient_accumulation_steps",
            parts.to_string(),
            "a divisor of group_size × prompts_per_step, so that all parts are equal",
        )?;
        let positive = |v: f64| v.is_finite() && v > 0.0;
        range(
            positive(g.learning_rate),
            "gspo.learning_rate",
            g.learning_rate.to_string(),
            "above 0",
        )?;
        range(
            g.beta.is_finite() && g.beta >= 0.0,
            "gspo.beta",
            g.beta.to_string(),
            "0 or above",
        )?;
        range(
            positive(g.max_grad_norm),
            "gspo.max_grad_norm",
            g.max_grad_norm.to_string(),
            "above 0",
        )?;
        range(
            positive(r.temperature),
            "rollout.temperature",
            r.temperature.to_string(),
            "above 0",
        )?;
        range(
            r.top_p > 0.0 && r.top_p <= 1.0,
            "rollout.top_p",
            r.top_p.to_string(),
            "above 0, at most 1",
        )?;
        range(
            (0.0..=1.0).contains(&r.min_p),
            "rollout.min_p",
            r.min_p.to_string(),
            "0 to 1",
        )?;
        range(
            r.max_completion_length >= 1,
            "rollout.max_completion_length",
            "0".into(),
            "at least 1",
        )?;
        range(
            (1..=1024).contains(&self.lora.rank),
            "lora.rank",
            self.lora.rank.to_string(),
            "1 to 1024",
        )?;
        range(
            positive(self.lora.alpha),
            "lora.alpha",
            self.lora.alpha.to_string(),
            "above 0",
        )?;
        range(
            !self.lora.target_modules.is_empty(),
            "lora.target_modules",
            "[]".into(),
            "names, or [\"all-linear\"]",
        )?;
        range(
            !self.rewards.is_empty(),
            "rewards",
            "[]".into(),
            "at least one reward function",
        )?;
        Ok(())
    }

    /// The signed form, with every path replaced.
    #[must_use]
    pub fn resolve(self, cids: Resolved) -> JobSpec {
        JobSpec {
            base: cids.base,
            train: cids.train,
            heldout: cids.heldout,
            name: self.name,
            seed: self.seed,
            use_4bit: self.use_4bit,
            columns: self.columns,
            rewards: self.rewards,
            gspo: self.gspo,
            lora: self.lora,
            rollout: self.rollout,
            schedule: self.schedule,
            wire: self.wire,
            outer: self.outer,
            bounty: self.bounty,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
name = "t"
model = "m"
train = "a.jsonl"
heldout = "b.jsonl"
rewards = [{ name = "numeric" }]
[schedule]
rounds = 2
"#;

    #[test]
    fn defaults_are_the_protocols() {
        let job = JobFile::parse(SMALL).unwrap();
        assert_eq!(job.gspo.beta, 0.1);
        assert_eq!(job.gspo.group_size, 8);
        assert_eq!(job.schedule.aggregate_interval, 50);
        assert!(job.use_4bit);
        assert_eq!(job.gspo.epsilons(), (3e-4, 4e-4));
    }

    #[test]
    fn a_typo_is_named_with_its_line() {
        let text = SMALL.replace("rounds = 2", "roundz = 2");
        let message = JobFile::parse(&text).unwrap_err().to_string();
        assert!(
            message.contains("roundz") && message.contains("line 8"),
            "{message}"
        );
    }

    #[test]
    fn group_size_one_is_refused() {
        let text = format!("{SMALL}[gspo]\ngroup_size = 1\n");
        let message = JobFile::parse(&text).unwrap_err().to_string();
        assert!(message.contains("gspo.group_size is 1"), "{message}");
    }

    #[test]
    fn trl_names_are_aliases() {
        let text = format!("{SMALL}[gspo]\nnum_generations = 4\nepsilon = 0.1\n");
        let job = JobFile::parse(&text).unwrap();
        assert_eq!((job.gspo.group_size, job.gspo.epsilon_low), (4, Some(0.1)));
        let text = format!(
            "load_in_4bit = false\n{SMALL}[gspo]\nlr_scheduler_type = \"cosine\"\ngradient_checkpointing = true\n\
             gradient_accumulation_steps = 2\nmask_truncated_completions = true\nuse_bias_correction_kl = false\n\
             [lora]\nr = 4\nlora_alpha = 8.0\n"
        );
        let job = JobFile::parse(&text).unwrap();
        let gspo = GspoSpec {
            lr_scheduler: LrScheduler::Cosine,
            gradient_checkpointing: true,
            gradient_accumulation_steps: 2,
            mask_truncated: true,
            kl_bias_correction: false,
            ..GspoSpec::default()
        };
        assert_eq!((job.gspo, job.lora.rank, job.use_4bit), (gspo, 4, false));
        let constant = format!("{SMALL}[gspo]\nlr_scheduler_type = \"constant\"\n");
        let constant = JobFile::parse(&constant).unwrap().gspo.lr_scheduler;
        assert_eq!(constant, LrScheduler::ConstantWithWarmup);
    }

    #[test]
    fn parts_that_would_differ_are_refused() {
        let text = format!("{SMALL}[gspo]\nminibatches = 3\n");
        let message = JobFile::parse(&text).unwrap_err().to_string();
        assert!(
            message.contains("gspo.minibatches") && message.contains("divisor"),
            "{message}"
        );
    }
}
