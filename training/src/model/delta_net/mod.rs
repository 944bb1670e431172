//! Gated delta-net (Yang, Kautz and Hatamizadeh 2024): linear attention whose state is corrected and decays.
//!
//! Each value head has a state S [key width, value width]. A token with key k, value v, decay α and step β does
//! S ← α·S, then S ← S + k·(β(v − Sᵀk))ᵀ, and reads Sᵀq. Keys and queries have length 1; queries are divided by
//! √(key width) besides. Queries, keys and values pass a causal convolution of a few taps first.

mod chunked;
mod sequences;

pub(crate) use sequences::Sequences;

use super::config::DeltaNetConfig;
use super::linear::Linear;
use super::norm::RmsNorm;
use super::pass::{Pass, State};
use super::precision::{exact, narrow};
use crate::lora::Lora;
use burn::tensor::{Device, Tensor, activation};

/// The token mixer of a Qwen3-Next linear-attention layer.
#[derive(Clone, Debug)]
pub(crate) struct DeltaNet {
    pub(crate) config: DeltaNetConfig,
    /// Queries, keys, values and output gate, interleaved by key head.
    pub(crate) qkvz: Linear,
    /// Step β and decay, interleaved by key head.
    pub(crate) ba: Linear,
    /// Taps of the convolution, oldest first: [features, kernel].
    pub(crate) taps: Tensor<2>,
    /// [value heads]
    pub(crate) dt_bias: Tensor<1>,
    /// ln of the decay's rate, [value heads].
    pub(crate) a_log: Tensor<1>,
    /// Over each value head's output.
    pub(crate) norm: RmsNorm,
    pub(crate) out: Linear,
}

/// What a delta-net remembers of B sequences.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    /// The convolution's last inputs, oldest first: [B, kernel − 1, features].
    pub(crate) inputs: Tensor<3>,
    /// S of every head: [B, value heads, key width, value width].
    pub(crate) state: Tensor<4>,
}

/// A layer's inputs to the recurrence, by token.
struct Projected {
    /// Queries, keys and values before the convolution, [N, features].
    mixed: Tensor<2>,
    /// Output gate, [N, value heads·value width].
    z: Tensor<2>,
    /// β in 0..1, [N, value heads].
    beta: Tensor<2>,
    /// ln α, below 0, [N, value heads].
    log_decay: Tensor<2>,
}

/// Queries, keys and values after the convolution, by token.
pub(super) struct Mixed {
    /// [N, key heads, key width], of length 1/√(key width).
    q: Tensor<3>,
    /// [N, key heads, key width], of length 1.
    k: Tensor<3>,
    /// [N, value heads, value width]
    v: Tensor<3>,
}

impl DeltaNet {
    /// `x` and the result: [N, H].
    pub(crate) fn forward(
        &self,
        x: Tensor<2>,
        pass: &Pass,
        lora: Option<&Lora>,
        state: State<'_>,
    ) -> Tensor<2> {
        let dtype = x.dtype();
        let Projected {
            mixed,
            z,
            beta,
            log_decay,
        } = self.project(x, lora);
        let read = match (state, &pass.sequences) {
            (State::Decode { cache, layer }, _) => {
                let memory = cache
                    .take_delta_net(layer)
                    .unwrap_or_else(|| self.blank(mixed.dims()[0], &mixed.device()));
                let (read, memory) = self.step(mixed, beta, log_decay, memory);
                cache.put_delta_net(layer, memory);
                read
            }
            (State::Prefill { cache, layer }, Some(sequences)) => {
                let inputs = sequences.last_inputs(&mixed, self.config.kernel);
                let (read, state) = self.scan(mixed, beta, log_decay, sequences);
                cache.put_delta_net(layer, Memory { inputs, state });
                read
            }
            (State::None, Some(sequences)) => self.scan(mixed, beta, log_decay, sequences).0,
            (State::None | State::Prefill { .. }, None) => {
                unreachable!("a model with delta-nets lays sequences out")
            }
        };
        let [tokens, width] = z.dims();
        let normed = self.norm.forward(read).reshape([tokens, width]);
        self.out
            .forward(narrow(normed * activation::silu(z), dtype), lora)
    }

