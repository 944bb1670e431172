//! Adapter, sampling, rewards and the questions' columns.

use serde::{Deserialize, Serialize};

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
