//! From each family's keys to parts.

use super::parts::{
    AttentionBias, DeltaNetConfig, ExpertsConfig, LayerConfig, Mixer, MlpKind, NormKind, Parts, RopeConfig,
    RopeScaling, RoutingWeights,
};
use super::reader::Reader;
use super::{Architecture, ConfigError, HeadKind, ModelConfig};

/// More layers or experts than any model has; a bound on what a stranger's file makes us allocate.
const MOST_LAYERS: usize = 1024;
const MOST_EXPERTS: usize = 4096;

impl Reader {
    pub(super) fn config(&self) -> Result<ModelConfig, ConfigError> {
        let architecture = self.architecture()?;
        if let Some(other) = self.text("hidden_act").filter(|a| *a != "silu") {
            return Err(self.key("hidden_act", &format!("is {other}; only silu is implemented")));
        }
        let hidden_size = self.size("hidden_size")?;
        let num_attention_heads = self.count("num_attention_heads", MOST_EXPERTS)?;
        let num_key_value_heads = self.key_value_heads(architecture, num_attention_heads)?;
        let head_dim = self.head_dim(architecture, hidden_size, num_attention_heads)?;
        let num_hidden_layers = self.count("num_hidden_layers", MOST_LAYERS)?;
        let layers = self.layers(architecture, num_hidden_layers)?;
        let all_experts = layers.iter().all(|l| matches!(l.mlp, MlpKind::Experts(_)));
        self.bounded(ModelConfig {
            architecture,
            vocab_size: self.size("vocab_size")?,
            hidden_size,
            intermediate_size: match all_experts {
                // Without a dense layer the key means nothing, and some files leave it out.
                true => self.size_or("intermediate_size", hidden_size)?,
                false => self.size("intermediate_size")?,
            },
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            rms_norm_eps: self.number_or("rms_norm_eps", default_eps(architecture))?,
            rope: self.rope(architecture, head_dim)?,
            head: match self.flag_or("tie_word_embeddings", false)? {
                true => HeadKind::Tied,
                false => HeadKind::Untied,
            },
            parts: self.parts(architecture)?,
            layers,
            max_position_embeddings: self.size_or("max_position_embeddings", 32_768)?,
            initializer_range: self.number_or("initializer_range", 0.02)?,
            bos_token_id: self.token_ids("bos_token_id")?.first().copied(),
            eos_token_ids: self.token_ids("eos_token_id")?,
            pad_token_id: self.token_ids("pad_token_id")?.first().copied(),
        })
    }

    fn architecture(&self) -> Result<Architecture, ConfigError> {
        let name = self
            .get("architectures")
            .and_then(|v| v.get(0))
            .and_then(serde_json::Value::as_str)
            .ok_or_else(|| self.key("architectures", "is missing or no list of names"))?;
        Architecture::parse(name).ok_or_else(|| {
            let known = Architecture::ALL.map(Architecture::name).join(", ");
            self.key("architectures", &format!("is {name}; this build knows {known}"))
        })
    }

    fn key_value_heads(&self, architecture: Architecture, heads: usize) -> Result<usize, ConfigError> {
        let default = match architecture {
            Architecture::Mistral | Architecture::Mixtral => 8,
            Architecture::Qwen2
            | Architecture::Qwen3
            | Architecture::Qwen3Moe
            | Architecture::Qwen3Next
            | Architecture::Llama => heads,
        };
        let kv_heads = self.size_or("num_key_value_heads", default)?;
        if heads.is_multiple_of(kv_heads) {
            Ok(kv_heads)
        } else {
            Err(self.key("num_key_value_heads", "does not divide num_attention_heads"))
        }
    }

    /// A missing head_dim is hidden/heads, but for Qwen3's 128 and Qwen3-Next's 256.
    fn head_dim(
        &self,
        architecture: Architecture,
        hidden: usize,
        heads: usize,
    ) -> Result<usize, ConfigError> {
        let head_dim = match (self.optional_size("head_dim")?, architecture) {
            (Some(dim), _) => dim,
            (None, Architecture::Qwen3) => 128,
            (None, Architecture::Qwen3Next) => 256,
            (None, _) if hidden.is_multiple_of(heads) => hidden / heads,
            (None, _) => return Err(self.key("hidden_size", "is no multiple of num_attention_heads")),
        };
        if head_dim.is_multiple_of(2) {
            Ok(head_dim)
        } else {
            Err(self.key("head_dim", "is odd; rotary positions need pairs"))
        }
    }