    fn project(&self, x: Tensor<2>, lora: Option<&Lora>) -> Projected {
        let DeltaNetConfig {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            ..
        } = self.config;
        let tokens = x.dims()[0];
        let group = value_heads / key_heads;
        // From here to the output's projection in more digits.
        let qkvz = exact(self.qkvz.forward(x.clone(), lora));
        let qkvz = qkvz.reshape([tokens, key_heads, 2 * key_dim + 2 * group * value_dim]);
        let part = |start, width| {
            qkvz.clone()
                .narrow(2, start, width)
                .reshape([tokens, key_heads * width])
        };
        let values = group * value_dim;
        let mixed = [
            part(0, key_dim),
            part(key_dim, key_dim),
            part(2 * key_dim, values),
        ];
        let ba = exact(self.ba.forward(x, lora)).reshape([tokens, key_heads, 2 * group]);
        let half = |start| ba.clone().narrow(2, start, group).reshape([tokens, value_heads]);
        let rate = exact(self.a_log.clone()).exp().neg().unsqueeze::<2>();
        let time = activation::softplus(half(group) + exact(self.dt_bias.clone()).unsqueeze::<2>(), 1.0);
        Projected {
            mixed: Tensor::cat(mixed.to_vec(), 1),
            z: part(2 * key_dim + values, values),
            beta: activation::sigmoid(half(0)),
            log_decay: time * rate,
        }
    }

    /// Whole sequences: what every token reads [N, value heads, value width], and each first-stage sequence's state.
    fn scan(
        &self,
        mixed: Tensor<2>,
        beta: Tensor<2>,
        log_decay: Tensor<2>,
        sequences: &Sequences,
    ) -> (Tensor<3>, Tensor<4>) {
        let mixed = self.split(activation::silu(
            sequences.convolve(mixed, &exact(self.taps.clone())),
        ));
        sequences.scan(&mixed, beta, log_decay)
    }

    /// One token of each sequence: what it reads [B, value heads, value width].
    fn step(
        &self,
        mixed: Tensor<2>,
        beta: Tensor<2>,
        log_decay: Tensor<2>,
        memory: Memory,
    ) -> (Tensor<3>, Memory) {
        let DeltaNetConfig {
            value_heads, kernel, ..
        } = self.config;
        let rows = mixed.dims()[0];
        let window = Tensor::cat(vec![memory.inputs, mixed.unsqueeze_dim(1)], 1);
        let inputs = window.clone().narrow(1, 1, kernel - 1);
        let convolved = window * exact(self.taps.clone()).transpose().unsqueeze_dim(0);
        let width = convolved.dims()[2];
        let convolved = convolved.sum_dim(1).reshape([rows, width]);
        let Mixed { q, k, v } = self.split(activation::silu(convolved));
        let (q, k) = (by_value_head(q, value_heads), by_value_head(k, value_heads));
        let k: Tensor<4> = k.unsqueeze_dim(3);
        let alpha = log_decay.exp().reshape([rows, value_heads, 1, 1]);
        let state = memory.state * alpha;
        let held = k.clone().swap_dims(2, 3).matmul(state.clone());
        let error = (v.unsqueeze_dim(2) - held) * beta.reshape([rows, value_heads, 1, 1]);
        let state = state + k * error;
        let q: Tensor<4> = q.unsqueeze_dim(2);
        let read = q.matmul(state.clone());
        let dim = read.dims()[3];
        (read.reshape([rows, value_heads, dim]), Memory { inputs, state })
    }

    /// The memory of sequences that have not begun.
    fn blank(&self, rows: usize, device: &Device) -> Memory {
        let config = &self.config;
        let state = [rows, config.value_heads, config.key_dim, config.value_dim];
        Memory {
            inputs: exact(Tensor::zeros(
                [rows, config.kernel - 1, config.conv_width()],
                device,
            )),
            state: exact(Tensor::zeros(state, device)),
        }
    }

    /// Queries, keys and values out of convolved features [N, features].
    fn split(&self, mixed: Tensor<2>) -> Mixed {
        let config = &self.config;
        let tokens = mixed.dims()[0];
        let keys = config.keys_width();
        let heads = |start| {
            let part = mixed.clone().narrow(1, start, keys);
            unit(part.reshape([tokens, config.key_heads, config.key_dim]))
        };
        let v = mixed.clone().narrow(1, 2 * keys, config.values_width());
        Mixed {
            q: heads(0).mul_scalar(1.0 / (config.key_dim as f64).sqrt()),
            k: heads(keys),
            v: v.reshape([tokens, config.value_heads, config.value_dim]),
        }
    }
}

/// x/√(Σx² + 1e-6) over the last dimension.
fn unit(x: Tensor<3>) -> Tensor<3> {
    let length = x.clone().square().sum_dim(2).add_scalar(1e-6).sqrt();
    x / length
}

/// Key heads [N, key heads, D] repeated for the value heads that share them.
fn by_value_head(x: Tensor<3>, value_heads: usize) -> Tensor<3> {
    let [tokens, heads, dim] = x.dims();
    let group = value_heads / heads;
    if group == 1 {
        return x;
    }
    let x: Tensor<4> = x.unsqueeze_dim(2);
    x.repeat_dim(2, group).reshape([tokens, value_heads, dim])
}
