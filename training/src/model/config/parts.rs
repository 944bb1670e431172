//! The parts that a decoder is put together from.

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base θ of the inverse frequencies θ^(−2i/R).
    pub theta: f64,
    /// Rotated features of a head, R: all of them but in families with partial rotary.
    pub width: usize,
    /// How the frequencies are bent for longer contexts.
    pub scaling: RopeScaling,
}

impl RopeConfig {
    /// Unscaled, over a whole head of `head_dim` features.
    #[must_use]
    pub fn plain(theta: f64, head_dim: usize) -> Self {
        Self {
            theta,
            width: head_dim,
            scaling: RopeScaling::None,
        }
    }
}

/// How rotary frequencies are bent for longer contexts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Position ids are divided by the factor (`linear`).
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Llama 3's: low frequencies are divided by the factor, high ones stay, those between are blended.
    Llama3 {
        /// What low frequencies are divided by.
        factor: f64,
        /// Wavelengths above original length / this are low frequencies.
        low_freq_factor: f64,
        /// Wavelengths below original length / this are high frequencies.
        high_freq_factor: f64,
        /// Context length before the scaling, in tokens.
        original_max_position_embeddings: usize,
    },
}

/// What every layer of a family is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Biases of the attention's projections.
    pub attention_bias: AttentionBias,
    /// RMSNorm over each head of queries and keys.
    pub qk_norm: bool,
    /// The attention's output is multiplied by the sigmoid of a gate that the query projection gives too.
    pub attention_gate: bool,
    /// Biases of a dense MLP's projections.
    pub mlp_bias: bool,
    /// How norms read their weight.
    pub norm: NormKind,
}

impl Parts {
    /// Qwen3's: norms on queries and keys, no bias.
    pub const QWEN3: Self = Self {
        attention_bias: AttentionBias::None,
        qk_norm: true,
        attention_gate: false,
        mlp_bias: false,
        norm: NormKind::Plain,
    };
}

/// Which of the attention's projections have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionBias {
    /// None.
    None,
    /// Queries, keys and values.
    Qkv,
    /// Queries, keys, values and the output.
    All,
}

/// How an RMSNorm reads its weight w.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Scales by w.
    Plain,
    /// Scales by 1 + w. The norm of a delta-net's output is plain in such models too.
    ZeroCentred,
}

/// One decoder block: x + mixer(norm(x)), then x + mlp(norm(x)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerConfig {
    /// What mixes tokens.
    pub mixer: Mixer,
    /// What mixes features.
    pub mlp: MlpKind,
}

impl LayerConfig {
    /// Full attention and a dense MLP.
    pub const DENSE: Self = Self {
        mixer: Mixer::Attention { window: None },
        mlp: MlpKind::Dense,
    };
}

/// What mixes tokens in a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mixer {
    /// Softmax attention.
    Attention {
        /// How many places a query sees, itself included; all before it when `None`.
        window: Option<usize>,
    },
    /// Gated delta rule (Yang et al. 2024).
    DeltaNet(DeltaNetConfig),
}

/// Heads of a gated delta-net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNetConfig {
    /// Query and key heads.
    pub key_heads: usize,
    /// Value heads; a multiple of the key heads.
    pub value_heads: usize,
    /// Width of a query or key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the causal convolution.
    pub kernel: usize,
}

impl DeltaNetConfig {
    /// Features that go through the convolution: queries, keys and values.
    #[must_use]
    pub fn conv_width(&self) -> usize {
        2 * self.keys_width() + self.values_width()
    }

    /// Width of all query (or key) heads.
    #[must_use]
    pub fn keys_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Width of all value heads.
    #[must_use]
    pub fn values_width(&self) -> usize {
        self.value_heads * self.value_dim
    }
}

/// What mixes features in a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MlpKind {
    /// One SwiGLU of the configuration's intermediate size.
    Dense,
    /// Routed experts.
    Experts(ExpertsConfig),
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertsConfig {
    /// Experts, E.
    pub count: usize,
    /// Experts a token goes to, k.
    pub per_token: usize,
    /// Width of one expert's MLP.
    pub intermediate_size: usize,
    /// Width of the expert that every token goes to, where there is one.
    pub shared_size: Option<usize>,
    /// How the chosen experts are weighted.
    pub weights: RoutingWeights,
}

/// How the chosen experts' outputs are weighted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutingWeights {
    /// By their share of the softmax over all experts.
    Softmax,
    /// By the same, divided by the chosen experts' sum.
    Normalised,
}
