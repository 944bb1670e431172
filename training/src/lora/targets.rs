//! Which layers a target list names.

use super::LoraError;
use crate::model::{LinearKind, LinearLayer, ModelConfig};
use std::collections::BTreeMap;

/// PEFT's word for every linear layer outside the routed experts.
pub(crate) const ALL_LINEAR: &str = "all-linear";

/// The experts of one layer, and which of their fused parameters are adapted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mixture {
    /// Module path, `model.layers.0.mlp.experts`.
    pub(super) path: String,
    pub(super) experts: usize,
    /// Width of the residual stream.
    pub(super) hidden: usize,
    /// Width of an expert.
    pub(super) width: usize,
    pub(super) gate_up: bool,
    pub(super) down: bool,
}

/// What a target list names.
#[derive(Debug, Default)]
pub(super) struct Targets {
    pub(super) layers: Vec<LinearLayer>,
    pub(super) mixtures: Vec<Mixture>,
}

impl Targets {
    /// An entry matches a module's last name or a whole suffix of its path; `experts.gate_up_proj` and
    /// `experts.down_proj` name the fused parameters of routed experts, as in PEFT's `target_parameters`.
    pub(super) fn find(config: &ModelConfig, entries: &[String]) -> Result<Self, LoraError> {
        let (layers, mixtures) = modules(config);
        let mut found = Self::default();
        for entry in entries {
            let known = || known(&layers, &mixtures);
            if !found.add(entry, &layers, &mixtures) {
                return Err(LoraError::Target {
                    target: entry.clone(),
                    known: known(),
                });
            }
        }
        found.layers.sort_by(|a, b| a.name.cmp(&b.name));
        found.layers.dedup();
        Ok(found)
    }

    /// Adds what one entry names; whether that is anything.
    fn add(&mut self, entry: &str, layers: &[LinearLayer], mixtures: &[Mixture]) -> bool {
        if is_expert_parameter(entry) {
            return self.add_parameter(entry, mixtures);
        }
        let before = self.layers.len();
        let matches = |layer: &&LinearLayer| match entry {
            ALL_LINEAR => layer.kind == LinearKind::Dense,
            _ => suffix_matches(&layer.name, entry),
        };
        self.layers.extend(layers.iter().filter(matches).cloned());
        self.layers.len() > before
    }

    fn add_parameter(&mut self, entry: &str, mixtures: &[Mixture]) -> bool {
        let mut any = false;
        for mixture in mixtures {
            let gate_up = suffix_matches(&format!("{}.gate_up_proj", mixture.path), entry);
            let down = suffix_matches(&format!("{}.down_proj", mixture.path), entry);
            if !gate_up && !down {
                continue;
            }
            any = true;
            let at = self.mixtures.iter().position(|m| m.path == mixture.path);
            let at = at.unwrap_or_else(|| {
                self.mixtures.push(mixture.clone());
                self.mixtures.len() - 1
            });
            self.mixtures[at].gate_up |= gate_up;
            self.mixtures[at].down |= down;
        }
        any
    }
}

/// Whether a target names a parameter that holds all experts of a layer.
pub(crate) fn is_expert_parameter(target: &str) -> bool {
    ["experts.gate_up_proj", "experts.down_proj"]
        .iter()
        .any(|name| suffix_matches(target, name))
}

/// Whether `suffix` is `path` or what follows a dot in it.
pub(crate) fn suffix_matches(path: &str, suffix: &str) -> bool {
    path.strip_suffix(suffix)
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Linear layers that may be adapted, and mixtures of experts with none of their parameters named.
fn modules(config: &ModelConfig) -> (Vec<LinearLayer>, Vec<Mixture>) {
    let layers = config.linear_layers();
    let mut mixtures: BTreeMap<&str, Mixture> = BTreeMap::new();
    for layer in layers.iter().filter(|l| l.kind == LinearKind::Expert) {
        let Some((path, _)) = layer.name.split_once(".experts.") else {
            continue;
        };
        let mixture = mixtures.entry(path).or_insert_with(|| Mixture {
            path: format!("{path}.experts"),
            experts: 0,
            hidden: 0,
            width: 0,
            gate_up: false,
            down: false,
        });
        if layer.name.ends_with(".down_proj") {
            mixture.experts += 1;
            [mixture.hidden, mixture.width] = layer.shape;
        }
    }
    let mixtures = mixtures.into_values().collect();
    (layers, mixtures)
}

fn known(layers: &[LinearLayer], mixtures: &[Mixture]) -> String {
    let mut names: Vec<&str> = layers.iter().filter_map(|l| l.name.rsplit('.').next()).collect();
    if !mixtures.is_empty() {
        names.extend(["experts.gate_up_proj", "experts.down_proj"]);
    }
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}
