//! The newest-style `config.json` of a configuration.

use super::parts::{AttentionBias, ExpertsConfig, Mixer, MlpKind, RopeConfig, RopeScaling, RoutingWeights};
use super::{Architecture, HeadKind, ModelConfig};
use serde_json::{Map, Value, json};

impl ModelConfig {
    /// The newest-style `config.json`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        let mut put = |entries: Value| {
            if let Value::Object(entries) = entries {
                object.extend(entries);
            }
        };
        put(self.common());
        put(self.mixers());
        if let Some(experts) = self.experts() {
            put(self.expert_keys(&experts));
        }
        Value::Object(object)
    }

    /// The `generation_config.json` that goes with it.
    #[must_use]
    pub fn generation_json(&self) -> Value {
        json!({
            "bos_token_id": self.bos_token_id,
            "eos_token_id": ids(&self.eos_token_ids),
            "pad_token_id": self.pad_token_id,
        })
    }

    fn common(&self) -> Value {
        json!({
            "architectures": [self.architecture.name()],
            "attention_bias": self.parts.attention_bias == AttentionBias::All,
            "attention_dropout": 0.0,
            "bos_token_id": self.bos_token_id,
            "dtype": "float32",
            "eos_token_id": ids(&self.eos_token_ids),
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "initializer_range": self.initializer_range,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.max_position_embeddings,
            "mlp_bias": self.parts.mlp_bias,
            "model_type": self.architecture.model_type(),
            "num_attention_heads": self.num_attention_heads,
            "num_hidden_layers": self.num_hidden_layers,
            "num_key_value_heads": self.num_key_value_heads,
            "pad_token_id": self.pad_token_id,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_parameters": rope(&self.rope, self.head_dim),
            "tie_word_embeddings": self.head == HeadKind::Tied,
            "use_cache": true,
            "vocab_size": self.vocab_size,
        })
    }

    fn mixers(&self) -> Value {
        let window = self.layers.iter().find_map(|l| match l.mixer {
            Mixer::Attention { window } => window,
            Mixer::DeltaNet(_) => None,
        });
        match self.architecture {
            Architecture::Llama => json!({}),
            Architecture::Mistral | Architecture::Mixtral => json!({ "sliding_window": window }),
            Architecture::Qwen3Moe => {
                json!({ "sliding_window": window, "use_sliding_window": window.is_some() })
            }
            Architecture::Qwen2 | Architecture::Qwen3 => json!({
                "layer_types": self.layer_types(),
                "sliding_window": window,
                "use_sliding_window": window.is_some(),
            }),
            Architecture::Qwen3Next => self.delta_net_keys(),
        }
    }

    fn layer_types(&self) -> Vec<&'static str> {
        let name = |mixer| match mixer {
            Mixer::Attention { window: None } => "full_attention",
            Mixer::Attention { window: Some(_) } => "sliding_attention",
            Mixer::DeltaNet(_) => "linear_attention",
        };
        self.layers.iter().map(|l| name(l.mixer)).collect()
    }

    fn delta_net_keys(&self) -> Value {
        match self.delta_net() {
            Some(config) => json!({
                "layer_types": self.layer_types(),
                "linear_conv_kernel_dim": config.kernel,
                "linear_key_head_dim": config.key_dim,
                "linear_num_key_heads": config.key_heads,
                "linear_num_value_heads": config.value_heads,
                "linear_value_head_dim": config.value_dim,
            }),
            None => json!({ "layer_types": self.layer_types() }),
        }
    }

    fn expert_keys(&self, experts: &ExpertsConfig) -> Value {
        let mut value = json!({
            "num_experts_per_tok": experts.per_token,
            "output_router_logits": false,
        });
        // Older readers know Qwen's as num_experts; newer ones take either.
        let count = if self.architecture == Architecture::Mixtral {
            "num_local_experts"
        } else {
            "num_experts"
        };
        value[count] = json!(experts.count);
        if self.architecture == Architecture::Mixtral {
            value["intermediate_size"] = json!(experts.intermediate_size);
            return value;
        }
        let dense = |(i, l): (usize, &super::LayerConfig)| (l.mlp == MlpKind::Dense).then_some(i);
        let dense: Vec<usize> = self.layers.iter().enumerate().filter_map(dense).collect();
        value["decoder_sparse_step"] = json!(1);
        value["mlp_only_layers"] = json!(dense);
        value["moe_intermediate_size"] = json!(experts.intermediate_size);
        value["norm_topk_prob"] = json!(experts.weights == RoutingWeights::Normalised);
        if let Some(shared) = experts.shared_size {
            value["shared_expert_intermediate_size"] = json!(shared);
        }
        value
    }
}

fn rope(rope: &RopeConfig, head_dim: usize) -> Value {
    let mut value = match rope.scaling {
        RopeScaling::None => json!({ "rope_type": "default" }),
        RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original_max_position_embeddings,
        }),
    };
    value["rope_theta"] = json!(rope.theta);
    if rope.width != head_dim {
        value["partial_rotary_factor"] = json!(rope.width as f64 / head_dim as f64);
    }
    value
}

fn ids(ids: &[u32]) -> Value {
    match ids {
        [] => Value::Null,
        [one] => json!(one),
        many => json!(many),
    }
}
