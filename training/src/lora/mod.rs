//! Low-rank adapters (Hu et al. 2021) on the decoder's linear layers (TRAINING "LoRA").

mod error;
mod initial;
mod layout;
mod overrides;
mod targets;

pub use error::LoraError;
pub(crate) use layout::{module_of, tensor_name};
pub use overrides::{Overrides, Scaling};
pub(crate) use targets::{ALL_LINEAR, is_expert_parameter, suffix_matches};

use crate::adapter;
use crate::model::{Decoder, ModelConfig, Weight};
use crate::ops::Adapter;
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use gym_protocol::job::spec::LoraSpec;
use gym_protocol::tensor::{F32Tensor, TensorSet};
use layout::Layout;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An adapter: A and B of every targeted layer.
///
/// To the outside it is tensors under PEFT's names and in PEFT's shapes. Inside, the A and B of each routed expert are
/// leaves of their own, also where PEFT keeps all experts in one tensor: a gradient then costs what the experts at work
/// cost. [`Lora::tracked`] gives a copy that is a leaf of the autodiff graph. A clone is cheap: tensors are shared.
#[derive(Clone, Debug)]
pub struct Lora {
    layout: Arc<Layout>,
    leaves: Vec<Tensor<2>>,
    /// By module path; shares the leaves' tensors.
    pairs: BTreeMap<String, Adapter>,
}

impl Lora {
    /// Round 0's adapter: A uniform in ±1/√in (PEFT's kaiming-uniform with a = √5) from `seed`, B = 0.
    ///
    /// # Errors
    /// A target that names no layer.
    pub fn init(decoder: &Decoder, spec: &LoraSpec, seed: u64) -> Result<Self, LoraError> {
        let layout = Layout::new(decoder.config(), spec, &Overrides::default())?;
        let tensors = initial::tensors(&layout, seed);
        Self::assemble(decoder.device(), layout, &tensors)
    }

    /// The adapter whose tensors have PEFT's names
    /// (`base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight`).
    ///
    /// # Errors
    /// A target that names no layer; a tensor that is missing, unused or of another shape.
    pub fn from_tensors(decoder: &Decoder, spec: &LoraSpec, tensors: &TensorSet) -> Result<Self, LoraError> {
        let layout = Layout::new(decoder.config(), spec, &Overrides::default())?;
        Self::assemble(decoder.device(), layout, tensors)
    }

    /// The same of an adapter as read from its directory, whose layers may differ in rank and scale.
    ///
    /// # Errors
    /// As [`Lora::from_tensors`]; a pattern that is no regular expression.
    pub fn from_adapter(decoder: &Decoder, adapter: &adapter::Adapter) -> Result<Self, LoraError> {
        Self::for_config(decoder.config(), adapter, decoder.device())
    }

    /// The same on `device`, of a model that need not be loaded.
    pub(crate) fn for_config(
        config: &ModelConfig,
        adapter: &adapter::Adapter,
        device: &Device,
    ) -> Result<Self, LoraError> {
        let layout = Layout::new(config, &adapter.lora, &adapter.overrides)?;
        Self::assemble(device, layout, &adapter.tensors)
    }

    /// Whether every target of `spec` names something in a model of this configuration.
    ///
    /// # Errors
    /// A target that names no layer.
    pub fn check_targets(config: &ModelConfig, spec: &LoraSpec) -> Result<(), LoraError> {
        Layout::new(config, spec, &Overrides::default()).map(drop)
    }

    /// Copies all tensors to the host, under PEFT's names.
    #[must_use]
    pub fn to_tensors(&self) -> TensorSet {
        self.gather(|leaf| values(self.leaves[leaf].clone()))
    }

    /// A copy whose A and B are leaves that keep their gradient.
    #[must_use]
    pub fn tracked(&self) -> Self {
        self.map(|t| t.inner().autodiff().require_grad())
    }

    /// A copy without gradients, for rollouts.
    #[must_use]
    pub fn inner(&self) -> Self {
        self.map(Tensor::inner)
    }

