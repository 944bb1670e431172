//! The loss that the reference gradients are of.

use burn::tensor::{Device, Tensor, TensorData, activation};
use gym_training::model::Packed;

/// Mean negative log-probability over places whose target and predecessor are both unpadded.
pub(crate) fn nll(batch: &Packed, rows: &[Vec<u32>], logits: Tensor<2>) -> Tensor<1> {
    let (mut places, mut targets) = (Vec::new(), Vec::new());
    for (segment, tokens) in batch.segments().iter().zip(rows) {
        places.extend(segment.places.clone().map(|p| p as i64).take(tokens.len() - 1));
        targets.extend(tokens[1..].iter().map(|t| i64::from(*t)));
    }
    let count = places.len();
    let device = Device::flex();
    let logits = logits.select(0, Tensor::from_data(TensorData::new(places, [count]), &device));
    let targets = Tensor::from_data(TensorData::new(targets, [count, 1]), &device);
    activation::log_softmax(logits, 1).gather(1, targets).mean().neg()
}
