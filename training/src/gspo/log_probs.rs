//! Log-probabilities of completion tokens, and a gradient with respect to them carried into the model.
//!
//! The head is frozen, so its part of the backward pass is written out: ∂ log softmax(z/T)_y / ∂z = (1_y − p)/T.
//! It runs without autodiff on chunks of places, so that [places, vocabulary] never stands whole in memory.

use crate::lora::Lora;
use crate::model::{Decoder, Packed};
use burn::tensor::{Device, IndexingUpdateOp, Int, Tensor, TensorData, activation};
use std::collections::BTreeMap;

/// Places whose logits are held at once.
const CHUNK: usize = 1024;

/// A prompt with its completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sequence<'a> {
    pub(crate) prompt: &'a [u32],
    pub(crate) completion: &'a [u32],
}

/// Log-probabilities of the completions of some sequences under one model.
pub(crate) struct LogProbs {
    /// One row a sequence, one number a completion token.
    pub(crate) rows: Vec<Vec<f64>>,
    /// Hidden states that predict the completion tokens, [N, H], as the model left them.
    hidden: Tensor<2>,
}

/// A forward pass over `sequences`, without filters at temperature `t`.
pub(crate) fn log_probs(
    decoder: &Decoder,
    lora: Option<&Lora>,
    sequences: &[Sequence<'_>],
    temperature: f64,
) -> LogProbs {
    let hidden = predicting_states(decoder, lora, sequences);
    let targets = targets(sequences);
    let mut flat = Vec::with_capacity(targets.len());
    let inner = hidden.clone().inner();
    for (start, chunk) in chunks(&targets) {
        let states = inner.clone().narrow(0, start, chunk.len());
        let log_p = activation::log_softmax(decoder.logits(states).div_scalar(temperature), 1);
        let picked = log_p.gather(1, column(chunk, decoder.device()));
        flat.extend(picked.to_data().iter::<f32>().map(f64::from));
    }
    let mut rest = flat.as_slice();
    let rows = sequences.iter().map(|s| {
        let (row, tail) = rest.split_at(s.completion.len());
        rest = tail;
        row.to_vec()
    });
    LogProbs {
        rows: rows.collect(),
        hidden,
    }
}

impl LogProbs {
    /// Σ ∂L/∂(log-prob) · log-prob as a scalar whose backward pass is the model's share of the loss's. `gradient`
    /// is shaped as `rows`.
    pub(crate) fn surrogate(
        self,
        decoder: &Decoder,
        sequences: &[Sequence<'_>],
        gradient: &[Vec<f64>],
        temperature: f64,
    ) -> Tensor<1> {
        let targets = targets(sequences);
        let scale: Vec<f32> = gradient
            .iter()
            .flatten()
            .map(|g| (g / temperature) as f32)
            .collect();
        let inner = self.hidden.clone().inner();
        let mut parts = Vec::new();
        for (start, chunk) in chunks(&targets) {
            let states = inner.clone().narrow(0, start, chunk.len());
            let p = activation::softmax(decoder.logits(states).div_scalar(temperature), 1);
            let scale = TensorData::new(scale[start..start + chunk.len()].to_vec(), [chunk.len(), 1]);
            let scale = Tensor::<2>::from_data(scale, decoder.device());
            let by_logits = (p * scale.clone().neg()).scatter(
                1,
                column(chunk, decoder.device()),
                scale,
                IndexingUpdateOp::Add,
            );
            parts.push(decoder.logits_backward(by_logits));
        }
        (self.hidden * Tensor::cat(parts, 0)).sum()
    }
}

/// Hidden states at each completion token's predecessor, sequence by sequence: [N, H]. A prompt that sequences share
/// is run once.
fn predicting_states(decoder: &Decoder, lora: Option<&Lora>, sequences: &[Sequence<'_>]) -> Tensor<2> {
    let mut packed = Packed::default();
    let mut prompts: BTreeMap<&[u32], usize> = BTreeMap::new();
    let mut places = Vec::new();
    for Sequence { prompt, completion } in sequences {
        let prefix = *prompts.entry(prompt).or_insert_with(|| packed.push(prompt));
        let last = packed.segments()[prefix].places.end - 1;
        // The last completion token predicts nothing.
        let read = &completion[..completion.len().saturating_sub(1)];
        if !completion.is_empty() {
            places.push(last);
        }
        if !read.is_empty() {
            let own = packed.push_after(prefix, read);
            places.extend(packed.segments()[own].places.clone());
        }
    }
    decoder.hidden_at(&packed, lora, &places)
}

fn targets(sequences: &[Sequence<'_>]) -> Vec<i64> {
    sequences
        .iter()
        .flat_map(|s| s.completion.iter().map(|t| i64::from(*t)))
        .collect()
}

fn chunks(targets: &[i64]) -> impl Iterator<Item = (usize, &[i64])> {
    targets.chunks(CHUNK).enumerate().map(|(i, c)| (i * CHUNK, c))
}

fn column(targets: &[i64], device: &Device) -> Tensor<2, Int> {
    Tensor::from_data(TensorData::new(targets.to_vec(), [targets.len(), 1]), device)
}
