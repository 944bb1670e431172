//! The pretraining file, TOML.

use super::corpus::QuestionConfig;
use crate::model::{Architecture, HeadKind, LayerConfig, ModelConfig, Parts, RopeConfig};
use crate::optim::AdamWConfig;
use crate::tokenizer::TextTokenizer;
use serde::{Deserialize, Serialize};
use sha3::{Digest, Sha3_256};
use std::path::{Path, PathBuf};

/// All a run depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PretrainConfig {
    /// Seeds weights and corpus.
    pub seed: u64,
    /// Questions that the corpus must not hold: a JSONL file, relative to this file.
    #[serde(default)]
    pub heldout: Option<PathBuf>,
    /// Sizes of the model.
    #[serde(default)]
    pub shape: Shape,
    /// What is asked.
    #[serde(default)]
    pub questions: QuestionConfig,
    /// Phases of the run, in order.
    pub stages: Vec<Stage>,
    /// AdamW.
    #[serde(default)]
    pub optimizer: OptimizerConfig,
    /// Forward and backward passes a step; examples are sorted by length first, so more parts mean less padding.
    #[serde(default = "four")]
    pub micro_batches: usize,
    /// Steps between checkpoints.
    #[serde(default = "hundred")]
    pub checkpoint_every: u64,
}

fn four() -> usize {
    4
}

fn hundred() -> u64 {
    100
}

/// Sizes of a Qwen3 decoder with tied embeddings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Shape {
    /// Decoder blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the MLP.
    pub mlp: usize,
    /// Longest sequence, in tokens.
    pub max_positions: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Standard deviation of fresh weights.
    pub initializer_range: f64,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            layers: 4,
            hidden: 128,
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            mlp: 512,
            max_positions: 128,
            rope_theta: 10_000.0,
            initializer_range: 0.05,
        }
    }
}

/// A phase with one mixture of answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Optimizer steps.
    pub steps: u64,
    /// Examples a step.
    pub batch: u64,
    /// Share of examples that are answered by running sums, 0 to 1; the rest are direct answers.
    pub running_share: f64,
}

/// AdamW with warm-up and a cosine to `final_share` of the rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerConfig {
    /// Highest learning rate.
    pub learning_rate: f64,
    /// Steps of linear warm-up.
    pub warmup_steps: u64,
    /// The last step's rate as a share of the highest.
    pub final_share: f64,
    /// β₁.
    pub beta1: f64,
    /// β₂.
    pub beta2: f64,
    /// ε.
    pub epsilon: f64,
    /// Decoupled decay.
    pub weight_decay: f64,
    /// Global gradient norm is clipped to this.
    pub max_grad_norm: f64,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            learning_rate: 3e-3,
            warmup_steps: 50,
            final_share: 0.05,
            beta1: 0.9,
            beta2: 0.98,
            epsilon: 1e-8,
            weight_decay: 0.01,
            max_grad_norm: 1.0,
        }
    }
}

/// Why a pretraining file is refused.
#[derive(Debug, thiserror::Error)]
pub enum PretrainConfigError {
    /// The file cannot be read.
    #[error("{path}: {source}; check the path")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Not TOML, an unknown key or a wrong type.
    #[error("{path}: {source}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The parser's reason, with line and column.
        source: Box<toml::de::Error>,
    },
    /// A value out of its range.
    #[error("pretraining file: {key} must be {must}")]
    Range {
        /// The key, dotted.
        key: &'static str,
        /// What is allowed.
        must: &'static str,
    },
}

impl PretrainConfig {
    /// Reads a file; `heldout` is taken relative to it.
    ///
    /// # Errors
    /// An unreadable file, an unknown key, a wrong type, a value out of range.
    pub fn load(path: &Path) -> Result<Self, PretrainConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| PretrainConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        let mut config: Self = toml::from_str(&text).map_err(|source| PretrainConfigError::Parse {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        config.heldout = config.heldout.map(|relative| folder.join(relative));
        config.check()?;
        Ok(config)
    }

    /// Checks the ranges.
    ///
    /// # Errors
    /// The first key that is out of its range.
    pub fn check(&self) -> Result<(), PretrainConfigError> {
        let (shape, questions) = (&self.shape, &self.questions);
        let rules = [
            (!self.stages.is_empty(), "stages", "at least one"),
            (
                self.stages.iter().all(|s| (1..=65_536).contains(&s.batch)),
                "stages.batch",
                "1 to 65536",
            ),
            (
                self.stages.iter().all(|s| s.steps >= 1),
                "stages.steps",
                "at least 1",
            ),
            (
                self.stages.iter().all(|s| (0.0..=1.0).contains(&s.running_share)),
                "stages.running_share",
                "0 to 1",
            ),
            (self.micro_batches >= 1, "micro_batches", "at least 1"),
            (self.checkpoint_every >= 1, "checkpoint_every", "at least 1"),
            (
                shape.layers >= 1 && shape.hidden >= 1 && shape.mlp >= 1,
                "shape",
                "sizes of at least 1",
            ),
            (
                shape.kv_heads >= 1 && shape.heads >= 1 && shape.heads.is_multiple_of(shape.kv_heads),
                "shape.heads",
                "a multiple of kv_heads",
            ),
            (
                shape.head_dim >= 2 && shape.head_dim.is_multiple_of(2),
                "shape.head_dim",
                "even",
            ),
            (
                questions.min_terms >= 2
                    && questions.max_terms >= questions.min_terms
                    && questions.max_terms <= 16,
                "questions.min_terms, max_terms",
                "2 to 16, in order",
            ),
            (
                questions.min_digits >= 1
                    && questions.max_digits >= questions.min_digits
                    && questions.max_digits <= 9,
                "questions.min_digits, max_digits",
                "1 to 9, in order",
            ),
            (
                self.optimizer.learning_rate.is_finite() && self.optimizer.learning_rate > 0.0,
                "optimizer.learning_rate",
                "above 0",
            ),
        ];
        match rules.into_iter().find(|(ok, ..)| !ok) {
            Some((_, key, must)) => Err(PretrainConfigError::Range { key, must }),
            None => Ok(()),
        }
    }

    /// Steps of all stages.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.stages.iter().map(|stage| stage.steps).sum()
    }

