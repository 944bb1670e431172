//! Sizes read from a model's configuration.

use crate::model::{LayerConfig, Mixer, MlpKind, ModelConfig, Role, TensorSpec};
use gym_protocol::job::spec::LoraSpec;

/// What of a model takes memory. Floats are per token unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) parameters: u64,
    /// Values that 4-bit weights replace.
    pub(super) quantisable: u64,
    /// The adapter's values.
    pub(super) trainable: u64,
    pub(super) vocabulary: u64,
    pub(super) layers: u64,
    pub(super) hidden: u64,
    /// Keys and values of all layers.
    pub(super) cache_floats: u64,
    /// A delta-net's state, once a sequence.
    pub(super) state_floats: u64,
    /// What the dearest block keeps for its backward pass.
    pub(super) block_floats: u64,
    /// What a block's operation holds beside that while it runs.
    pub(super) working_floats: u64,
}

impl Count {
    pub(super) fn of(config: &ModelConfig, lora: &LoraSpec) -> Self {
        let tensors = config.tensors();
        let elements = |of: &dyn Fn(&TensorSpec) -> bool| -> u64 {
            tensors
                .iter()
                .filter(|t| of(t))
                .map(|t| t.elements() as u64)
                .sum()
        };
        let rank = u64::from(lora.rank);
        let (mut cache_floats, mut state_floats, mut block_floats) = (0, 0, 0);
        for layer in &config.layers {
            match layer.mixer {
                Mixer::Attention { .. } => cache_floats += 2 * keys(config),
                Mixer::DeltaNet(net) => {
                    state_floats += (net.value_heads * net.key_dim * net.value_dim) as u64;
                }
            }
            block_floats = block_floats.max(block(config, layer, rank));
        }
        Self {
            parameters: elements(&|_| true),
            quantisable: elements(&|t| matches!(t.role, Role::Linear | Role::Expert)),
            trainable: tensors.iter().map(|t| adapter(t, lora)).sum(),
            vocabulary: config.vocab_size as u64,
            layers: config.layers.len() as u64,
            hidden: config.hidden_size as u64,
            cache_floats,
            state_floats,
            block_floats,
            // Gradients of the widest two tensors, and what is copied between them.
            working_floats: 4 * (config.hidden_size + widest(config)) as u64,
        }
    }
}

fn keys(config: &ModelConfig) -> u64 {
    (config.num_key_value_heads * config.head_dim) as u64
}

fn queries(config: &ModelConfig) -> u64 {
    (config.num_attention_heads * config.head_dim) as u64
}

fn widest(config: &ModelConfig) -> usize {
    config.experts().map_or(config.intermediate_size, |e| {
        e.per_token * e.intermediate_size + e.shared_size.unwrap_or(0)
    })
}

/// What one block keeps: the inputs of norms and linear layers, queries and keys before their norm and before their
/// rotation, what attention and SwiGLU need again, and each adapter's x·Aᵀ.
fn block(config: &ModelConfig, layer: &LayerConfig, rank: u64) -> u64 {
    let hidden = config.hidden_size as u64;
    let mixer = match layer.mixer {
        Mixer::Attention { .. } => {
            let gate = if config.parts.attention_gate {
                2 * queries(config)
            } else {
                0
            };
            4 * queries(config) + 4 * keys(config) + gate
        }
        Mixer::DeltaNet(net) => (4 * net.conv_width() + 4 * net.values_width()) as u64,
    };
    let mlp = match layer.mlp {
        MlpKind::Dense => 3 * config.intermediate_size as u64,
        MlpKind::Experts(experts) => {
            let routed = experts.per_token as u64 * (3 * experts.intermediate_size as u64 + 2 * hidden);
            routed + 3 * experts.shared_size.unwrap_or(0) as u64 + experts.count as u64
        }
    };
    4 * hidden + mixer + mlp + 7 * rank
}

/// The adapter's values on one tensor.
fn adapter(tensor: &TensorSpec, lora: &LoraSpec) -> u64 {
    let (Some(module), &[output, input]) = (tensor.name.strip_suffix(".weight"), &tensor.shape[..]) else {
        return 0;
    };
    let named = |target: &String| {
        module
            .strip_suffix(target.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let all = lora.target_modules == ["all-linear"];
    let rank = u64::from(lora.rank);
    let of = |input: usize| rank * (input + output) as u64;
    match tensor.role {
        Role::Linear if all || lora.target_modules.iter().any(named) => of(input),
        Role::Expert if !all && lora.target_modules.iter().any(named) => of(input),
        // PEFT's fused experts: gate and up share one A.
        Role::Expert if !all => {
            let fused = |part: &str| {
                lora.target_modules
                    .iter()
                    .any(|t| t.ends_with(&format!("experts.{part}")))
            };
            let last = module.rsplit('.').next().unwrap_or_default();
            match last {
                "gate_proj" if fused("gate_up_proj") => of(input),
                "up_proj" if fused("gate_up_proj") => of(0),
                "down_proj" if fused("down_proj") => of(input),
                _ => 0,
            }
        }
        Role::Linear
        | Role::Expert
        | Role::Embedding
        | Role::Head
        | Role::Norm
        | Role::Bias
        | Role::Router
        | Role::Convolution
        | Role::Decay => 0,
    }
}
