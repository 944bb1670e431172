//! Every tensor a configuration asks for: its name, its extent and what it is for.

use super::config::{AttentionBias, DeltaNetConfig, ExpertsConfig, HeadKind, Mixer, MlpKind, ModelConfig};

/// What a tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The token embedding.
    Embedding,
    /// The output head of an untied model.
    Head,
    /// A norm's weight.
    Norm,
    /// A linear layer's bias.
    Bias,
    /// Weights of a router or of a shared expert's gate.
    Router,
    /// A linear layer of attention, delta-net, dense MLP or shared expert.
    Linear,
    /// A linear layer of a routed expert.
    Expert,
    /// A delta-net's convolution.
    Convolution,
    /// A delta-net's decay: `A_log`, `dt_bias`.
    Decay,
}

/// One tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name in the newest style, experts apart: `model.layers.0.mlp.experts.3.up_proj.weight`.
    pub name: String,
    /// Extent: [n], or [out, in]; a convolution's is [features, taps].
    pub shape: Vec<usize>,
    /// Use.
    pub role: Role,
}

impl TensorSpec {
    /// Values.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

impl ModelConfig {
    /// Every tensor of the model, in the order they are used.
    #[must_use]
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let mut list = List(Vec::new());
        let table = [self.vocab_size, self.hidden_size];
        list.add("model.embed_tokens.weight".into(), &table, Role::Embedding);
        for (index, layer) in self.layers.iter().enumerate() {
            let path = format!("model.layers.{index}");
            list.norm(format!("{path}.input_layernorm"), self.hidden_size);
            match layer.mixer {
                Mixer::Attention { .. } => list.attention(self, &format!("{path}.self_attn")),
                Mixer::DeltaNet(config) => list.delta_net(&config, self, &format!("{path}.linear_attn")),
            }
            list.norm(format!("{path}.post_attention_layernorm"), self.hidden_size);
            match layer.mlp {
                MlpKind::Dense => list.mlp(self, &format!("{path}.mlp")),
                MlpKind::Experts(experts) => list.experts(&experts, self, &format!("{path}.mlp")),
            }
        }
        list.norm("model.norm".into(), self.hidden_size);
        if self.head == HeadKind::Untied {
            list.add("lm_head.weight".into(), &table, Role::Head);
        }
        list.0
    }
}

struct List(Vec<TensorSpec>);

impl List {
    fn add(&mut self, name: String, shape: &[usize], role: Role) {
        self.0.push(TensorSpec {
            name,
            shape: shape.to_vec(),
            role,
        });
    }

    fn norm(&mut self, module: String, width: usize) {
        self.add(format!("{module}.weight"), &[width], Role::Norm);
    }

    fn linear(&mut self, module: String, shape: [usize; 2], bias: bool) {
        if bias {
            self.add(format!("{module}.bias"), &shape[..1], Role::Bias);
        }
        self.add(format!("{module}.weight"), &shape, Role::Linear);
    }

    fn attention(&mut self, config: &ModelConfig, path: &str) {
        let (hidden, dim) = (config.hidden_size, config.head_dim);
        let heads = config.num_attention_heads * dim;
        let kv = config.num_key_value_heads * dim;
        let q = if config.parts.attention_gate {
            2 * heads
        } else {
            heads
        };
        let bias = config.parts.attention_bias;
        for (name, width) in [("q_proj", q), ("k_proj", kv), ("v_proj", kv)] {
            let shape = [width, hidden];
            self.linear(format!("{path}.{name}"), shape, bias != AttentionBias::None);
        }
        let shape = [hidden, heads];
        self.linear(format!("{path}.o_proj"), shape, bias == AttentionBias::All);
        if config.parts.qk_norm {
            self.norm(format!("{path}.q_norm"), dim);
            self.norm(format!("{path}.k_norm"), dim);
        }
    }

    fn delta_net(&mut self, net: &DeltaNetConfig, config: &ModelConfig, path: &str) {
        let hidden = config.hidden_size;
        let (keys, values) = (net.keys_width(), net.values_width());
        let qkvz = [2 * keys + 2 * values, hidden];
        self.linear(format!("{path}.in_proj_qkvz"), qkvz, false);
        self.linear(format!("{path}.in_proj_ba"), [2 * net.value_heads, hidden], false);
        let taps = [net.conv_width(), net.kernel];
        self.add(format!("{path}.conv1d.weight"), &taps, Role::Convolution);
        self.add(format!("{path}.dt_bias"), &[net.value_heads], Role::Decay);
        self.add(format!("{path}.A_log"), &[net.value_heads], Role::Decay);
        self.norm(format!("{path}.norm"), net.value_dim);
        self.linear(format!("{path}.out_proj"), [hidden, values], false);
    }

    fn mlp(&mut self, config: &ModelConfig, path: &str) {
        let bias = config.parts.mlp_bias;
        for (name, shape) in swiglu(config.hidden_size, config.intermediate_size) {
            self.linear(format!("{path}.{name}"), shape, bias);
        }
    }

    fn experts(&mut self, experts: &ExpertsConfig, config: &ModelConfig, path: &str) {
        let hidden = config.hidden_size;
        self.add(
            format!("{path}.gate.weight"),
            &[experts.count, hidden],
            Role::Router,
        );
        for expert in 0..experts.count {
            for (name, shape) in swiglu(hidden, experts.intermediate_size) {
                let name = format!("{path}.experts.{expert}.{name}.weight");
                self.add(name, &shape, Role::Expert);
            }
        }
        if let Some(width) = experts.shared_size {
            for (name, shape) in swiglu(hidden, width) {
                self.linear(format!("{path}.shared_expert.{name}"), shape, false);
            }
            let gate = format!("{path}.shared_expert_gate.weight");
            self.add(gate, &[1, hidden], Role::Router);
        }
    }
}

fn swiglu(hidden: usize, width: usize) -> [(&'static str, [usize; 2]); 3] {
    [
        ("gate_proj", [width, hidden]),
        ("up_proj", [width, hidden]),
        ("down_proj", [hidden, width]),
    ]
}