    /// The stage that `step` belongs to.
    pub(super) fn stage(&self, step: u64) -> &Stage {
        let mut end = 0;
        let found = self.stages.iter().find(|stage| {
            end += stage.steps;
            step < end
        });
        found.unwrap_or(&self.stages[self.stages.len() - 1])
    }

    /// Linear warm-up, then a cosine over the rest of the run.
    pub(super) fn learning_rate(&self, step: u64) -> f64 {
        let o = &self.optimizer;
        if step < o.warmup_steps {
            return o.learning_rate * (step + 1) as f64 / o.warmup_steps as f64;
        }
        let length = self.steps().saturating_sub(o.warmup_steps).max(1) as f64;
        let done = (step - o.warmup_steps) as f64 / length;
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * done).cos());
        o.learning_rate * (o.final_share + (1.0 - o.final_share) * cosine)
    }

    pub(super) fn adamw(&self) -> AdamWConfig {
        AdamWConfig {
            beta1: self.optimizer.beta1,
            beta2: self.optimizer.beta2,
            epsilon: self.optimizer.epsilon,
            weight_decay: self.optimizer.weight_decay,
            max_grad_norm: self.optimizer.max_grad_norm,
        }
    }

    pub(super) fn model_config(&self, tokenizer: &TextTokenizer) -> ModelConfig {
        let shape = &self.shape;
        ModelConfig {
            architecture: Architecture::Qwen3,
            vocab_size: tokenizer.vocab_size(),
            hidden_size: shape.hidden,
            intermediate_size: shape.mlp,
            num_hidden_layers: shape.layers,
            num_attention_heads: shape.heads,
            num_key_value_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            rms_norm_eps: 1e-6,
            rope: RopeConfig::plain(shape.rope_theta, shape.head_dim),
            head: HeadKind::Tied,
            parts: Parts::QWEN3,
            layers: vec![LayerConfig::DENSE; shape.layers],
            max_position_embeddings: shape.max_positions,
            initializer_range: shape.initializer_range,
            bos_token_id: None,
            eos_token_ids: tokenizer.eos_ids().to_vec(),
            pad_token_id: Some(tokenizer.pad_id()),
        }
    }

    /// SHA3-256 of everything the result depends on, hexadecimal; the held-out file counts by name.
    pub(super) fn fingerprint(&self) -> String {
        let mut same = self.clone();
        same.checkpoint_every = 1;
        same.heldout = same.heldout.and_then(|path| path.file_name().map(PathBuf::from));
        hex::encode(Sha3_256::digest(format!("{same:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "seed = 1\n[[stages]]\nsteps = 10\nbatch = 4\nrunning_share = 0.6\n\
                        [[stages]]\nsteps = 10\nbatch = 8\nrunning_share = 0.3\n[optimizer]\nwarmup_steps = 4\n";

    #[test]
    fn stages_follow_one_another() {
        let config: PretrainConfig = toml::from_str(TEXT).unwrap();
        assert_eq!(
            (config.steps(), config.stage(9).batch, config.stage(10).batch),
            (20, 4, 8)
        );
    }

    #[test]
    fn the_rate_warms_up_and_falls() {
        let config: PretrainConfig = toml::from_str(TEXT).unwrap();
        let rates: Vec<f64> = (0..20).map(|s| config.learning_rate(s)).collect();
        assert!(
            rates[0] < rates[3] && (rates[4] - 3e-3).abs() < 1e-12 && rates[19] < 3e-4,
            "{rates:?}"
        );
    }

    #[test]
    fn typos_and_ranges_are_named() {
        let typo = toml::from_str::<PretrainConfig>(&TEXT.replace("seed", "sed"));
        assert!(typo.unwrap_err().to_string().contains("sed"));
        let mut config: PretrainConfig = toml::from_str(TEXT).unwrap();
        config.stages[1].running_share = 1.5;
        assert!(config.check().unwrap_err().to_string().contains("running_share"));
        assert!(PretrainConfig::load(Path::new("/nonexistent.toml")).is_err());
    }

    #[test]
    fn the_fingerprint_follows_what_matters() {
        let config: PretrainConfig = toml::from_str(TEXT).unwrap();
        let other = PretrainConfig {
            seed: 2,
            ..config.clone()
        };
        let often = PretrainConfig {
            checkpoint_every: 7,
            ..config.clone()
        };
        assert_ne!(config.fingerprint(), other.fingerprint());
        assert_eq!(config.fingerprint(), often.fingerprint());
    }
}
