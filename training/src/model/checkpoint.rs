//! Gradient checkpointing (Chen et al. 2016) by blocks: the forward pass keeps each block's input, [N, H], and nothing
//! inside it; the backward pass runs each block again, last to first.

use super::pass::{Pass, State};
use super::routing::LayerRouting;
use super::{Decoder, Packed, indices, narrow};
use crate::lora::{LeafGradients, Lora};
use burn::tensor::{IndexingUpdateOp, Tensor};
use gym_protocol::tensor::TensorSet;

/// A forward pass that can be taken again, block by block. Its tensors are on the inner device.
pub(crate) struct Checkpointed {
    pass: Pass,
    /// The blocks' inputs, [N, H] each, and the last one's output.
    inputs: Vec<Tensor<2>>,
    /// Hidden states after the final norm, [N, H].
    hidden: Tensor<2>,
}

impl Decoder {
    /// The same as [`Decoder::hidden`], without autodiff.
    pub(crate) fn checkpointed(&self, packed: &Packed, lora: Option<&Lora>) -> Checkpointed {
        let lora = lora.map(Lora::inner);
        let pass = self.pass(packed);
        let mut x = self.embed(packed.ids());
        let mut inputs = Vec::with_capacity(self.blocks.len() + 1);
        for block in &self.blocks {
            inputs.push(x.clone());
            x = block.forward(x, &pass, lora.as_ref(), State::None, LayerRouting::Router);
        }
        inputs.push(x.clone());
        Checkpointed {
            hidden: narrow(self.norm.forward(x), pass.dtype),
            pass,
            inputs,
        }
    }
}

impl Checkpointed {
    /// Hidden states at `places` of the packed order, [places, H].
    pub(crate) fn hidden_at(&self, decoder: &Decoder, places: &[usize]) -> Tensor<2> {
        self.hidden.clone().select(0, indices(places, decoder.device()))
    }

    /// ∂L/∂adapter under PEFT's names, where `by_hidden` [places, H] is ∂L/∂hidden at `places` and 0 elsewhere. `lora`
    /// is the tracked adapter of the forward pass.
    pub(crate) fn backward(
        mut self,
        decoder: &Decoder,
        lora: &Lora,
        places: &[usize],
        by_hidden: Tensor<2>,
    ) -> TensorSet {
        // A group's members share their prompt's last place.
        let by_hidden = self.hidden.zeros_like().select_assign(
            0,
            indices(places, decoder.device()),
            by_hidden,
            IndexingUpdateOp::Add,
        );
        let mut taken = LeafGradients::default();
        let last = self.inputs.pop().unwrap_or_else(|| self.hidden.clone());
        let last = last.autodiff().require_grad();
        let normed = narrow(decoder.norm.forward(last.clone()), self.pass.dtype);
        let gradients = (normed * by_hidden).sum().backward();
        let mut by_output = last.grad(&gradients);
        for (index, block) in decoder.blocks.iter().enumerate().rev() {
            let (Some(input), Some(by)) = (self.inputs.pop(), by_output.take()) else {
                break;
            };
            let mut input = input.autodiff();
            if index > 0 {
                // Below the first block nothing is trained.
                input = input.require_grad();
            }
            let output = block.forward(
                input.clone(),
                &self.pass,
                Some(lora),
                State::None,
                LayerRouting::Router,
            );
            let mut gradients = (output * by).sum().backward();
            by_output = (index > 0).then(|| input.grad_remove(&mut gradients)).flatten();
            lora.collect(&mut gradients, &mut taken);
        }
        lora.put_together(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::Adapter;
    use crate::model::Precision;
    use burn::tensor::Device;
    use std::path::Path;

    #[test]
    fn blocks_run_again_give_the_graphs_gradients_in_either_precision() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures/models")
            .join("qwen3");
        let adapter = Adapter::load(&dir.join("adapter")).unwrap();
        let packed = Packed::rows(&[vec![5u32, 6, 7, 8, 9], vec![3, 4, 5]]);
        let places = [1, 4, 7];
        for precision in [Precision::F32, Precision::Bf16] {
            let decoder = Decoder::load_as(&dir, &Device::flex(), precision).unwrap();
            let lora = Lora::from_adapter(&decoder, &adapter).unwrap().tracked();
            let hidden = decoder.hidden_at(&packed, Some(&lora), &places);
            let by_hidden = hidden.clone().inner();
            let whole = lora.take_gradients(&mut (hidden * by_hidden.clone()).sum().backward());
            let pass = decoder.checkpointed(&packed, Some(&lora));
            assert_eq!(pass.hidden_at(&decoder, &places).to_data(), by_hidden.to_data());
            let again = pass.backward(&decoder, &lora, &places, by_hidden);
            for (name, tensor) in &whole.0 {
                let scale = tensor.data.iter().fold(0f32, |m, v| m.max(v.abs()));
                let pairs = tensor.data.iter().zip(&again.0[name].data);
                assert!(
                    pairs.clone().all(|(a, b)| (a - b).is_finite()),
                    "{precision:?} {name}"
                );
                let apart = pairs.fold(0f32, |m, (a, b)| m.max((a - b).abs()));
                assert!(apart <= 1e-5 * scale, "{precision:?} {name}: {apart} of {scale}");
            }
        }
    }
}
