//! Sizes read from a model's configuration.

use crate::model::{DeltaNetConfig, LayerConfig, MERGE_LIMIT, Mixer, MlpKind, ModelConfig, Role, TensorSpec};
use gym_protocol::job::spec::LoraSpec;

/// What of a model takes memory. Floats are per token unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) parameters: u64,
    /// Values that 4-bit weights replace.
    pub(super) quantisable: u64,
    /// Values of the linear layers that rollouts hold a second time with the adapter in them; the head's.
    pub(super) merged: u64,
    pub(super) merged_head: u64,
    /// The adapter's values.
    pub(super) trainable: u64,
    pub(super) vocabulary: u64,
    pub(super) layers: u64,
    pub(super) hidden: u64,
    /// Bytes of a value that is computed with on the CPU.
    pub(super) cpu_float: u64,
    /// Keys and values of all layers.
    pub(super) cache_floats: u64,
    /// A delta-net's state and last inputs, once a sequence.
    pub(super) state_floats: u64,
    /// What all blocks keep for their backward pass.
    pub(super) blocks: Kept,
    /// What the dearest block keeps.
    pub(super) block: Kept,
    /// What a block's operations hold while they run: forward alone, and backward beside what is kept.
    pub(super) forward_floats: u64,
    pub(super) backward_floats: u64,
}

/// Floats kept for the backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    /// A token.
    pub(super) token: u64,
    /// A place of a delta-net's chunks, which are padded.
    pub(super) place: u64,
}

impl Kept {
    fn plus(self, other: Self) -> Self {
        Self {
            token: self.token + other.token,
            place: self.place + other.place,
        }
    }
}

impl Count {
    pub(super) fn of(config: &ModelConfig, lora: &LoraSpec) -> Self {
        let tensors = config.tensors();
        let elements = |of: &dyn Fn(&TensorSpec) -> bool| -> u64 {
            let chosen = tensors.iter().filter(|t| of(t));
            chosen.map(|t| t.elements() as u64).sum()
        };
        let trainable = |of: &dyn Fn(&TensorSpec) -> bool| -> u64 {
            tensors.iter().filter(|t| of(t)).map(|t| adapter(t, lora)).sum()
        };
        let quantisable = elements(&|t| matches!(t.role, Role::Linear | Role::Expert));
        let blocks = Blocks {
            config,
            rank: u64::from(lora.rank),
            experts: if trainable(&|t| t.role == Role::Expert) > 0 {
                Adapted::Yes
            } else {
                Adapted::No
            },
        };
        let each: Vec<Kept> = config.layers.iter().map(|layer| blocks.kept(layer)).collect();
        let most = |floats: &dyn Fn(&LayerConfig) -> u64| config.layers.iter().map(floats).max().unwrap_or(0);
        let merges = quantisable <= MERGE_LIMIT as u64;
        let size = config.size();
        Self {
            parameters: elements(&|_| true),
            quantisable,
            merged: if merges { elements(&is_merged) } else { 0 },
            merged_head: if merges {
                (config.vocab_size * config.hidden_size) as u64
            } else {
                0
            },
            trainable: trainable(&|_| true),
            vocabulary: config.vocab_size as u64,
            layers: config.layers.len() as u64,
            hidden: config.hidden_size as u64,
            // With delta-nets the CPU computes in f64, and has some of it in f32 beside for what is held so.
            cpu_float: if config.delta_net().is_some() { 9 } else { 4 },
            cache_floats: size.cached_per_token,
            state_floats: size.state_per_sequence,
            blocks: each.iter().copied().fold(Kept::default(), Kept::plus),
            block: each
                .iter()
                .copied()
                .max_by_key(|kept| kept.token + kept.place)
                .unwrap_or_default(),
            forward_floats: most(&|layer| blocks.forward(layer)),
            backward_floats: most(&|layer| blocks.backward(layer)),
        }
    }
}

/// Linear layers whose weight takes the adapter in for rollouts (`Decoder::merged`).
fn is_merged(tensor: &TensorSpec) -> bool {
    let apart = ["linear_attn", "shared_expert"];
    tensor.role == Role::Linear && !apart.iter().any(|part| tensor.name.contains(part))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Adapted {
    Yes,
    No,
}

/// Counts what one block holds a token, operation by operation.
struct Blocks<'a> {
    config: &'a ModelConfig,
    rank: u64,
    /// Whether routed experts have adapters.
    experts: Adapted,
}

