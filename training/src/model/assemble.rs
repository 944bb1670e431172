//! A decoder out of its configuration and named weights.

use super::attention::Attention;
use super::config::{
    AttentionBias, DeltaNetConfig, ExpertsConfig, HeadKind, Mixer, MlpKind, ModelConfig, NormKind,
};
use super::delta_net::DeltaNet;
use super::experts::{Experts, SharedExpert};
use super::linear::Linear;
use super::mlp::Mlp;
use super::norm::RmsNorm;
use super::rope::Rope;
use super::weights::{Weight, Weights};
use super::{Block, Decoder, LoadError, MixerLayer, MlpLayer};
use crate::ops::{AttentionShape, Frozen};
use burn::tensor::{Device, Tensor};

/// Checks that `weights` are exactly what `config` asks for, and puts them in their places.
pub(super) fn decoder(config: ModelConfig, weights: Weights, device: &Device) -> Result<Decoder, LoadError> {
    check(&config, &weights)?;
    let parts = Assembly {
        config: &config,
        weights: &weights,
    };
    let embedding = parts.matrix("model.embed_tokens.weight")?;
    let blocks = (0..config.num_hidden_layers)
        .map(|i| parts.block(i))
        .collect::<Result<_, _>>()?;
    let norm = parts.norm("model.norm")?;
    let head = match config.head {
        HeadKind::Tied => embedding.clone(),
        HeadKind::Untied => parts.matrix("lm_head.weight")?,
    };
    Ok(Decoder {
        drawable: config.vocab_size,
        rope: Rope::new(&config.rope),
        embedding,
        blocks,
        norm,
        head,
        device: device.clone().inner(),
        config,
        weights,
    })
}

fn check(config: &ModelConfig, weights: &Weights) -> Result<(), LoadError> {
    let specs = config.tensors();
    for spec in &specs {
        let weight = weights.0.get(&spec.name).ok_or_else(|| LoadError::Missing {
            name: spec.name.clone(),
        })?;
        if weight.shape() != spec.shape {
            return Err(LoadError::Shape {
                name: spec.name.clone(),
                got: weight.shape(),
                want: spec.shape.clone(),
            });
        }
    }
    if specs.len() == weights.0.len() {
        return Ok(());
    }
    let known: std::collections::BTreeSet<&str> = specs.iter().map(|s| s.name.as_str()).collect();
    match weights.0.keys().find(|name| !known.contains(name.as_str())) {
        Some(name) => Err(LoadError::Unused {
            name: name.clone(),
            architecture: config.architecture.name(),
        }),
        None => Ok(()),
    }
}

struct Assembly<'a> {
    config: &'a ModelConfig,
    weights: &'a Weights,
}

