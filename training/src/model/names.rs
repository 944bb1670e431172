//! Names that tensors have on disk.
//!
//! In memory a tensor has its newest name, with experts apart. On disk an expert may lie within a tensor that holds
//! them all, and Mixtral's have names of their own.

use super::config::{Architecture, ModelConfig};

/// Where a tensor may lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Under a name of its own.
    Whole(String),
    /// Within a tensor of all experts, [E, parts·out, in].
    Fused {
        name: String,
        expert: usize,
        /// Which of the tensor's parts: gate before up.
        part: usize,
        parts: usize,
    },
}

impl Place {
    /// The tensor's name on disk.
    pub(super) fn name(self) -> String {
        match self {
            Self::Whole(name) | Self::Fused { name, .. } => name,
        }
    }
}

/// Where the tensor `name` of a family may lie, likeliest first.
pub(super) fn places(architecture: Architecture, name: &str) -> Vec<Place> {
    let mut places = vec![Place::Whole(name.to_owned())];
    let hub = hub_name(architecture, name);
    if hub != name {
        places.insert(0, Place::Whole(hub));
    }
    if let Some((path, expert, module)) = expert(name) {
        let (fused, part, parts) = match module {
            "gate_proj" => ("gate_up_proj", 0, 2),
            "up_proj" => ("gate_up_proj", 1, 2),
            _ => ("down_proj", 0, 1),
        };
        places.push(Place::Fused {
            name: format!("{path}.experts.{fused}"),
            expert,
            part,
            parts,
        });
    }
    places
}

/// A linear layer's weight within a tensor on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredAt {
    /// The tensor's name.
    pub(crate) name: String,
    /// The tensor's extent.
    pub(crate) shape: Vec<usize>,
    /// Values of the tensor before the weight's.
    pub(crate) start: usize,
}

/// Where the weight `name` [out, in] of a model may lie, likeliest first.
pub(crate) fn stored_at(config: &ModelConfig, name: &str, shape: [usize; 2]) -> Vec<StoredAt> {
    let one = |place| match place {
        Place::Whole(name) => StoredAt {
            name,
            shape: shape.to_vec(),
            start: 0,
        },
        Place::Fused {
            name,
            expert,
            part,
            parts,
        } => StoredAt {
            name,
            shape: vec![
                config.experts().map_or(0, |e| e.count),
                parts * shape[0],
                shape[1],
            ],
            start: (expert * parts + part) * shape[0] * shape[1],
        },
    };
    places(config.architecture, name).into_iter().map(one).collect()
}

/// The name that the Hub's files of a family have, and that is written.
pub(super) fn hub_name(architecture: Architecture, name: &str) -> String {
    if architecture != Architecture::Mixtral || !name.contains(".mlp.") {
        return name.to_owned();
    }
    let name = name.replace(".mlp.", ".block_sparse_moe.");
    [("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")]
        .into_iter()
        .fold(name, |name, (new, hub)| name.replace(new, hub))
}

/// Whether a tensor that nothing uses may be passed over.
pub(super) fn ignored(name: &str) -> bool {
    name.starts_with("mtp.") || name.ends_with("rotary_emb.inv_freq")
}

/// Path of the mixture, expert and module of a routed expert's weight.
fn expert(name: &str) -> Option<(&str, usize, &str)> {
    let (path, rest) = name.split_once(".experts.")?;
    let (expert, module) = rest.split_once('.')?;
    Some((path, expert.parse().ok()?, module.strip_suffix(".weight")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_experts_weight_may_lie_in_three_places() {
        let name = "model.layers.1.mlp.experts.3.up_proj.weight";
        let found = places(Architecture::Mixtral, name);
        let fused = Place::Fused {
            name: "model.layers.1.mlp.experts.gate_up_proj".into(),
            expert: 3,
            part: 1,
            parts: 2,
        };
        let hub = "model.layers.1.block_sparse_moe.experts.3.w3.weight";
        assert_eq!(
            found,
            [Place::Whole(hub.into()), Place::Whole(name.into()), fused]
        );
        assert_eq!(places(Architecture::Qwen3Moe, name).len(), 2);
        let router = hub_name(Architecture::Mixtral, "model.layers.0.mlp.gate.weight");
        assert_eq!(router, "model.layers.0.block_sparse_moe.gate.weight");
    }
}
