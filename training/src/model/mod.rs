//! One decoder, assembled from parts by its configuration (TRAINING "Models").

mod attention;
mod cache;
mod config;
mod init;
mod linear;
mod mlp;
mod norm;
mod packed;
mod pass;
mod rope;
mod save;
mod weights;

pub use cache::KvCache;
pub use config::{Architecture, ConfigError, HeadKind, ModelConfig, RopeConfig};
pub use packed::{Packed, Segment};
pub use save::SaveError;
pub(crate) use save::{write_atomically, write_json, write_tensors};
pub use weights::{Weight, Weights, WeightsError};
pub(crate) use weights::{map_file, to_f32};

use crate::lora::Lora;
use crate::ops::AttentionShape;
use attention::Attention;
use burn::tensor::{Device, Gradients, Int, Tensor, TensorData};
use gym_protocol::tensor::{F32Tensor, TensorSet};
use linear::Linear;
use mlp::Mlp;
use norm::RmsNorm;
use pass::{Memory, Pass, State};
use rope::Rope;
use std::collections::BTreeMap;
use std::path::Path;

/// A causal language model: embedding, blocks of attention and MLP, final norm, output head.
///
/// Its tensors are on the inner device (no gradients) unless it came from [`Decoder::tracked`]. A clone is cheap:
/// tensors are shared.
#[derive(Clone, Debug)]
pub struct Decoder {
    config: ModelConfig,
    weights: Weights,
    embedding: Tensor<2>,
    blocks: Vec<Block>,
    norm: RmsNorm,
    head: Tensor<2>,
    rope: Rope,
    device: Device,
}

/// x + attention(norm(x)), then x + mlp(norm(x)).
#[derive(Clone, Debug)]
struct Block {
    attention_norm: RmsNorm,
    attention: Attention,
    mlp_norm: RmsNorm,
    mlp: Mlp,
}

/// Why a model directory is refused.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// `config.json`.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The weight files.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A tensor the configuration asks for is not there.
    #[error("the model has no tensor {name}, which its config.json asks for; fetch the model again")]
    Missing {
        /// Its name.
        name: String,
    },
    /// A tensor has another shape than the configuration says.
    #[error("tensor {name} has shape {got:?} where config.json asks for {want:?}")]
    Shape {
        /// Its name.
        name: String,
        /// In the file.
        got: Vec<usize>,
        /// By the configuration.
        want: Vec<usize>,
    },
    /// A tensor nothing uses: another architecture than config.json says.
    #[error("tensor {name} is used by nothing in a {architecture}; is config.json this model's?")]
    Unused {
        /// Its name.
        name: String,
        /// The family.
        architecture: &'static str,
    },
}

impl Decoder {
    /// Loads a Hugging Face model directory onto `device`, frozen, in f32.
    ///
    /// # Errors
    /// An unreadable or unsupported file; a tensor that is missing, unused or of another shape, by name.
    pub fn load(dir: &Path, device: &Device) -> Result<Self, LoadError> {
        let config = ModelConfig::load(dir)?;
        let weights = Weights::load(dir, &device.clone().inner())?;
        Self::from_weights(config, weights, device)
    }

    /// Fresh weights: normal with `initializer_range` from `seed`, norms at one.
    ///
    /// # Errors
    /// None for a configuration that [`ModelConfig::load`] accepted.
    pub fn init(config: ModelConfig, seed: u64, device: &Device) -> Result<Self, LoadError> {
        let weights = init::weights(&config, seed, &device.clone().inner());
        Self::from_weights(config, weights, device)
    }