    fn parts(&self, architecture: Architecture) -> Result<Parts, ConfigError> {
        let asked = || -> Result<AttentionBias, ConfigError> {
            Ok(match self.flag_or("attention_bias", false)? {
                true => AttentionBias::All,
                false => AttentionBias::None,
            })
        };
        let plain = Parts {
            attention_bias: AttentionBias::None,
            qk_norm: false,
            attention_gate: false,
            mlp_bias: false,
            norm: NormKind::Plain,
        };
        Ok(match architecture {
            Architecture::Mistral | Architecture::Mixtral => plain,
            Architecture::Qwen2 => Parts {
                attention_bias: AttentionBias::Qkv,
                ..plain
            },
            Architecture::Llama => Parts {
                attention_bias: asked()?,
                mlp_bias: self.flag_or("mlp_bias", false)?,
                ..plain
            },
            Architecture::Qwen3 | Architecture::Qwen3Moe => Parts {
                attention_bias: asked()?,
                qk_norm: true,
                ..plain
            },
            Architecture::Qwen3Next => Parts {
                attention_bias: asked()?,
                qk_norm: true,
                attention_gate: true,
                norm: NormKind::ZeroCentred,
                ..plain
            },
        })
    }

    fn layers(&self, architecture: Architecture, count: usize) -> Result<Vec<LayerConfig>, ConfigError> {
        let mixers = self.mixers(architecture, count)?;
        let mlps = self.mlps(architecture, count)?;
        let both = mixers.into_iter().zip(mlps);
        Ok(both.map(|(mixer, mlp)| LayerConfig { mixer, mlp }).collect())
    }

    fn mixers(&self, architecture: Architecture, count: usize) -> Result<Vec<Mixer>, ConfigError> {
        let attention = |window| Mixer::Attention { window };
        Ok(match architecture {
            Architecture::Llama => vec![attention(None); count],
            // A missing key is not a null one: Mistral's own default is 4096.
            Architecture::Mistral if !self.has("sliding_window") => vec![attention(Some(4096)); count],
            Architecture::Mistral | Architecture::Mixtral => {
                vec![attention(self.optional_size("sliding_window")?); count]
            }
            Architecture::Qwen3Moe => vec![attention(self.window()?); count],
            Architecture::Qwen2 | Architecture::Qwen3 => {
                let window = self.window()?;
                let first = self.index_or("max_window_layers", 28)?;
                let named = self.layer_types(count, &["full_attention", "sliding_attention"])?;
                let slides = |i: usize| match &named {
                    Some(names) => names[i] == "sliding_attention",
                    None => i as u64 >= first,
                };
                (0..count)
                    .map(|i| attention(window.filter(|_| slides(i))))
                    .collect()
            }
            Architecture::Qwen3Next => {
                let delta_net = Mixer::DeltaNet(self.delta_net()?);
                let interval = self.size_or("full_attention_interval", 4)?;
                let named = self.layer_types(count, &["full_attention", "linear_attention"])?;
                let attends = |i: usize| match &named {
                    Some(names) => names[i] == "full_attention",
                    None => (i + 1).is_multiple_of(interval),
                };
                let mixer = |i| if attends(i) { attention(None) } else { delta_net };
                (0..count).map(mixer).collect()
            }
        })
    }

    /// Qwen's window, where it is used.
    fn window(&self) -> Result<Option<usize>, ConfigError> {
        if !self.flag_or("use_sliding_window", false)? {
            return Ok(None);
        }
        // As with Mistral, the default of a missing key is 4096.
        match self.has("sliding_window") {
            false => Ok(Some(4096)),
            true => self.optional_size("sliding_window"),
        }
    }

    fn layer_types(&self, count: usize, known: &[&str]) -> Result<Option<Vec<&str>>, ConfigError> {
        let Some(names) = self.names("layer_types")? else {
            return Ok(None);
        };
        if names.len() != count {
            let reason = format!("names {} layers where num_hidden_layers is {count}", names.len());
            return Err(self.key("layer_types", &reason));
        }
        match names.iter().find(|n| !known.contains(n)) {
            Some(other) => Err(self.key(
                "layer_types",
                &format!("holds {other}; this family has {}", known.join(" and ")),
            )),
            None => Ok(Some(names)),
        }
    }

    fn delta_net(&self) -> Result<DeltaNetConfig, ConfigError> {
        let config = DeltaNetConfig {
            key_heads: self.size("linear_num_key_heads")?,
            value_heads: self.size("linear_num_value_heads")?,
            key_dim: self.size("linear_key_head_dim")?,
            value_dim: self.size("linear_value_head_dim")?,
            kernel: self.count("linear_conv_kernel_dim", 64)?,
        };
        if config.kernel < 2 {
            Err(self.key("linear_conv_kernel_dim", "is 1; two taps or more are implemented"))
        } else if config.value_heads.is_multiple_of(config.key_heads) {
            Ok(config)
        } else {
            Err(self.key("linear_num_value_heads", "is no multiple of linear_num_key_heads"))
        }
    }

