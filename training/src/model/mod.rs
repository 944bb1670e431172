//! One decoder, assembled from parts by its configuration (TRAINING "Models").

mod assemble;
mod attention;
mod cache;
mod checkpoint;
mod config;
mod delta_net;
mod experts;
mod init;
mod layout;
mod linear;
mod mlp;
mod names;
mod norm;
mod packed;
mod pass;
mod precision;
mod rope;
mod routing;
mod save;
mod size;
mod store;
mod weights;

pub use cache::KvCache;
pub(crate) use checkpoint::Checkpointed;
pub use config::{
    Architecture, AttentionBias, ConfigError, DeltaNetConfig, ExpertsConfig, HeadKind, LayerConfig, Mixer,
    MlpKind, ModelConfig, NormKind, Parts, RopeConfig, RopeScaling, RoutingWeights,
};
pub use layout::{Role, TensorSpec};
pub(crate) use names::{StoredAt, stored_at};
pub use packed::{Packed, Segment};
pub use precision::{Loading, Precision};
pub(crate) use precision::{exact, narrow, wide};
pub use routing::{Routes, RoutesError, Routing};
pub use save::SaveError;
pub(crate) use save::{write_atomically, write_json, write_tensors};
pub use size::{ModelSize, Storage};
pub use store::{Store, WeightsError};
pub(crate) use store::{files as weight_files, map_file, to_f32};
pub use weights::{Weight, Weights};

use crate::lora::Lora;
use crate::ops::{self, Frozen};
use crate::quant::{QuantError, Quantisation};
use attention::Attention;
use burn::tensor::{DType, Device, Gradients, Int, Tensor, TensorData};
use delta_net::{DeltaNet, Sequences};
use experts::Experts;
use gym_protocol::tensor::{F32Tensor, TensorSet};
use mlp::Mlp;
use norm::RmsNorm;
use pass::{Memory, Pass, State};
use rope::Rope;
use routing::LayerRouting;
use std::path::Path;

/// A causal language model: embedding, blocks of token mixer and MLP, final norm, output head.
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
    /// Ids from here on belong to no token.
    drawable: usize,
}

/// Most values in linear layers for a second copy of them in rollouts: 256 MiB.
pub(crate) const MERGE_LIMIT: usize = 1 << 26;

/// x + mixer(norm(x)), then x + mlp(norm(x)).
#[derive(Clone, Debug)]
struct Block {
    mixer_norm: RmsNorm,
    mixer: MixerLayer,
    mlp_norm: RmsNorm,
    mlp: MlpLayer,
}

#[derive(Clone, Debug)]
enum MixerLayer {
    Attention(Box<Attention>),
    DeltaNet(Box<DeltaNet>),
}

#[derive(Clone, Debug)]
enum MlpLayer {
    Dense(Box<Mlp>),
    Experts(Box<Experts>),
}

/// A linear layer that an adapter can be put on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearLayer {
    /// Module path, `model.layers.0.self_attn.q_proj`.
    pub name: String,
    /// [out, in]
    pub shape: [usize; 2],
    /// What it belongs to.
    pub kind: LinearKind,
}