    /// Assembles the decoder from named weights.
    ///
    /// # Errors
    /// A tensor that is missing, unused or of another shape, by name.
    pub fn from_weights(config: ModelConfig, weights: Weights, device: &Device) -> Result<Self, LoadError> {
        let mut parts = Parts {
            config: &config,
            left: weights.0,
            used: Weights::default(),
        };
        let embedding = parts.matrix(
            "model.embed_tokens.weight",
            [config.vocab_size, config.hidden_size],
        )?;
        let blocks = (0..config.num_hidden_layers)
            .map(|i| parts.block(i))
            .collect::<Result<_, _>>()?;
        let norm = parts.norm("model.norm.weight", config.hidden_size)?;
        let head = match config.head {
            HeadKind::Tied => embedding.clone(),
            HeadKind::Untied => parts.matrix("lm_head.weight", [config.vocab_size, config.hidden_size])?,
        };
        let weights = parts.finish()?;
        let rope = Rope::new(&config.rope, config.head_dim);
        Ok(Self {
            config,
            weights,
            embedding,
            blocks,
            norm,
            head,
            rope,
            device: device.clone().inner(),
        })
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The device, without autodiff.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The weights by Hugging Face name.
    #[must_use]
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// The same model with every weight a leaf that keeps its gradient, for pretraining.
    ///
    /// # Errors
    /// None: the weights are this model's own.
    pub fn tracked(&self) -> Result<Self, LoadError> {
        Self::from_weights(
            self.config.clone(),
            self.weights.map(Weight::tracked),
            &self.device,
        )
    }

    /// The same model without gradients.
    ///
    /// # Errors
    /// None: the weights are this model's own.
    pub fn inner(&self) -> Result<Self, LoadError> {
        Self::from_weights(self.config.clone(), self.weights.map(Weight::inner), &self.device)
    }

    /// The same model with other values, by name.
    ///
    /// # Errors
    /// When a tensor of the model is missing in `set`, one is too many, or a shape differs.
    pub fn with_host(&self, set: &TensorSet) -> Result<Self, LoadError> {
        let mut weights = Weights::default();
        for (name, tensor) in &set.0 {
            let shape: Vec<usize> = tensor.shape.iter().map(|n| *n as usize).collect();
            let weight = Weight::from_host(&shape, tensor.data.clone(), &self.device).ok_or_else(|| {
                LoadError::Shape {
                    name: name.clone(),
                    got: shape.clone(),
                    want: Vec::new(),
                }
            })?;
            weights.0.insert(name.clone(), weight);
        }
        Self::from_weights(self.config.clone(), weights, &self.device)
    }

    /// Takes the gradients of all weights of a tracked model out of `gradients`, by name; a weight the loss does
    /// not depend on has zeros.
    #[must_use]
    pub fn take_gradients(&self, gradients: &mut Gradients) -> TensorSet {
        let one = |weight: &Weight, gradients: &mut Gradients| match weight {
            Weight::Vector(t) => t.grad_remove(gradients).map(|g| Weight::Vector(g).to_host()),
            Weight::Matrix(t) => t.grad_remove(gradients).map(|g| Weight::Matrix(g).to_host()),
        };
        let all = self.weights.0.iter().map(|(name, weight)| {
            let shape = weight.shape();
            let zeros = || F32Tensor {
                shape: shape.iter().map(|n| *n as u64).collect(),
                data: vec![0.0; shape.iter().product()],
            };
            (name.clone(), one(weight, gradients).unwrap_or_else(zeros))
        });
        TensorSet(all.collect())
    }

    /// Hidden states after the final norm, [N, H], in packed order.
    #[must_use]
    pub fn hidden(&self, packed: &Packed, lora: Option<&Lora>) -> Tensor<2> {
        self.run(packed.ids(), &self.pass(packed), lora, Memory::None)
    }

    /// The same at `places` of the packed order only, [places, H].
    #[must_use]
    pub fn hidden_at(&self, packed: &Packed, lora: Option<&Lora>, places: &[usize]) -> Tensor<2> {
        self.hidden(packed, lora).select(0, indices(places, &self.device))
    }

    /// The same of prompts, one a row of the empty `cache`, which is filled.
    #[must_use]
    pub fn prefill(&self, prompts: &Packed, lora: Option<&Lora>, cache: &mut KvCache) -> Tensor<2> {
        cache.open(prompts.segments());
        self.run(prompts.ids(), &self.pass(prompts), lora, Memory::Prefill(cache))
    }

    /// The same of one new token for each row of `cache`, [B, H].
    #[must_use]
    pub fn decode(&self, tokens: &[u32], lora: Option<&Lora>, cache: &mut KvCache) -> Tensor<2> {
        let pass = Pass {
            layout: [].into(),
            rotation: self.rope.at(&cache.next_positions(), &self.device),
        };
        let hidden = self.run(tokens, &pass, lora, Memory::Decode(&mut *cache));
        cache.advance();
        hidden
    }

    /// Logits [N, V] of hidden states [N, H].
    #[must_use]
    pub fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        hidden.matmul(self.head.clone().transpose())
    }

    /// ∂/∂hidden [N, H] of a loss whose ∂/∂logits [N, V] is given: the head's backward pass.
    pub(crate) fn logits_backward(&self, by_logits: Tensor<2>) -> Tensor<2> {
        by_logits.matmul(self.head.clone())
    }

    fn pass(&self, packed: &Packed) -> Pass {
        Pass {
            layout: packed.layout(),
            rotation: self.rope.at(&packed.positions(), &self.device),
        }
    }

    fn run(&self, tokens: &[u32], pass: &Pass, lora: Option<&Lora>, mut memory: Memory<'_>) -> Tensor<2> {
        let ids: Vec<usize> = tokens.iter().map(|t| *t as usize).collect();
        let mut x = self.embedding.clone().select(0, indices(&ids, &self.device));
        for (layer, block) in self.blocks.iter().enumerate() {
            x = block.forward(x, pass, lora, memory.layer(layer));
        }
        self.norm.forward(x)
    }
}

