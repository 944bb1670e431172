//! A mixture of experts (Shazeer et al. 2017): a router sends each token to k of E SwiGLUs.

use super::config::{ExpertsConfig, RoutingWeights};
use super::linear::Linear;
use super::mlp::Mlp;
use super::precision::{narrow, wide};
use super::routing::LayerRouting;
use crate::lora::Lora;
use burn::tensor::{DType, Device, Int, Tensor, TensorData, activation};

/// y = Σ_j p_j · expert_j(x) over the k likeliest experts, plus σ(g·x) · shared(x) where there is a shared expert.
#[derive(Clone, Debug)]
pub(crate) struct Experts {
    pub(crate) config: ExpertsConfig,
    /// Router [E, H].
    pub(crate) router: Tensor<2>,
    pub(crate) experts: Vec<Mlp>,
    pub(crate) shared: Option<SharedExpert>,
}

/// The expert that every token goes to, with its gate.
#[derive(Clone, Debug)]
pub(crate) struct SharedExpert {
    pub(crate) mlp: Mlp,
    /// Its gate, [1, H].
    pub(crate) gate: Linear,
}

impl Experts {
    /// `x` and the result: [N, H], in f32 or f64; the experts compute in `dtype`.
    pub(crate) fn forward(
        &self,
        x: Tensor<2>,
        dtype: DType,
        lora: Option<&Lora>,
        mut routing: LayerRouting<'_>,
    ) -> Tensor<2> {
        let logits = x
            .clone()
            .matmul(narrow(self.router.clone(), x.dtype()).transpose());
        let chosen = match routing.replayed() {
            Some(chosen) => chosen.to_vec(),
            None => self.choose(&logits),
        };
        routing.record(&chosen);
        let weights = self.weights(logits, &chosen);
        let mixed = self.mix(narrow(x.clone(), dtype), weights, &chosen, lora);
        match &self.shared {
            Some(SharedExpert { mlp, gate }) => {
                let share = activation::sigmoid(gate.forward(x.clone(), lora));
                mixed + wide(mlp.forward(narrow(x, dtype), lora)) * share
            }
            None => mixed,
        }
    }

    /// The k experts of each token, likeliest first, [N·k]. Equal logits go to the lower index.
    fn choose(&self, logits: &Tensor<2>) -> Vec<u32> {
        let ExpertsConfig { count, per_token, .. } = self.config;
        let logits: Vec<f64> = logits.clone().inner().to_data().iter::<f64>().collect();
        let mut chosen = Vec::with_capacity(logits.len() / count * per_token);
        let mut order: Vec<u32> = Vec::with_capacity(count);
        for row in logits.chunks_exact(count) {
            let by_logit = |a: &u32, b: &u32| {
                row[*b as usize]
                    .total_cmp(&row[*a as usize])
                    .then_with(|| a.cmp(b))
            };
            order.clear();
            order.extend(0..count as u32);
            if per_token < count {
                order.select_nth_unstable_by(per_token - 1, by_logit);
            }
            order[..per_token].sort_unstable_by(by_logit);
            chosen.extend_from_slice(&order[..per_token]);
        }
        chosen
    }

    /// The chosen experts' weights, [N, k]. Gradients reach the router's input through them.
    fn weights(&self, logits: Tensor<2>, chosen: &[u32]) -> Tensor<2> {
        let index: Vec<i64> = chosen.iter().map(|e| i64::from(*e)).collect();
        let shape = [logits.dims()[0], self.config.per_token];
        let index = Tensor::<2, Int>::from_data(TensorData::new(index, shape), &logits.device());
        let probabilities = activation::softmax(logits, 1).gather(1, index);
        match self.config.weights {
            RoutingWeights::Softmax => probabilities,
            RoutingWeights::Normalised => probabilities.clone() / probabilities.sum_dim(1),
        }
    }

    /// Runs each expert once, on the tokens that chose it: [N, H], in f32 or f64.
    fn mix(&self, x: Tensor<2>, weights: Tensor<2>, chosen: &[u32], lora: Option<&Lora>) -> Tensor<2> {
        let [tokens, hidden] = x.dims();
        let k = self.config.per_token;
        let device = x.device();
        let mut slots: Vec<Vec<i64>> = vec![Vec::new(); self.config.count];
        for (slot, expert) in chosen.iter().enumerate() {
            slots[*expert as usize].push(slot as i64);
        }
        let mut parts = Vec::new();
        for (expert, slots) in self.experts.iter().zip(&slots).filter(|(_, s)| !s.is_empty()) {
            let own = slots.iter().map(|slot| slot / k as i64).collect();
            parts.push(expert.forward(x.clone().select(0, indices(own, &device)), lora));
        }
        if parts.is_empty() {
            return wide(x.zeros_like());
        }
        // Outputs lie expert by expert; slot s of token t is put back at place t·k + s.
        let mut back = vec![0i64; chosen.len()];
        for (place, slot) in slots.iter().flatten().enumerate() {
            back[*slot as usize] = place as i64;
        }
        let outputs = Tensor::cat(parts, 0).select(0, indices(back, &device));
        let outputs = wide(outputs).reshape([tokens, k, hidden]) * weights.reshape([tokens, k, 1]);
        outputs.sum_dim(1).reshape([tokens, hidden])
    }
}

fn indices(values: Vec<i64>, device: &Device) -> Tensor<1, Int> {
    let count = values.len();
    Tensor::from_data(TensorData::new(values, [count]), device)
}
