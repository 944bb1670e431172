//! `config.json`: what the decoder is assembled from (TRAINING "Models").

use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// A family of decoders. Each is a choice of parts, not a copy of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// `Qwen3ForCausalLM`: RMSNorm on queries and keys, grouped-query attention, SwiGLU.
    Qwen3,
}

impl Architecture {
    /// The name in `config.json`'s `architectures`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    fn model_type(self) -> &'static str {
        match self {
            Self::Qwen3 => "qwen3",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        [Self::Qwen3].into_iter().find(|a| a.name() == name)
    }
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base θ of the inverse frequencies θ^(−2i/d).
    pub theta: f64,
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
    /// Tokens in the vocabulary, V.
    pub vocab_size: usize,
    /// Width of the residual stream, H.
    pub hidden_size: usize,
    /// Width of the MLP, F.
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

    /// The newest-style `config.json`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "architectures": [self.architecture.name()],
            "attention_bias": false,
            "attention_dropout": 0.0,
            "bos_token_id": self.bos_token_id,
            "dtype": "float32",
            "eos_token_id": ids_json(&self.eos_token_ids),
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "initializer_range": self.initializer_range,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.max_position_embeddings,
            "model_type": self.architecture.model_type(),
            "num_attention_heads": self.num_attention_heads,
            "num_hidden_layers": self.num_hidden_layers,
            "num_key_value_heads": self.num_key_value_heads,
            "pad_token_id": self.pad_token_id,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_parameters": { "rope_theta": self.rope.theta, "rope_type": "default" },
            "sliding_window": null,
            "tie_word_embeddings": self.head == HeadKind::Tied,
            "use_cache": true,
            "use_sliding_window": false,
            "vocab_size": self.vocab_size,
        })
    }

    /// The `generation_config.json` that goes with it.
    #[must_use]
    pub fn generation_json(&self) -> Value {
        json!({
            "bos_token_id": self.bos_token_id,
            "eos_token_id": ids_json(&self.eos_token_ids),
            "pad_token_id": self.pad_token_id,
        })
    }
}

fn ids_json(ids: &[u32]) -> Value {
    match ids {
        [] => Value::Null,
        [one] => json!(one),
        many => json!(many),
    }
}

/// One JSON file, and where to say an error was.
struct Reader {
    path: PathBuf,
    object: Map<String, Value>,
}