impl Block {
    fn forward(&self, x: Tensor<2>, pass: &Pass, lora: Option<&Lora>, state: State<'_>) -> Tensor<2> {
        let attended = self
            .attention
            .forward(self.attention_norm.forward(x.clone()), pass, lora, state);
        let x = x + attended;
        x.clone() + self.mlp.forward(self.mlp_norm.forward(x), lora)
    }
}

fn indices(values: &[usize], device: &Device) -> Tensor<1, Int> {
    let values: Vec<i64> = values.iter().map(|v| *v as i64).collect();
    let count = values.len();
    Tensor::from_data(TensorData::new(values, [count]), device)
}

/// Takes weights by name while a decoder is assembled.
struct Parts<'a> {
    config: &'a ModelConfig,
    left: BTreeMap<String, Weight>,
    used: Weights,
}

impl Parts<'_> {
    fn block(&mut self, index: usize) -> Result<Block, LoadError> {
        let config = self.config;
        let (hidden, dim) = (config.hidden_size, config.head_dim);
        let (q, kv) = (config.num_attention_heads * dim, config.num_key_value_heads * dim);
        let path = format!("model.layers.{index}");
        let attention = Attention {
            q: self.linear(format!("{path}.self_attn.q_proj"), [q, hidden])?,
            k: self.linear(format!("{path}.self_attn.k_proj"), [kv, hidden])?,
            v: self.linear(format!("{path}.self_attn.v_proj"), [kv, hidden])?,
            o: self.linear(format!("{path}.self_attn.o_proj"), [hidden, q])?,
            qk_norm: Some((
                self.norm(&format!("{path}.self_attn.q_norm.weight"), dim)?,
                self.norm(&format!("{path}.self_attn.k_norm.weight"), dim)?,
            )),
            shape: AttentionShape {
                heads: config.num_attention_heads,
                kv_heads: config.num_key_value_heads,
                head_dim: dim,
                window: None,
            },
        };
        let mlp = Mlp {
            gate: self.linear(
                format!("{path}.mlp.gate_proj"),
                [config.intermediate_size, hidden],
            )?,
            up: self.linear(format!("{path}.mlp.up_proj"), [config.intermediate_size, hidden])?,
            down: self.linear(
                format!("{path}.mlp.down_proj"),
                [hidden, config.intermediate_size],
            )?,
        };
        Ok(Block {
            attention_norm: self.norm(&format!("{path}.input_layernorm.weight"), hidden)?,
            attention,
            mlp_norm: self.norm(&format!("{path}.post_attention_layernorm.weight"), hidden)?,
            mlp,
        })
    }

    fn linear(&mut self, name: String, shape: [usize; 2]) -> Result<Linear, LoadError> {
        let weight = self.matrix(&format!("{name}.weight"), shape)?;
        Ok(Linear::new(name, weight, None))
    }

    fn norm(&mut self, name: &str, size: usize) -> Result<RmsNorm, LoadError> {
        let weight = self.take(name)?;
        match &weight {
            Weight::Vector(t) if t.dims() == [size] => {
                let norm = RmsNorm::new(t.clone(), self.config.rms_norm_eps);
                self.used.0.insert(name.into(), weight);
                Ok(norm)
            }
            Weight::Vector(_) | Weight::Matrix(_) => Err(shape_error(name, &weight, &[size])),
        }
    }

    fn matrix(&mut self, name: &str, shape: [usize; 2]) -> Result<Tensor<2>, LoadError> {
        let weight = self.take(name)?;
        match &weight {
            Weight::Matrix(t) if t.dims() == shape => {
                let matrix = t.clone();
                self.used.0.insert(name.into(), weight);
                Ok(matrix)
            }
            Weight::Vector(_) | Weight::Matrix(_) => Err(shape_error(name, &weight, &shape)),
        }
    }

    fn take(&mut self, name: &str) -> Result<Weight, LoadError> {
        self.left
            .remove(name)
            .ok_or_else(|| LoadError::Missing { name: name.into() })
    }

    /// The weights used, once nothing is left over but what the family may ignore.
    fn finish(self) -> Result<Weights, LoadError> {
        let tied = self.config.head == HeadKind::Tied;
        let ignored = |name: &str| {
            name.starts_with("mtp.")
                || name.ends_with("rotary_emb.inv_freq")
                || (tied && name == "lm_head.weight")
        };
        match self.left.into_keys().find(|name| !ignored(name)) {
            Some(name) => Err(LoadError::Unused {
                name,
                architecture: self.config.architecture.name(),
            }),
            None => Ok(self.used),
        }
    }
}

fn shape_error(name: &str, weight: &Weight, want: &[usize]) -> LoadError {
    LoadError::Shape {
        name: name.into(),
        got: weight.shape(),
        want: want.to_vec(),
    }
}