    /// Takes the gradients of a tracked adapter out of `gradients`, under PEFT's names; zeros where the loss does
    /// not depend on a tensor.
    #[must_use]
    pub fn take_gradients(&self, gradients: &mut Gradients) -> TensorSet {
        let mut taken = LeafGradients::default();
        self.collect(gradients, &mut taken);
        self.put_together(taken)
    }

    /// Takes what gradients there are out of `gradients`: a pass over a part of the model has some leaves' alone.
    pub(crate) fn collect(&self, gradients: &mut Gradients, taken: &mut LeafGradients) {
        taken.0.resize(self.leaves.len(), None);
        for (leaf, taken) in self.leaves.iter().zip(&mut taken.0) {
            if let Some(gradient) = leaf.grad_remove(gradients) {
                *taken = Some(values(gradient));
            }
        }
    }

    /// Collected gradients under PEFT's names; zeros where there were none.
    pub(crate) fn put_together(&self, mut taken: LeafGradients) -> TensorSet {
        taken.0.resize(self.leaves.len(), None);
        self.gather(|leaf| {
            let zeros = || vec![0.0; self.leaves[leaf].dims().iter().product()];
            taken.0[leaf].take().unwrap_or_else(zeros)
        })
    }

    /// Trainable values.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.leaves
            .iter()
            .map(|t| t.dims().iter().product::<usize>())
            .sum()
    }

    pub(crate) fn adapter(&self, module: &str) -> Option<&Adapter> {
        self.pairs.get(module)
    }

    /// The layers it adapts, by module path.
    pub(crate) fn pairs(&self) -> &BTreeMap<String, Adapter> {
        &self.pairs
    }

    fn assemble(device: &Device, layout: Layout, tensors: &TensorSet) -> Result<Self, LoraError> {
        if let Some(name) = tensors.0.keys().find(|name| !layout.has(name)) {
            return Err(LoraError::Unused { name: name.clone() });
        }
        let mut leaves: Vec<Option<Tensor<2>>> = vec![None; layout.leaves];
        for slot in &layout.slots {
            let tensor = slot.check(tensors)?;
            for piece in &slot.pieces {
                let data = TensorData::new(piece.cut(&tensor.data, slot.shape[1]), piece.shape);
                leaves[piece.leaf] = Some(Tensor::from_data(data, device));
            }
        }
        // Every leaf is a piece of some slot: `Layout` makes them together.
        let leaves: Vec<Tensor<2>> = leaves.into_iter().flatten().collect();
        Ok(Self::with_leaves(Arc::new(layout), leaves))
    }

    fn with_leaves(layout: Arc<Layout>, leaves: Vec<Tensor<2>>) -> Self {
        let pairs = layout.modules.iter().map(|module| {
            let pair = Adapter {
                a: leaves[module.a].clone(),
                b: leaves[module.b].clone(),
                scale: module.scale,
            };
            (module.path.clone(), pair)
        });
        Self {
            pairs: pairs.collect(),
            leaves,
            layout,
        }
    }

    fn map(&self, f: impl Fn(Tensor<2>) -> Tensor<2>) -> Self {
        let leaves = self.leaves.iter().cloned().map(f).collect();
        Self::with_leaves(Arc::clone(&self.layout), leaves)
    }

    /// Puts the leaves' values together to PEFT's tensors.
    fn gather(&self, mut leaf: impl FnMut(usize) -> Vec<f32>) -> TensorSet {
        let tensors = self.layout.slots.iter().map(|slot| {
            let data = match &slot.pieces[..] {
                [whole] if whole.shape == slot.shape => leaf(whole.leaf),
                pieces => {
                    let mut data = vec![0.0; slot.shape[0] * slot.shape[1]];
                    for piece in pieces {
                        piece.paste(&leaf(piece.leaf), &mut data, slot.shape[1]);
                    }
                    data
                }
            };
            let shape = slot.shape.map(|n| n as u64).to_vec();
            (slot.name.clone(), F32Tensor { shape, data })
        });
        TensorSet(tensors.collect())
    }
}

/// Gradients of an adapter's leaves that have one.
#[derive(Debug, Default)]
pub(crate) struct LeafGradients(Vec<Option<Vec<f32>>>);

fn values(t: Tensor<2>) -> Vec<f32> {
    Weight::Matrix(t).to_host().data
}