impl Reader {
    fn open(path: PathBuf) -> Result<Self, ConfigError> {
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(source) => return Err(ConfigError::Read { path, source }),
        };
        match serde_json::from_str(&text) {
            Ok(Value::Object(object)) => Ok(Self { path, object }),
            Ok(_) => Err(ConfigError::Json {
                path,
                reason: "another JSON value".into(),
            }),
            Err(e) => Err(ConfigError::Json {
                path,
                reason: e.to_string(),
            }),
        }
    }

    fn config(&self) -> Result<ModelConfig, ConfigError> {
        let architecture = self.architecture()?;
        self.refuse_unsupported()?;
        let hidden_size = self.size("hidden_size")?;
        let num_attention_heads = self.size("num_attention_heads")?;
        let num_key_value_heads = self.size_or("num_key_value_heads", num_attention_heads)?;
        if !num_attention_heads.is_multiple_of(num_key_value_heads) {
            return Err(self.key("num_key_value_heads", "does not divide num_attention_heads"));
        }
        // A missing head_dim is 128 for Qwen3, whatever hidden/heads says.
        let default_head_dim = match architecture {
            Architecture::Qwen3 => 128,
        };
        let head_dim = self.size_or("head_dim", default_head_dim)?;
        if !head_dim.is_multiple_of(2) {
            return Err(self.key("head_dim", "is odd; rotary positions need pairs"));
        }
        Ok(ModelConfig {
            architecture,
            vocab_size: self.size("vocab_size")?,
            hidden_size,
            intermediate_size: self.size("intermediate_size")?,
            num_hidden_layers: self.size("num_hidden_layers")?,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            rms_norm_eps: self.number_or("rms_norm_eps", 1e-6)?,
            rope: self.rope()?,
            head: match self.flag_or("tie_word_embeddings", false)? {
                true => HeadKind::Tied,
                false => HeadKind::Untied,
            },
            max_position_embeddings: self.size_or("max_position_embeddings", 32_768)?,
            initializer_range: self.number_or("initializer_range", 0.02)?,
            bos_token_id: self.token_ids("bos_token_id")?.first().copied(),
            eos_token_ids: self.token_ids("eos_token_id")?,
            pad_token_id: self.token_ids("pad_token_id")?.first().copied(),
        })
    }

    fn architecture(&self) -> Result<Architecture, ConfigError> {
        let name = self
            .object
            .get("architectures")
            .and_then(|v| v.get(0))
            .and_then(Value::as_str)
            .ok_or_else(|| self.key("architectures", "is missing or no list of names"))?;
        Architecture::parse(name).ok_or_else(|| {
            self.key(
                "architectures",
                &format!("is {name}; this build knows {}", Architecture::Qwen3.name()),
            )
        })
    }

    /// Settings whose effect is not implemented must not be passed over in silence.
    fn refuse_unsupported(&self) -> Result<(), ConfigError> {
        if self.flag_or("attention_bias", false)? {
            return Err(self.key("attention_bias", "is true; this family is read without biases"));
        }
        if self.flag_or("use_sliding_window", false)? {
            return Err(self.key(
                "use_sliding_window",
                "is true; only full attention is implemented",
            ));
        }
        match self.object.get("hidden_act").and_then(Value::as_str) {
            None | Some("silu") => Ok(()),
            Some(other) => Err(self.key("hidden_act", &format!("is {other}; only silu is implemented"))),
        }
    }

    /// θ from `rope_parameters` (new style) or `rope_theta` and `rope_scaling` (older).
    fn rope(&self) -> Result<RopeConfig, ConfigError> {
        let nested = |key: &str| self.object.get(key).and_then(Value::as_object);
        let parameters = nested("rope_parameters").or_else(|| nested("rope_scaling"));
        let kind = parameters
            .and_then(|p| p.get("rope_type").or_else(|| p.get("type")))
            .and_then(Value::as_str)
            .unwrap_or("default");
        if kind != "default" {
            return Err(self.key("rope_type", &format!("is {kind}; only default is implemented")));
        }
        let theta = parameters
            .and_then(|p| p.get("rope_theta"))
            .or_else(|| self.object.get("rope_theta"))
            .and_then(Value::as_f64)
            .ok_or_else(|| self.key("rope_theta", "is missing, here and in rope_parameters"))?;
        if !theta.is_finite() || theta <= 0.0 {
            return Err(self.key("rope_theta", "is not above 0"));
        }
        Ok(RopeConfig { theta })
    }

    fn size(&self, key: &str) -> Result<usize, ConfigError> {
        self.optional_size(key)?
            .ok_or_else(|| self.key(key, "is missing"))
    }

    fn size_or(&self, key: &str, default: usize) -> Result<usize, ConfigError> {
        Ok(self.optional_size(key)?.unwrap_or(default))
    }

    fn optional_size(&self, key: &str) -> Result<Option<usize>, ConfigError> {
        /// Larger than any model's dimension, small enough that products of two do not overflow.
        const LARGEST: u64 = 1 << 24;
        match self.object.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(v) => match v.as_u64() {
                Some(n @ 1..=LARGEST) => Ok(Some(n as usize)),
                _ => Err(self.key(key, &format!("is {v}; it must be an integer from 1 to {LARGEST}"))),
            },
        }
    }

    fn number_or(&self, key: &str, default: f64) -> Result<f64, ConfigError> {
        match self.object.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(v) => v
                .as_f64()
                .filter(|n| n.is_finite() && *n >= 0.0)
                .ok_or_else(|| self.key(key, &format!("is {v}; it must be a number, 0 or above"))),
        }
    }

    fn flag_or(&self, key: &str, default: bool) -> Result<bool, ConfigError> {
        match self.object.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(v) => v
                .as_bool()
                .ok_or_else(|| self.key(key, &format!("is {v}; it must be true or false"))),
        }
    }

    /// One id or a list of them.
    fn token_ids(&self, key: &str) -> Result<Vec<u32>, ConfigError> {
        let one = |v: &Value| {
            v.as_u64()
                .and_then(|n| u32::try_from(n).ok())
                .ok_or_else(|| self.key(key, &format!("holds {v}; token ids are integers from 0")))
        };
        match self.object.get(key) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(one).collect(),
            Some(v) => Ok(vec![one(v)?]),
        }
    }

    fn key(&self, key: &str, reason: &str) -> ConfigError {
        ConfigError::Key {
            path: self.path.clone(),
            key: key.into(),
            reason: reason.into(),
        }
    }
}
