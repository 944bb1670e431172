//! Low-rank adapters (Hu et al. 2021) on the decoder's linear layers (TRAINING "LoRA").

use crate::model::{Decoder, Weight};
use crate::ops::Adapter;
use crate::sampling::{derive_key, units};
use burn::tensor::{Device, Gradients, Tensor};
use gym_protocol::job::spec::LoraSpec;
use gym_protocol::tensor::{F32Tensor, TensorSet};
use std::collections::BTreeMap;

/// What PEFT puts before a module's path.
const PREFIX: &str = "base_model.model.";

/// An adapter: A and B of every targeted layer.
///
/// [`Lora::tracked`] gives a copy that is a leaf of the autodiff graph. A clone is cheap: tensors are shared.
#[derive(Clone, Debug)]
pub struct Lora {
    pairs: BTreeMap<String, Adapter>,
}

/// Why an adapter does not fit a model.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoraError {
    /// A target names no linear layer.
    #[error("target module {target} names no linear layer of the model; it has {known}")]
    Target {
        /// The name given.
        target: String,
        /// Names that would do.
        known: String,
    },
    /// A tensor is not there.
    #[error("the adapter has no tensor {name}")]
    Missing {
        /// Its name.
        name: String,
    },
    /// A tensor belongs to no targeted layer.
    #[error("adapter tensor {name} belongs to no targeted layer of the model")]
    Unused {
        /// Its name.
        name: String,
    },
    /// A tensor has another shape.
    #[error("adapter tensor {name} has shape {got:?} where rank and layer ask for {want:?}")]
    Shape {
        /// Its name.
        name: String,
        /// In the adapter.
        got: Vec<u64>,
        /// By layer and rank.
        want: [usize; 2],
    },
}

impl Lora {
    /// Round 0's adapter: A uniform in ±1/√in (PEFT's kaiming-uniform with a = √5) from `seed`, B = 0.
    ///
    /// # Errors
    /// A target that names no layer.
    pub fn init(decoder: &Decoder, spec: &LoraSpec, seed: u64) -> Result<Self, LoraError> {
        Self::from_tensors(decoder, spec, &initial_tensors(decoder, spec, seed)?)
    }

    /// The adapter whose tensors have PEFT's names
    /// (`base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight`).
    ///
    /// # Errors
    /// A target that names no layer; a tensor that is missing, unused or of another shape.
    pub fn from_tensors(decoder: &Decoder, spec: &LoraSpec, tensors: &TensorSet) -> Result<Self, LoraError> {
        let rank = spec.rank as usize;
        let mut used = 0;
        let mut pairs = BTreeMap::new();
        for (module, [output, input]) in targets(decoder, spec)? {
            let mut take = |part: &str, want| {
                used += 1;
                matrix(tensors, &tensor_name(&module, part), want, decoder.device())
            };
            let a = take("lora_A", [rank, input])?;
            let b = take("lora_B", [output, rank])?;
            let scale = spec.alpha / f64::from(spec.rank);
            pairs.insert(module, Adapter { a, b, scale });
        }
        let lora = Self { pairs };
        if used != tensors.0.len() {
            let names = lora.weights();
            let name = tensors
                .0
                .keys()
                .find(|n| !names.contains_key(*n))
                .cloned()
                .unwrap_or_default();
            return Err(LoraError::Unused { name });
        }
        Ok(lora)
    }

    /// Copies all tensors to the host, under PEFT's names.
    #[must_use]
    pub fn to_tensors(&self) -> TensorSet {
        TensorSet(
            self.weights()
                .into_iter()
                .map(|(name, t)| (name, host(t)))
                .collect(),
        )
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
        let all = self.weights().into_iter().map(|(name, t)| {
            let gradient = t.grad_remove(gradients).unwrap_or_else(|| t.inner().zeros_like());
            (name, host(gradient))
        });
        TensorSet(all.collect())
    }

