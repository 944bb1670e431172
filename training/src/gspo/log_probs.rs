//! Log-probabilities of completion tokens, and a gradient with respect to them carried into the model.
//!
//! The head is frozen, so its part of the backward pass is written out: ∂ log softmax(z/T)_y / ∂z = (1_y − p)/T.
//! It runs without autodiff on chunks of places, so that [places, vocabulary] never stands whole in memory.

use crate::lora::Lora;
use crate::model::{Checkpointed, Decoder, Packed};
use burn::tensor::{Device, IndexingUpdateOp, Int, Tensor, TensorData, activation};
use gym_protocol::tensor::TensorSet;
use std::collections::BTreeMap;

/// Places whose logits are held at once.
const CHUNK: usize = 1024;

/// A prompt with its completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sequence<'a> {
    pub(crate) prompt: &'a [u32],
    pub(crate) completion: &'a [u32],
}

/// What a forward pass keeps for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Everything.
    All,
    /// The blocks' inputs; blocks are run again.
    BlockInputs,
}

/// Log-probabilities of the completions of some sequences under one model.
pub(crate) struct LogProbs {
    /// One row a sequence, one number a completion token.
    pub(crate) rows: Vec<Vec<f64>>,
    /// Hidden states that predict the completion tokens, [N, H].
    hidden: Hidden,
}

/// Hidden states [N, H] with what leads back from them.
enum Hidden {
    /// The end of an autodiff graph, or of none.
    Graph(Box<Tensor<2>>),
    /// At these places of a pass that kept its blocks' inputs.
    Blocks(Box<Checkpointed>, Vec<usize>),
}

/// A forward pass over `sequences`, without filters at temperature `t`.
pub(crate) fn log_probs(
    decoder: &Decoder,
    lora: Option<&Lora>,
    sequences: &[Sequence<'_>],
    temperature: f64,
    keep: Keep,
) -> LogProbs {
    let (packed, places) = predicting_places(sequences);
    let hidden = match keep {
        Keep::All => Hidden::Graph(Box::new(decoder.hidden_at(&packed, lora, &places))),
        Keep::BlockInputs => Hidden::Blocks(Box::new(decoder.checkpointed(&packed, lora)), places),
    };
    let targets = targets(sequences);
    let mut flat = Vec::with_capacity(targets.len());
    let inner = hidden.inner(decoder);
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
    /// ∂L/∂adapter under PEFT's names, where `gradient`, shaped as `rows`, is ∂L/∂(log-prob). `lora` is the tracked
    /// adapter of the forward pass.
    pub(crate) fn backward(
        self,
        decoder: &Decoder,
        lora: &Lora,
        sequences: &[Sequence<'_>],
        gradient: &[Vec<f64>],
        temperature: f64,
    ) -> TensorSet {
        let by_hidden = self.by_hidden(decoder, sequences, gradient, temperature);
        match self.hidden {
            Hidden::Graph(hidden) => lora.take_gradients(&mut (*hidden * by_hidden).sum().backward()),
            Hidden::Blocks(pass, places) => pass.backward(decoder, lora, &places, by_hidden),
        }
    }

    /// ∂L/∂hidden, [N, H]: the head's backward pass.
    fn by_hidden(
        &self,
        decoder: &Decoder,
        sequences: &[Sequence<'_>],
        gradient: &[Vec<f64>],
        temperature: f64,
    ) -> Tensor<2> {
        let targets = targets(sequences);
        let scale: Vec<f32> = gradient
            .iter()
            .flatten()
            .map(|g| (g / temperature) as f32)
            .collect();
        let inner = self.hidden.inner(decoder);
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
        Tensor::cat(parts, 0)
    }
}

impl Hidden {
    /// The states without autodiff, [N, H].
    fn inner(&self, decoder: &Decoder) -> Tensor<2> {
        match self {
            Self::Graph(hidden) => Tensor::clone(hidden).inner(),
            Self::Blocks(pass, places) => pass.hidden_at(decoder, places),
        }
    }
}

/// The sequences packed, and the place of each completion token's predecessor, sequence by sequence. A prompt that
/// sequences share is run once.
fn predicting_places(sequences: &[Sequence<'_>]) -> (Packed, Vec<usize>) {
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
    (packed, places)
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