/// What a linear layer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearKind {
    /// Attention, delta-net, dense MLP or shared expert.
    Dense,
    /// A routed expert.
    Expert,
    /// A shared expert's gate.
    Gate,
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
    /// A tensor that cannot be quantised.
    #[error("tensor {name}: {source}")]
    Quantise {
        /// Its name.
        name: String,
        /// Why.
        source: QuantError,
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
        Self::load_as(dir, device, Quantisation::None)
    }

    /// The same held and computed as `loading` says; linear layers are quantised one after the other, straight
    /// from the files. Layers that bitsandbytes stored in NF4 stay as they are.
    ///
    /// # Errors
    /// As [`Decoder::load`]; a weight that is not finite.
    pub fn load_as(dir: &Path, device: &Device, loading: impl Into<Loading>) -> Result<Self, LoadError> {
        let config = ModelConfig::load(dir)?;
        let weights = Store::open(dir)?.weights(&config, &device.clone().inner(), loading.into())?;
        Self::from_weights(config, weights, device)
    }

    /// Fresh weights: normal with `initializer_range` from `seed`, norms at one.
    ///
    /// # Errors
    /// None for a configuration that [`ModelConfig::load`] accepted.
    pub fn init(config: ModelConfig, seed: u64, device: &Device) -> Result<Self, LoadError> {
        Self::init_as(config, seed, device, Quantisation::None)
    }

    /// The same held and computed as `loading` says.
    ///
    /// # Errors
    /// As [`Decoder::init`].
    pub fn init_as(
        config: ModelConfig,
        seed: u64,
        device: &Device,
        loading: impl Into<Loading>,
    ) -> Result<Self, LoadError> {
        let weights = init::weights(&config, seed, &device.clone().inner(), loading.into())?;
        Self::from_weights(config, weights, device)
    }

    /// Assembles the decoder from named weights.
    ///
    /// # Errors
    /// A tensor that is missing, unused or of another shape, by name.
    pub fn from_weights(config: ModelConfig, weights: Weights, device: &Device) -> Result<Self, LoadError> {
        assemble::decoder(config, weights, device)
    }

    /// The same model with ids from `limit` on never drawn: rows of the embedding that the tokenizer has no token for.
    /// They keep their share of the softmax.
    #[must_use]
    pub fn drawing_below(mut self, limit: usize) -> Self {
        self.drawable = limit.min(self.config.vocab_size);
        self
    }

    /// Ids below this one may be drawn.
    #[must_use]
    pub fn drawable(&self) -> usize {
        self.drawable
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

    /// Linear layers of the blocks that an adapter can be put on, in the order they are used. Routers and the output
    /// head are none.
    #[must_use]
    pub fn linear_layers(&self) -> Vec<LinearLayer> {
        self.config.linear_layers()
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
        .map(|d| d.drawing_below(self.drawable))
    }

    /// The same model without gradients.
    ///
    /// # Errors
    /// None: the weights are this model's own.
    pub fn inner(&self) -> Result<Self, LoadError> {
        Self::from_weights(self.config.clone(), self.weights.map(Weight::inner), &self.device)
            .map(|d| d.drawing_below(self.drawable))
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
        Self::from_weights(self.config.clone(), weights, &self.device).map(|d| d.drawing_below(self.drawable))
    }

    /// Takes the gradients of all weights of a tracked model out of `gradients`, by name; a weight the loss does
    /// not depend on has zeros.
    #[must_use]
    pub fn take_gradients(&self, gradients: &mut Gradients) -> TensorSet {
        let one = |weight: &Weight, gradients: &mut Gradients| match weight {
            Weight::Vector(t) => t.grad_remove(gradients).map(|g| Weight::Vector(g).to_host()),
            Weight::Matrix(t) => t.grad_remove(gradients).map(|g| Weight::Matrix(g).to_host()),
            Weight::Nf4(_) => None,
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
        self.run(
            packed.ids(),
            &self.pass(packed),
            lora,
            Memory::None,
            Routing::Router,
        )
    }

    /// Hidden states after the embedding and after each block, the last one normed: layers + 1 times [N, H].
    #[must_use]
    pub fn hidden_states(&self, packed: &Packed, lora: Option<&Lora>) -> Vec<Tensor<2>> {
        let pass = self.pass(packed);
        let ids: Vec<usize> = packed.ids().iter().map(|t| *t as usize).collect();
        let mut x = self.embedding.clone().select(0, indices(&ids, &self.device));
        let mut all = vec![x.clone()];
        for (layer, block) in self.blocks.iter().enumerate() {
            let (memory, mut routing) = (&mut Memory::None, Routing::Router);
            x = block.forward(x, &pass, lora, memory.layer(layer), routing.layer(layer));
            all.push(x.clone());
        }
        all.pop();
        all.push(self.norm.forward(x));
        all
    }

    /// The same with a say in which experts are used.
    ///
    /// # Errors
    /// Routes that were not recorded in a pass over these tokens.
    pub fn hidden_routed(
        &self,
        packed: &Packed,
        lora: Option<&Lora>,
        mut routing: Routing<'_>,
    ) -> Result<Tensor<2>, RoutesError> {
        routing.open(packed, &self.config)?;
        Ok(self.run(packed.ids(), &self.pass(packed), lora, Memory::None, routing))
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
        self.run(
            prompts.ids(),
            &self.pass(prompts),
            lora,
            Memory::Prefill(cache),
            Routing::Router,
        )
    }

    /// The same of one new token for each row of `cache`, [B, H].
    #[must_use]
    pub fn decode(&self, tokens: &[u32], lora: Option<&Lora>, cache: &mut KvCache) -> Tensor<2> {
        let pass = Pass {
            dtype: self.embedding.dtype(),
            layout: [].into(),
            rotation: self.rope.at(&cache.next_positions(), &self.device),
            sequences: None,
        };
        let hidden = self.run(tokens, &pass, lora, Memory::Decode(&mut *cache), Routing::Router);
        cache.advance();
        hidden
    }

    /// The same model for rollouts with `lora`: the adapter is put into the dense weights of attention and MLP, so it
    /// costs nothing a token. A second copy of these weights; for a model too large for that, the model as it is.
    #[must_use]
    pub(crate) fn merged(&self, lora: Option<&Lora>) -> Self {
        let layers = self.config.linear_layers();
        if layers
            .iter()
            .map(|l| l.shape.iter().product::<usize>())
            .sum::<usize>()
            > MERGE_LIMIT
        {
            return self.clone();
        }
        let head = match Frozen::from(self.head.clone()).merged(None) {
            Some(Frozen::Dense(head)) => head,
            Some(Frozen::Nf4(_)) | None => self.head.clone(),
        };
        Self {
            blocks: self.blocks.iter().map(|block| block.merged(lora)).collect(),
            head,
            ..self.clone()
        }
    }

    /// Logits [N, V] of hidden states [N, H], in f32.
    #[must_use]
    pub fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        let hidden = narrow(hidden, self.head.dtype());
        wide(ops::linear(hidden, &Frozen::from(self.head.clone()), None, None))
    }

    /// ∂/∂hidden [N, H] of a loss whose ∂/∂logits [N, V] is given: the head's backward pass.
    pub(crate) fn logits_backward(&self, by_logits: Tensor<2>) -> Tensor<2> {
        narrow(by_logits, self.head.dtype()).matmul(self.head.clone())
    }

    /// The blocks' first input, [N, H].
    fn embed(&self, tokens: &[u32]) -> Tensor<2> {
        let ids: Vec<usize> = tokens.iter().map(|t| *t as usize).collect();
        let x = self.embedding.clone().select(0, indices(&ids, &self.device));
        match self.config.delta_net() {
            Some(_) if x.dtype() == DType::F32 => exact(x),
            Some(_) | None => wide(x),
        }
    }

    fn pass(&self, packed: &Packed) -> Pass {
        let layout = packed.layout();
        let sequences = self
            .config
            .delta_net()
            .map(|_| Sequences::new(layout.clone(), &self.device));
        Pass {
            dtype: self.embedding.dtype(),
            layout,
            rotation: self.rope.at(&packed.positions(), &self.device),
            sequences,
        }
    }

    fn run(
        &self,
        tokens: &[u32],
        pass: &Pass,
        lora: Option<&Lora>,
        mut memory: Memory<'_>,
        mut routing: Routing<'_>,
    ) -> Tensor<2> {
        let mut x = self.embed(tokens);
        for (layer, block) in self.blocks.iter().enumerate() {
            x = block.forward(x, pass, lora, memory.layer(layer), routing.layer(layer));
        }
        narrow(self.norm.forward(x), pass.dtype)
    }
}

