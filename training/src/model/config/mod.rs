//! `config.json`: what the decoder is assembled from (TRAINING "Models").

mod bounds;
mod family;
mod json;
mod parts;
mod reader;

pub use parts::{
    AttentionBias, DeltaNetConfig, ExpertsConfig, LayerConfig, Mixer, MlpKind, NormKind, Parts, RopeConfig,
    RopeScaling, RoutingWeights,
};

use reader::Reader;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A family of decoders. Each is a choice of parts, not a copy of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// `Qwen2ForCausalLM` (Qwen2, Qwen2.5, QwQ): biases on queries, keys and values.
    Qwen2,
    /// `Qwen3ForCausalLM`: RMSNorm on queries and keys.
    Qwen3,
    /// `Qwen3MoeForCausalLM`: Qwen3 with routed experts in some layers.
    Qwen3Moe,
    /// `Qwen3NextForCausalLM`: gated delta-net layers, gated attention, routed experts and a shared one.
    Qwen3Next,
    /// `LlamaForCausalLM` (Llama 3.x): scaled rotary positions.
    Llama,
    /// `MistralForCausalLM`: a sliding window, in the older ones.
    Mistral,
    /// `MixtralForCausalLM`: Mistral with routed experts in every layer.
    Mixtral,
}

impl Architecture {
    /// All families.
    pub const ALL: [Self; 7] = [
        Self::Qwen2,
        Self::Qwen3,
        Self::Qwen3Moe,
        Self::Qwen3Next,
        Self::Llama,
        Self::Mistral,
        Self::Mixtral,
    ];

    /// The name in `config.json`'s `architectures`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Qwen3Moe => "Qwen3MoeForCausalLM",
            Self::Qwen3Next => "Qwen3NextForCausalLM",
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Mixtral => "MixtralForCausalLM",
        }
    }

    /// The `model_type` that goes with it.
    #[must_use]
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3_moe",
            Self::Qwen3Next => "qwen3_next",
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Mixtral => "mixtral",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.name() == name)
    }
}

/// Whether the output head shares the token embedding's weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// Logits are taken with the embedding's weight.
    Tied,
    /// `lm_head.weight` is a matrix of its own.
    Untied,
}

/// Sizes and parts of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Family.
    pub architecture: Architecture,
    /// Tokens in the vocabulary, V. The stored embedding may have more rows; those are dropped.
    pub vocab_size: usize,
    /// Width of the residual stream, H.
    pub hidden_size: usize,
    /// Width of a dense MLP, F.
    pub intermediate_size: usize,
    /// Decoder blocks.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides the query heads.
    pub num_key_value_heads: usize,
    /// Width of one head, D.
    pub head_dim: usize,
    /// ε of every RMSNorm.
    pub rms_norm_eps: f64,
    /// Positions.
    pub rope: RopeConfig,
    /// Output head.
    pub head: HeadKind,
    /// What every layer is made of.
    pub parts: Parts,
    /// What each layer is, first to last.
    pub layers: Vec<LayerConfig>,
    /// Longest sequence the model was made for, in tokens.
    pub max_position_embeddings: usize,
    /// Standard deviation of fresh weights.
    pub initializer_range: f64,
    /// First token, if the family has one.
    pub bos_token_id: Option<u32>,
    /// Tokens that end a completion, `generation_config.json` before `config.json`.
    pub eos_token_ids: Vec<u32>,
    /// Filler of short rows.
    pub pad_token_id: Option<u32>,
}

/// Why a `config.json` is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}; is this a Hugging Face model directory?", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is no JSON object.
    #[error("{}: not a JSON object: {reason}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        reason: String,
    },
    /// A key is missing or has a value that cannot be used.
    #[error("{}: \"{key}\" {reason}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl ModelConfig {
    /// Reads `config.json` (and `generation_config.json` for the EOS ids) of a model directory.
    ///
    /// # Errors
    /// A missing or broken file, an unknown architecture, a key that is missing or out of range.
    pub fn load(dir: &Path) -> Result<Self, ConfigError> {
        let path = dir.join("config.json");
        let mut config = Reader::open(path)?.config()?;
        let generation = dir.join("generation_config.json");
        if generation.exists() {
            let ids = Reader::open(generation)?.token_ids("eos_token_id")?;
            if !ids.is_empty() {
                config.eos_token_ids = ids;
            }
        }
        Ok(config)
    }

    /// The same from the object that a `config.json` holds.
    ///
    /// # Errors
    /// An unknown architecture, a key that is missing or out of range.
    pub fn from_json(value: Value) -> Result<Self, ConfigError> {
        Reader::of("config.json".into(), value)?.config()
    }

    /// The mixture of experts, in a family that has one: the same in every layer that has it.
    #[must_use]
    pub fn experts(&self) -> Option<ExpertsConfig> {
        self.layers.iter().find_map(|l| match l.mlp {
            MlpKind::Experts(experts) => Some(experts),
            MlpKind::Dense => None,
        })
    }

    /// The delta-net, in a family that has one: the same in every layer that has it.
    #[must_use]
    pub fn delta_net(&self) -> Option<DeltaNetConfig> {
        self.layers.iter().find_map(|l| match l.mixer {
            Mixer::DeltaNet(config) => Some(config),
            Mixer::Attention { .. } => None,
        })
    }
}
