//! Group Sequence Policy Optimization (Zheng et al. 2025) and its relatives (TRAINING "GSPO").
//!
//! The loss depends on the model through the log-probabilities of the completions' tokens alone, so loss and
//! gradient with respect to them are computed here, in f64 on the host; [`log_probs`] carries the gradient into the
//! model.

mod advantage;
pub(crate) mod log_probs;
mod loss;
mod mask;

pub use advantage::{Advantages, advantages};
pub use loss::{Denominators, Loss, LossConfig, LossMetrics, LossRow, loss};
pub use mask::active;

use crate::lora::Lora;
use crate::model::Decoder;
use gym_protocol::tensor::TensorSet;
use log_probs::{Keep, Sequence, log_probs};

/// The gradient of Σ `by_log_prob` · log π(token) with respect to an adapter, under PEFT's names: the forward and
/// backward pass of an update. `sequences` are (prompt, completion) pairs, prompts not empty; `by_log_prob` has one
/// number for each completion token.
#[must_use]
pub fn policy_gradient(
    decoder: &Decoder,
    lora: &Lora,
    sequences: &[(&[u32], &[u32])],
    by_log_prob: &[Vec<f64>],
    temperature: f64,
) -> TensorSet {
    let tracked = lora.tracked();
    let sequences: Vec<Sequence<'_>> = sequences
        .iter()
        .map(|(prompt, completion)| Sequence { prompt, completion })
        .collect();
    let pass = log_probs(decoder, Some(&tracked), &sequences, temperature, Keep::All);
    pass.backward(decoder, &tracked, &sequences, by_log_prob, temperature)
}