impl Assembly<'_> {
    fn block(&self, index: usize) -> Result<Block, LoadError> {
        let layer = self.config.layers[index];
        let path = format!("model.layers.{index}");
        Ok(Block {
            mixer_norm: self.norm(&format!("{path}.input_layernorm"))?,
            mixer: match layer.mixer {
                Mixer::Attention { window } => {
                    MixerLayer::Attention(Box::new(self.attention(&format!("{path}.self_attn"), window)?))
                }
                Mixer::DeltaNet(config) => {
                    MixerLayer::DeltaNet(Box::new(self.delta_net(&format!("{path}.linear_attn"), config)?))
                }
            },
            mlp_norm: self.norm(&format!("{path}.post_attention_layernorm"))?,
            mlp: match layer.mlp {
                MlpKind::Dense => MlpLayer::Dense(Box::new(
                    self.mlp(&format!("{path}.mlp"), self.config.parts.mlp_bias)?,
                )),
                MlpKind::Experts(config) => {
                    MlpLayer::Experts(Box::new(self.experts(&format!("{path}.mlp"), config)?))
                }
            },
        })
    }

    fn attention(&self, path: &str, window: Option<usize>) -> Result<Attention, LoadError> {
        let config = self.config;
        let bias = config.parts.attention_bias;
        let linear = |name, with| self.linear(format!("{path}.{name}"), with);
        let qk_norm = match config.parts.qk_norm {
            true => Some((
                self.norm(&format!("{path}.q_norm"))?,
                self.norm(&format!("{path}.k_norm"))?,
            )),
            false => None,
        };
        Ok(Attention {
            q: linear("q_proj", bias != AttentionBias::None)?,
            k: linear("k_proj", bias != AttentionBias::None)?,
            v: linear("v_proj", bias != AttentionBias::None)?,
            o: linear("o_proj", bias == AttentionBias::All)?,
            qk_norm,
            gated: config.parts.attention_gate,
            shape: AttentionShape {
                heads: config.num_attention_heads,
                kv_heads: config.num_key_value_heads,
                head_dim: config.head_dim,
                window,
            },
        })
    }

    fn delta_net(&self, path: &str, config: DeltaNetConfig) -> Result<DeltaNet, LoadError> {
        let linear = |name| self.linear(format!("{path}.{name}"), false);
        let norm = self.vector(&format!("{path}.norm.weight"))?;
        Ok(DeltaNet {
            config,
            qkvz: linear("in_proj_qkvz")?,
            ba: linear("in_proj_ba")?,
            taps: self.matrix(&format!("{path}.conv1d.weight"))?,
            dt_bias: self.vector(&format!("{path}.dt_bias"))?,
            a_log: self.vector(&format!("{path}.A_log"))?,
            norm: RmsNorm::new(norm, self.config.rms_norm_eps, NormKind::Plain),
            out: linear("out_proj")?,
        })
    }

    fn experts(&self, path: &str, config: ExpertsConfig) -> Result<Experts, LoadError> {
        let shared = match config.shared_size {
            Some(_) => Some(SharedExpert {
                mlp: self.mlp(&format!("{path}.shared_expert"), false)?,
                gate: self.linear(format!("{path}.shared_expert_gate"), false)?,
            }),
            None => None,
        };
        Ok(Experts {
            config,
            router: self.matrix(&format!("{path}.gate.weight"))?,
            experts: (0..config.count)
                .map(|e| self.mlp(&format!("{path}.experts.{e}"), false))
                .collect::<Result<_, _>>()?,
            shared,
        })
    }

    fn mlp(&self, path: &str, bias: bool) -> Result<Mlp, LoadError> {
        Ok(Mlp {
            gate: self.linear(format!("{path}.gate_proj"), bias)?,
            up: self.linear(format!("{path}.up_proj"), bias)?,
            down: self.linear(format!("{path}.down_proj"), bias)?,
        })
    }

    fn linear(&self, name: String, bias: bool) -> Result<Linear, LoadError> {
        let weight = self.frozen(&format!("{name}.weight"))?;
        let bias = match bias {
            true => Some(self.vector(&format!("{name}.bias"))?),
            false => None,
        };
        Ok(Linear::new(name, weight, bias))
    }

    fn norm(&self, module: &str) -> Result<RmsNorm, LoadError> {
        let weight = self.vector(&format!("{module}.weight"))?;
        Ok(RmsNorm::new(
            weight,
            self.config.rms_norm_eps,
            self.config.parts.norm,
        ))
    }

    fn vector(&self, name: &str) -> Result<Tensor<1>, LoadError> {
        match self.weights.0.get(name) {
            Some(Weight::Vector(t)) => Ok(t.clone()),
            Some(Weight::Matrix(_) | Weight::Nf4(_)) | None => Err(LoadError::Missing { name: name.into() }),
        }
    }

    fn frozen(&self, name: &str) -> Result<Frozen, LoadError> {
        match self.weights.0.get(name) {
            Some(Weight::Matrix(t)) => Ok(Frozen::Dense(t.clone())),
            Some(Weight::Nf4(t)) => Ok(Frozen::Nf4(t.clone())),
            Some(Weight::Vector(_)) | None => Err(LoadError::Missing { name: name.into() }),
        }
    }

    fn matrix(&self, name: &str) -> Result<Tensor<2>, LoadError> {
        match self.weights.0.get(name) {
            Some(Weight::Matrix(t)) => Ok(t.clone()),
            Some(Weight::Vector(_) | Weight::Nf4(_)) | None => Err(LoadError::Missing { name: name.into() }),
        }
    }
}