    fn mlps(&self, architecture: Architecture, count: usize) -> Result<Vec<MlpKind>, ConfigError> {
        Ok(match architecture {
            Architecture::Qwen2 | Architecture::Qwen3 | Architecture::Llama | Architecture::Mistral => {
                vec![MlpKind::Dense; count]
            }
            Architecture::Mixtral => {
                let width = self.size("intermediate_size")?;
                vec![MlpKind::Experts(self.experts(width, None, RoutingWeights::Normalised)?); count]
            }
            Architecture::Qwen3Moe => self.sparse(count, None, RoutingWeights::Softmax)?,
            Architecture::Qwen3Next => {
                let shared = self.size("shared_expert_intermediate_size")?;
                self.sparse(count, Some(shared), RoutingWeights::Normalised)?
            }
        })
    }

    /// Qwen's mixture: experts in every `decoder_sparse_step`-th layer but those of `mlp_only_layers`.
    fn sparse(
        &self,
        count: usize,
        shared: Option<usize>,
        default: RoutingWeights,
    ) -> Result<Vec<MlpKind>, ConfigError> {
        let weights = match self.flag_or("norm_topk_prob", default == RoutingWeights::Normalised)? {
            true => RoutingWeights::Normalised,
            false => RoutingWeights::Softmax,
        };
        let experts = self.experts(self.size("moe_intermediate_size")?, shared, weights)?;
        let step = self.size_or("decoder_sparse_step", 1)?;
        let dense = self.indices("mlp_only_layers")?;
        let kind = |i: usize| match (i + 1).is_multiple_of(step) && !dense.contains(&(i as u64)) {
            true => MlpKind::Experts(experts),
            false => MlpKind::Dense,
        };
        Ok((0..count).map(kind).collect())
    }

    fn experts(
        &self,
        intermediate_size: usize,
        shared_size: Option<usize>,
        weights: RoutingWeights,
    ) -> Result<ExpertsConfig, ConfigError> {
        let key = match self.get("num_experts") {
            Some(_) => "num_experts",
            None => "num_local_experts",
        };
        let count = self.count(key, MOST_EXPERTS)?;
        let per_token = self.size("num_experts_per_tok")?;
        if per_token > count {
            return Err(self.key("num_experts_per_tok", &format!("is above {key}")));
        }
        Ok(ExpertsConfig {
            count,
            per_token,
            intermediate_size,
            shared_size,
            weights,
        })
    }

    /// From `rope_parameters` (new style), or `rope_theta` and `rope_scaling` (older).
    fn rope(&self, architecture: Architecture, head_dim: usize) -> Result<RopeConfig, ConfigError> {
        let nested = self
            .nested("rope_parameters")
            .or_else(|| self.nested("rope_scaling"));
        let within = |key: &str| -> Result<Option<f64>, ConfigError> {
            match &nested {
                Some(n) if n.get(key).is_some() => n.optional_number(key),
                _ => self.optional_number(key),
            }
        };
        let default_theta = if architecture == Architecture::Mixtral {
            1e6
        } else {
            1e4
        };
        let theta = within("rope_theta")?.unwrap_or(default_theta);
        if theta <= 0.0 {
            return Err(self.key("rope_theta", "is not above 0"));
        }
        let width = if architecture == Architecture::Qwen3Next {
            let share = within("partial_rotary_factor")?.unwrap_or(0.25);
            (head_dim as f64 * share) as usize
        } else {
            head_dim
        };
        if width == 0 || width > head_dim || !width.is_multiple_of(2) {
            let reason = format!("rotates {width} of {head_dim} features; an even number of them is needed");
            return Err(self.key("partial_rotary_factor", &reason));
        }
        let scaling = match &nested {
            Some(nested) => nested.scaling()?,
            None => RopeScaling::None,
        };
        Ok(RopeConfig {
            theta,
            width,
            scaling,
        })
    }

    fn scaling(&self) -> Result<RopeScaling, ConfigError> {
        let kind = self.text("rope_type").or_else(|| self.text("type"));
        match kind.unwrap_or("default") {
            "default" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear {
                factor: self.positive("factor")?,
            }),
            "llama3" => {
                let (low, high) = (
                    self.positive("low_freq_factor")?,
                    self.positive("high_freq_factor")?,
                );
                if low >= high {
                    return Err(self.key("high_freq_factor", "is not above low_freq_factor"));
                }
                Ok(RopeScaling::Llama3 {
                    factor: self.positive("factor")?,
                    low_freq_factor: low,
                    high_freq_factor: high,
                    original_max_position_embeddings: self.size("original_max_position_embeddings")?,
                })
            }
            other => Err(self.key(
                "rope_type",
                &format!("is {other}; default, linear and llama3 are implemented"),
            )),
        }
    }

    fn positive(&self, key: &str) -> Result<f64, ConfigError> {
        match self.number(key)? {
            n if n > 0.0 => Ok(n),
            _ => Err(self.key(key, "is not above 0")),
        }
    }
}

fn default_eps(architecture: Architecture) -> f64 {
    if architecture == Architecture::Mixtral {
        1e-5
    } else {
        1e-6
    }
}