    /// Trainable values.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.weights()
            .values()
            .map(|t| t.dims().iter().product::<usize>())
            .sum()
    }

    pub(crate) fn adapter(&self, module: &str) -> Option<&Adapter> {
        self.pairs.get(module)
    }

    fn weights(&self) -> BTreeMap<String, Tensor<2>> {
        let both = |(module, pair): (&String, &Adapter)| {
            [
                (tensor_name(module, "lora_A"), pair.a.clone()),
                (tensor_name(module, "lora_B"), pair.b.clone()),
            ]
        };
        self.pairs.iter().flat_map(both).collect()
    }

    fn map(&self, f: impl Fn(Tensor<2>) -> Tensor<2>) -> Self {
        let pairs = self.pairs.iter().map(|(module, pair)| {
            let pair = Adapter {
                a: f(pair.a.clone()),
                b: f(pair.b.clone()),
                scale: pair.scale,
            };
            (module.clone(), pair)
        });
        Self {
            pairs: pairs.collect(),
        }
    }
}

/// Round 0's tensors on the host. Each A has its own stream, named by its tensor.
fn initial_tensors(decoder: &Decoder, spec: &LoraSpec, seed: u64) -> Result<TensorSet, LoraError> {
    let rank = spec.rank as usize;
    let mut set = TensorSet::default();
    for (module, [output, input]) in targets(decoder, spec)? {
        let name = tensor_name(&module, "lora_A");
        let bound = 1.0 / (input as f64).sqrt();
        let key = derive_key(&[b"gym/lora/v1", &seed.to_le_bytes(), name.as_bytes()]);
        let a = units(key, rank * input).map(|u| ((2.0 * u - 1.0) * bound) as f32);
        let tensor = |rows: usize, columns: usize, data| F32Tensor {
            shape: vec![rows as u64, columns as u64],
            data,
        };
        set.0.insert(name, tensor(rank, input, a.collect()));
        let b = tensor(output, rank, vec![0.0; output * rank]);
        set.0.insert(tensor_name(&module, "lora_B"), b);
    }
    Ok(set)
}

/// The layers `spec` names, with [out, in]. A target matches a module's last name, or a whole suffix of its path.
fn targets(decoder: &Decoder, spec: &LoraSpec) -> Result<Vec<(String, [usize; 2])>, LoraError> {
    let all = linear_layers(decoder);
    if spec.target_modules == ["all-linear"] {
        return Ok(all);
    }
    let matches = |module: &str, target: &str| {
        module == target
            || module
                .strip_suffix(target)
                .is_some_and(|rest| rest.ends_with('.'))
    };
    for target in &spec.target_modules {
        if !all.iter().any(|(module, _)| matches(module, target)) {
            return Err(LoraError::Target {
                target: target.clone(),
                known: last_names(&all),
            });
        }
    }
    Ok(all
        .into_iter()
        .filter(|(module, _)| spec.target_modules.iter().any(|t| matches(module, t)))
        .collect())
}

/// Linear layers of the blocks: every matrix but embedding and head.
fn linear_layers(decoder: &Decoder) -> Vec<(String, [usize; 2])> {
    let layer = |(name, weight): (&String, &Weight)| match weight {
        Weight::Matrix(t) if name.starts_with("model.layers.") => name
            .strip_suffix(".weight")
            .map(|module| (module.to_owned(), t.dims())),
        Weight::Matrix(_) | Weight::Vector(_) => None,
    };
    decoder.weights().0.iter().filter_map(layer).collect()
}

fn last_names(layers: &[(String, [usize; 2])]) -> String {
    let mut names: Vec<&str> = layers.iter().filter_map(|(m, _)| m.rsplit('.').next()).collect();
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}

fn tensor_name(module: &str, part: &str) -> String {
    format!("{PREFIX}{module}.{part}.weight")
}

fn matrix(
    tensors: &TensorSet,
    name: &str,
    want: [usize; 2],
    device: &Device,
) -> Result<Tensor<2>, LoraError> {
    let tensor = tensors
        .0
        .get(name)
        .ok_or_else(|| LoraError::Missing { name: name.into() })?;
    match Weight::from_host(&want, tensor.data.clone(), device) {
        Some(Weight::Matrix(t)) if tensor.shape == want.map(|n| n as u64) => Ok(t),
        _ => Err(LoraError::Shape {
            name: name.into(),
            got: tensor.shape.clone(),
            want,
        }),
    }
}

fn host(t: Tensor<2>) -> F32Tensor {
    Weight::Matrix(t).to_host()
}