impl Block {
    fn merged(&self, lora: Option<&Lora>) -> Self {
        Self {
            mixer: match &self.mixer {
                MixerLayer::Attention(attention) => MixerLayer::Attention(Box::new(attention.merged(lora))),
                MixerLayer::DeltaNet(net) => MixerLayer::DeltaNet(net.clone()),
            },
            mlp: match &self.mlp {
                MlpLayer::Dense(mlp) => MlpLayer::Dense(Box::new(mlp.merged(lora))),
                MlpLayer::Experts(experts) => MlpLayer::Experts(experts.clone()),
            },
            ..self.clone()
        }
    }

    fn forward(
        &self,
        x: Tensor<2>,
        pass: &Pass,
        lora: Option<&Lora>,
        state: State<'_>,
        routing: LayerRouting<'_>,
    ) -> Tensor<2> {
        // The residual stream stays in f32, or f64: rounding it to bf16 at every layer would be the largest error of all.
        let stream = x.dtype();
        let dtype = if stream == DType::F64 { stream } else { pass.dtype };
        let normed = self.mixer_norm.forward(x.clone());
        let mixed = match &self.mixer {
            MixerLayer::Attention(attention) => {
                attention.forward(narrow(normed, pass.dtype), pass, lora, state)
            }
            MixerLayer::DeltaNet(net) => net.forward(narrow(normed, dtype), pass, lora, state),
        };
        let x = x + narrow(mixed, stream);
        let normed = self.mlp_norm.forward(x.clone());
        x + match &self.mlp {
            MlpLayer::Dense(mlp) => wide(mlp.forward(narrow(normed, dtype), lora)),
            MlpLayer::Experts(experts) => experts.forward(normed, dtype, lora, routing),
        }
    }
}

impl ModelConfig {
    /// Linear layers of the blocks that an adapter can be put on, in the order they are used.
    pub(crate) fn linear_layers(&self) -> Vec<LinearLayer> {
        self.tensors().into_iter().filter_map(LinearLayer::of).collect()
    }
}

impl LinearLayer {
    fn of(spec: TensorSpec) -> Option<Self> {
        let kind = match spec.role {
            Role::Linear => LinearKind::Dense,
            Role::Expert => LinearKind::Expert,
            Role::Router if spec.name.ends_with("shared_expert_gate.weight") => LinearKind::Gate,
            Role::Embedding
            | Role::Head
            | Role::Norm
            | Role::Bias
            | Role::Router
            | Role::Convolution
            | Role::Decay => return None,
        };
        Some(Self {
            name: spec.name.strip_suffix(".weight")?.to_owned(),
            shape: spec.shape.try_into().ok()?,
            kind,
        })
    }
}

fn indices(values: &[usize], device: &Device) -> Tensor<1, Int> {
    let values: Vec<i64> = values.iter().map(|v| *v as i64).collect();
    let count = values.len();
    Tensor::from_data(TensorData::new(values, [count]), device)
}
