//! Adapters of routed experts under one name per expert, as vLLM expects them.

use super::Adapter;
use crate::lora::{is_expert_parameter, module_of, suffix_matches, tensor_name};
use crate::model::Architecture;
use gym_protocol::tensor::{F32Tensor, TensorSet};
use std::collections::BTreeSet;

/// Why an adapter cannot be written with one name per expert.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PerExpertError {
    /// The experts' tensors have a rank of their own, which the layout cannot say.
    #[error(
        "the experts' adapter has ranks of its own (rank_pattern); with one name per expert all layers share one rank"
    )]
    Ranks,
    /// A tensor's shape is no whole number of experts.
    #[error("adapter tensor {name} has shape {shape:?}, which rank {rank} does not divide")]
    Shape {
        /// Its name.
        name: String,
        /// Its shape.
        shape: Vec<u64>,
        /// The adapter's rank.
        rank: u32,
    },
}

/// What a family calls its experts' layers where each has a name of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertNames {
    /// `mlp.experts.3.gate_proj`.
    Projections,
    /// `block_sparse_moe.experts.3.w1`.
    Mixtral,
}

impl From<Architecture> for ExpertNames {
    fn from(architecture: Architecture) -> Self {
        match architecture {
            Architecture::Mixtral => Self::Mixtral,
            Architecture::Qwen2
            | Architecture::Qwen3
            | Architecture::Qwen3Moe
            | Architecture::Qwen3Next
            | Architecture::Llama
            | Architecture::Mistral => Self::Projections,
        }
    }
}

impl ExpertNames {
    /// The family's word for a projection.
    fn projection(self, name: &'static str) -> &'static str {
        match (self, name) {
            (Self::Mixtral, "gate_proj") => "w1",
            (Self::Mixtral, "down_proj") => "w2",
            (Self::Mixtral, "up_proj") => "w3",
            (Self::Mixtral | Self::Projections, name) => name,
        }
    }

    /// The family's path of an expert's layer.
    fn path(self, experts: &str, expert: usize, name: &'static str) -> String {
        let path = format!("{experts}.{expert}.{}", self.projection(name));
        match self {
            Self::Projections => path,
            Self::Mixtral => path.replace(".mlp.", ".block_sparse_moe."),
        }
    }
}

impl Adapter {
    /// The same adapter with A and B of each expert's gate, up and down projection under a name of their own
    /// (`…mlp.experts.3.gate_proj.lora_A.weight`); gate and up get the A they share.
    ///
    /// # Errors
    /// An adapter whose layers differ in rank; a tensor that is no whole number of experts.
    pub fn per_expert(&self, expert_names: ExpertNames) -> Result<Self, PerExpertError> {
        let parameters: Vec<&String> = self
            .lora
            .target_modules
            .iter()
            .filter(|t| is_expert_parameter(t))
            .collect();
        if parameters.is_empty() {
            return Ok(self.clone());
        }
        if !self.overrides.ranks.is_empty() || !self.overrides.alphas.is_empty() {
            return Err(PerExpertError::Ranks);
        }
        let targets = |name: &str| parameters.iter().any(|t| suffix_matches(t, name));
        let (gate_up, down) = (targets("gate_up_proj"), targets("down_proj"));
        let mut tensors = TensorSet::default();
        for (name, tensor) in &self.tensors.0 {
            match wrapped(name, down) {
                Some(fused) => self.split(name, &fused, expert_names, tensor, &mut tensors)?,
                None => {
                    tensors.0.insert(name.clone(), tensor.clone());
                }
            }
        }
        let mut adapter = self.clone();
        adapter.tensors = tensors;
        adapter.lora.target_modules.retain(|t| !is_expert_parameter(t));
        let mut names = BTreeSet::new();
        let projections = gate_up.then_some(["gate_proj", "up_proj"]).into_iter().flatten();
        names.extend(
            projections
                .chain(down.then_some("down_proj"))
                .map(|n| expert_names.projection(n)),
        );
        adapter
            .lora
            .target_modules
            .extend(names.into_iter().map(str::to_owned));
        Ok(adapter)
    }

    fn split(
        &self,
        name: &str,
        fused: &Wrapped<'_>,
        expert_names: ExpertNames,
        tensor: &F32Tensor,
        into: &mut TensorSet,
    ) -> Result<(), PerExpertError> {
        let rank = self.lora.rank as usize;
        let bad = || PerExpertError::Shape {
            name: name.to_owned(),
            shape: tensor.shape.clone(),
            rank: self.lora.rank,
        };
        let [rows, columns] = tensor.shape[..] else {
            return Err(bad());
        };
        let (rows, columns) = (rows as usize, columns as usize);
        let (is_a, parts) = (fused.part == "lora_A", fused.names.len());
        let ranked = if is_a { rows } else { columns };
        if tensor.data.len() != rows * columns || ranked % rank != 0 || (!is_a && rows % parts != 0) {
            return Err(bad());
        }
        let experts = ranked / rank;
        for expert in 0..experts {
            for (part, module) in fused.names.iter().enumerate() {
                let (shape, data) = if is_a {
                    let data = tensor.data[expert * rank * columns..][..rank * columns].to_vec();
                    ([rank, columns], data)
                } else {
                    let output = rows / parts;
                    let own = tensor.data[part * output * columns..][..output * columns].chunks(columns);
                    let data = own
                        .flat_map(|row| row[expert..].iter().step_by(experts).copied())
                        .collect();
                    ([output, rank], data)
                };
                let module = expert_names.path(fused.path, expert, module);
                let shape = shape.map(|n| n as u64).to_vec();
                into.0
                    .insert(tensor_name(&module, fused.part), F32Tensor { shape, data });
            }
        }
        Ok(())
    }
}

/// A tensor of PEFT's wrapper around a fused parameter.
struct Wrapped<'a> {
    /// `model.layers.0.mlp.experts`
    path: &'a str,
    /// What the parameter holds.
    names: &'static [&'static str],
    /// `lora_A` or `lora_B`
    part: &'a str,
}

/// The wrapper that `tensor` belongs to; `down` says whether `down_proj` is adapted, which then has the outer one.
fn wrapped(tensor: &str, down: bool) -> Option<Wrapped<'_>> {
    let (module, part) = module_of(tensor)?;
    let (path, names): (_, &[&str]) = match module.strip_suffix(".base_layer") {
        Some(path) => (path, &["gate_proj", "up_proj"]),
        None if down => (module, &["down_proj"]),
        None => (module, &["gate_proj", "up_proj"]),
    };
    path.ends_with(".experts")
        .then_some(Wrapped { path, names, part })
}
