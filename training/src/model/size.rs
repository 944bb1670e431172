//! How large a model is, from its configuration alone.

use super::config::{Mixer, ModelConfig};
use super::layout::Role;

/// Bytes of NF4 for one value: half a byte of code, a byte of scale for 64, four bytes of scale for 256 of those.
const NF4_BYTES: f64 = 0.5 + 1.0 / 64.0 + 4.0 / (64.0 * 256.0);

/// Counts of a model's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelSize {
    /// All weights.
    pub parameters: u64,
    /// Weights that one token meets: of the routed experts, those it is sent to.
    pub active: u64,
    /// Weights that `use_4bit` holds in NF4: linear layers, routed experts among them.
    pub quantised: u64,
    /// Keys and values cached for one token in all attention layers.
    pub cached_per_token: u64,
    /// Values of state that a sequence has whatever its length, in delta-net layers.
    pub state_per_sequence: u64,
}

/// How weights are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Every value in four bytes.
    F32,
    /// Every value in two bytes.
    Bf16,
    /// Linear layers in NF4, the rest (embedding, head, norms, routers) in bf16.
    Nf4,
}

impl ModelSize {
    /// Bytes of the weights.
    #[must_use]
    pub fn bytes(&self, storage: Storage) -> u64 {
        match storage {
            Storage::F32 => 4 * self.parameters,
            Storage::Bf16 => 2 * self.parameters,
            Storage::Nf4 => (self.quantised as f64 * NF4_BYTES) as u64 + self.unquantised_bytes(),
        }
    }

    /// Of [`Storage::Nf4`], the bytes that are bf16.
    #[must_use]
    pub fn unquantised_bytes(&self) -> u64 {
        2 * (self.parameters - self.quantised)
    }
}

impl ModelConfig {
    /// How large the model is.
    #[must_use]
    pub fn size(&self) -> ModelSize {
        let mut size = ModelSize {
            parameters: 0,
            active: 0,
            quantised: 0,
            cached_per_token: 0,
            state_per_sequence: 0,
        };
        // A configuration that is being read may say anything: sums saturate.
        let mut experts = 0u64;
        for spec in self.tensors() {
            let elements = spec.elements() as u64;
            size.parameters = size.parameters.saturating_add(elements);
            match spec.role {
                Role::Expert => experts = elements.saturating_add(experts),
                Role::Linear => size.quantised = size.quantised.saturating_add(elements),
                Role::Embedding
                | Role::Head
                | Role::Norm
                | Role::Bias
                | Role::Router
                | Role::Convolution
                | Role::Decay => {}
            }
        }
        size.quantised = size.quantised.saturating_add(experts);
        let at_work = self
            .experts()
            .map_or(0, |e| experts / e.count as u64 * e.per_token as u64);
        size.active = (size.parameters - experts).saturating_add(at_work);
        for layer in &self.layers {
            match layer.mixer {
                Mixer::Attention { .. } => {
                    size.cached_per_token += 2 * (self.num_key_value_heads * self.head_dim) as u64;
                }
                Mixer::DeltaNet(net) => {
                    let state = net.value_heads * net.key_dim * net.value_dim;
                    size.state_per_sequence += (state + (net.kernel - 1) * net.conv_width()) as u64;
                }
            }
        }
        size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Configurations as the Hub has them, with the parameters that the models' cards state, in millions.
    #[test]
    fn published_models_have_their_published_sizes() {
        let models = [
            // Qwen/QwQ-32B: 32.5 B, 31.0 B without embeddings.
            (
                json!({ "architectures": ["Qwen2ForCausalLM"], "hidden_size": 5120, "intermediate_size": 27648,
                    "max_window_layers": 64, "num_attention_heads": 40, "num_hidden_layers": 64,
                    "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "sliding_window": 32768,
                    "use_sliding_window": false, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
                    "vocab_size": 152_064 }),
                32_764,
                32_764,
            ),
            // mistralai/Mixtral-8x7B-v0.1: 46.7 B, of which 12.9 B a token.
            (
                json!({ "architectures": ["MixtralForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
                    "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
                    "num_key_value_heads": 8, "num_local_experts": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
                    "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 32000 }),
                46_703,
                12_880,
            ),
            // Qwen/Qwen3-30B-A3B-Instruct-2507: 30.5 B, of which 3.3 B a token.
            (
                json!({ "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false,
                    "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144,
                    "max_window_layers": 48, "mlp_only_layers": [], "moe_intermediate_size": 768,
                    "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
                    "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
                    "rms_norm_eps": 1e-6, "rope_scaling": null, "rope_theta": 1e7, "sliding_window": null,
                    "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151_936 }),
                30_532,
                3_353,
            ),
            // Qwen/Qwen3-Next-80B-A3B-Instruct: 80 B with its multi-token head, which is not read; about 3 B a token.
            (
                json!({ "architectures": ["Qwen3NextForCausalLM"], "attention_bias": false,
                    "decoder_sparse_step": 1, "full_attention_interval": 4, "head_dim": 256, "hidden_size": 2048,
                    "intermediate_size": 5120, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
                    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
                    "mlp_only_layers": [], "moe_intermediate_size": 512, "norm_topk_prob": true,
                    "num_attention_heads": 16, "num_experts": 512, "num_experts_per_tok": 10,
                    "num_hidden_layers": 48, "num_key_value_heads": 2, "partial_rotary_factor": 0.25,
                    "rms_norm_eps": 1e-6, "rope_theta": 1e7, "shared_expert_intermediate_size": 512,
                    "tie_word_embeddings": false, "vocab_size": 151_936 }),
                79_674,
                3_875,
            ),
            // meta-llama/Llama-3.2-1B: 1.24 B.
            (
                json!({ "architectures": ["LlamaForCausalLM"], "attention_bias": false, "head_dim": 64,
                    "hidden_size": 2048, "intermediate_size": 8192, "mlp_bias": false,
                    "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
                    "rms_norm_eps": 1e-5, "rope_scaling": { "factor": 32.0, "high_freq_factor": 4.0,
                    "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3" },
                    "rope_theta": 500_000.0, "tie_word_embeddings": true, "vocab_size": 128_256 }),
                1_236,
                1_236,
            ),
            // mistralai/Mistral-7B-v0.1: 7.24 B.
            (
                json!({ "architectures": ["MistralForCausalLM"], "hidden_size": 4096,
                    "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
                    "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                    "sliding_window": 4096, "tie_word_embeddings": false, "vocab_size": 32000 }),
                7_242,
                7_242,
            ),
        ];
        for (config, total, active) in models {
            let name = config["architectures"][0].clone();
            let config = ModelConfig::from_json(config).unwrap();
            let size = config.size();
            assert_eq!((size.parameters + 500_000) / 1_000_000, total, "{name}");
            assert_eq!((size.active + 500_000) / 1_000_000, active, "{name}");
            assert!(size.bytes(Storage::Nf4) < size.bytes(Storage::Bf16) / 2, "{name}");
            let again = ModelConfig::from_json(config.to_json()).unwrap();
            assert_eq!(again, config, "{name}");
        }
    }
}