impl Blocks<'_> {
    /// What a block keeps: the inputs of norms, of linear layers with an adapter, and what attention, SwiGLU and the
    /// delta rule need again.
    fn kept(&self, layer: &LayerConfig) -> Kept {
        let hidden = self.hidden();
        // Both norms' inputs and results.
        let norms = Kept {
            token: 4 * hidden,
            place: 0,
        };
        let mlp = Kept {
            token: self.mlp(layer.mlp),
            place: 0,
        };
        let mixer = match layer.mixer {
            Mixer::Attention { .. } => Kept {
                token: self.attention(),
                place: 0,
            },
            Mixer::DeltaNet(net) => self.delta_net(net),
        };
        norms.plus(mixer).plus(mlp)
    }

    fn hidden(&self) -> u64 {
        self.config.hidden_size as u64
    }

    fn queries(&self) -> u64 {
        (self.config.num_attention_heads * self.config.head_dim) as u64
    }

    fn keys(&self) -> u64 {
        (self.config.num_key_value_heads * self.config.head_dim) as u64
    }

    /// q, k, v, o and the sums of its softmax; q and k before their norm; the output's gate and the gated output.
    fn attention(&self) -> u64 {
        let (queries, keys) = (self.queries(), self.keys());
        let normed = if self.config.parts.qk_norm {
            queries + keys
        } else {
            0
        };
        let gated = if self.config.parts.attention_gate {
            2 * queries
        } else {
            0
        };
        2 * queries + 2 * keys + self.config.num_attention_heads as u64 + normed + gated + 4 * self.rank
    }

    fn mlp(&self, kind: MlpKind) -> u64 {
        match kind {
            MlpKind::Dense => 3 * self.config.intermediate_size as u64 + 3 * self.rank,
            MlpKind::Experts(experts) => {
                let (k, width) = (experts.per_token as u64, experts.intermediate_size as u64);
                let adapted = match self.experts {
                    Adapted::Yes => self.hidden() + width + 3 * self.rank,
                    Adapted::No => 0,
                };
                let shared = experts
                    .shared_size
                    .map_or(0, |shared| 3 * shared as u64 + self.hidden() + 3 * self.rank);
                // Gate and up of every chosen expert, its output, and what its weight came from.
                k * (2 * width + self.hidden() + 8 + adapted) + 2 * experts.count as u64 + shared
            }
        }
    }

    /// The convolution's result, keys and queries before they are brought to length 1, values, gate and norm; then by
    /// place what the chunked delta rule multiplies, its 32 × 32 inverses and, once a chunk, the state.
    fn delta_net(&self, net: DeltaNetConfig) -> Kept {
        const CHUNK: u64 = 32;
        let (heads, key, value) = (net.value_heads as u64, net.key_dim as u64, net.value_dim as u64);
        let (keys, values) = (net.keys_width() as u64, net.values_width() as u64);
        Kept {
            token: 2 * net.conv_width() as u64 + 2 * keys + 6 * values + 10 * heads + 3 * self.rank,
            place: heads * (7 * key + 3 * value + 19 * CHUNK + key * value / CHUNK + 10),
        }
    }

    /// A pass without gradients.
    fn forward(&self, layer: &LayerConfig) -> u64 {
        let mixer = match layer.mixer {
            Mixer::Attention { .. } => 3 * self.queries() + 3 * self.keys(),
            Mixer::DeltaNet(net) => {
                let kept = self.delta_net(net);
                kept.token + kept.place
            }
        };
        3 * self.hidden() + mixer.max(self.mlp_at_work(layer.mlp))
    }

    /// Gradients on their way through a block.
    fn backward(&self, layer: &LayerConfig) -> u64 {
        let mixer = match layer.mixer {
            Mixer::Attention { .. } => 3 * self.queries() + 4 * self.keys(),
            Mixer::DeltaNet(net) => 2 * net.conv_width() as u64 + 4 * net.values_width() as u64,
        };
        2 * self.hidden() + mixer.max(self.mlp_at_work(layer.mlp))
    }

    fn mlp_at_work(&self, kind: MlpKind) -> u64 {
        match kind {
            MlpKind::Dense => 3 * self.config.intermediate_size as u64,
            MlpKind::Experts(experts) => experts.per_token as u64 * 3 * self.hidden(),
        }
    }
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
