//! `adapter_config.json`.

use super::{Adapter, AdapterError};
use crate::lora::{ALL_LINEAR, Overrides, Scaling, is_expert_parameter, module_of, suffix_matches};
use gym_protocol::job::spec::LoraSpec;
use gym_protocol::tensor::TensorSet;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// Ranks that are read; more is a broken file.
const LARGEST_RANK: u64 = 1024;

/// What PEFT loads.
pub(super) fn json(adapter: &Adapter) -> Value {
    let overrides = &adapter.overrides;
    let (modules, parameters) = targets_json(adapter);
    json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": adapter.base,
        "r": adapter.lora.rank,
        "lora_alpha": adapter.lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": modules,
        "target_parameters": if parameters.is_empty() { Value::Null } else { json!(parameters) },
        "rank_pattern": overrides.ranks.iter().map(|(k, v)| (k.clone(), json!(v))).collect::<Map<_, _>>(),
        "alpha_pattern": overrides.alphas.iter().map(|(k, v)| (k.clone(), json!(v))).collect::<Map<_, _>>(),
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "modules_to_save": null,
        "use_dora": false,
        "use_rslora": overrides.scaling == Scaling::ByRootOfRank,
    })
}

/// PEFT's `target_modules` and `target_parameters`. It writes `all-linear` out as the last names of the layers it found.
fn targets_json(adapter: &Adapter) -> (Vec<String>, Vec<String>) {
    let modules: BTreeSet<&str> = adapter
        .tensors
        .0
        .keys()
        .filter_map(|name| module_of(name).map(|(module, _)| module))
        .collect();
    let mut names = BTreeSet::new();
    let mut parameters = BTreeSet::new();
    for target in &adapter.lora.target_modules {
        if target == ALL_LINEAR {
            let plain = modules.iter().filter(|m| !m.contains(".experts"));
            names.extend(plain.filter_map(|m| m.rsplit('.').next()).map(str::to_owned));
        } else if is_expert_parameter(target) {
            parameters.insert(target.clone());
        } else {
            names.insert(target.clone());
        }
    }
    if mixes_mlps(&modules) {
        apart(&modules, &mut names, &mut parameters);
    }
    (names.into_iter().collect(), parameters.into_iter().collect())
}

/// Whether dense MLPs or shared experts are adapted in a model that has routed experts too, as far as the modules show.
fn mixes_mlps(modules: &BTreeSet<&str>) -> bool {
    let layer = |module: &&&str| module.split('.').nth(2).map(str::to_owned);
    let dense: BTreeSet<_> = modules
        .iter()
        .filter(|m| is_dense_mlp(m))
        .filter_map(|m| layer(&m))
        .collect();
    let all: BTreeSet<_> = modules.iter().filter_map(|m| layer(&m)).collect();
    !dense.is_empty() && (dense != all || modules.iter().any(|m| m.contains("expert")))
}

fn is_dense_mlp(module: &str) -> bool {
    !module.contains(".experts")
        && ["gate_proj", "up_proj", "down_proj"]
            .iter()
            .any(|n| module.ends_with(n))
}

/// In a model with routed experts PEFT takes the names `gate_proj`, `up_proj` and `down_proj`, however long their paths,
/// for the experts'. A dense layer of the name can be had as a parameter: `mlp.shared_expert.gate_proj.weight`.
fn apart(modules: &BTreeSet<&str>, names: &mut BTreeSet<String>, parameters: &mut BTreeSet<String>) {
    let dense = modules.iter().filter(|m| is_dense_mlp(m));
    parameters.extend(dense.map(|module| {
        let path = module.split('.').skip(3).collect::<Vec<_>>().join(".");
        format!("{path}.weight")
    }));
    names.retain(|name| !is_dense_mlp(name));
}

/// The adapter that the file describes and `tensors` are.
pub(super) fn read(path: &Path, tensors: TensorSet) -> Result<Adapter, AdapterError> {
    let read = |reason: String| AdapterError::Read {
        path: path.to_owned(),
        reason,
    };
    let text = std::fs::read_to_string(path).map_err(|e| read(e.to_string()))?;
    let object = serde_json::from_str(&text).map_err(|e| read(e.to_string()))?;
    let file = File { path, object };
    file.refuse_unsupported()?;
    let rank = file.object.get("r").and_then(rank);
    let lora = LoraSpec {
        rank: rank.ok_or_else(|| file.bad("r", "must be an integer from 1 to 1024"))?,
        alpha: file
            .object
            .get("lora_alpha")
            .and_then(Value::as_f64)
            .ok_or_else(|| file.bad("lora_alpha", "must be a number"))?,
        target_modules: file.targets(&tensors)?,
    };
    let base = file.object.get("base_model_name_or_path").and_then(Value::as_str);
    Ok(Adapter {
        overrides: file.overrides()?,
        lora,
        base: base.unwrap_or_default().to_owned(),
        tensors,
    })
}

struct File<'a> {
    path: &'a Path,
    object: Map<String, Value>,
}

impl File<'_> {
    /// These change what the tensors mean, or which there are; reading past them would give other logits than PEFT.
    fn refuse_unsupported(&self) -> Result<(), AdapterError> {
        for (key, want) in [("peft_type", json!("LORA")), ("bias", json!("none"))] {
            if self.object.get(key).is_some_and(|v| *v != want) {
                return Err(self.bad(key, &format!("must be {want}")));
            }
        }
        for key in [
            "use_dora",
            "fan_in_fan_out",
            "lora_bias",
            "use_qalora",
            "use_bdlora",
            "modules_to_save",
            "layer_replication",
            "trainable_token_indices",
            "alora_invocation_tokens",
            "arrow_config",
            "kasa_config",
            "monteclora_config",
            "velora_config",
        ] {
            let value = self.object.get(key).unwrap_or(&Value::Null);
            let unset = [json!(null), json!(false), json!([]), json!({})];
            if !unset.contains(value) {
                return Err(self.bad(key, &format!("is {value}; only plain LoRA is read")));
            }
        }
        Ok(())
    }

    fn targets(&self, tensors: &TensorSet) -> Result<Vec<String>, AdapterError> {
        let narrowed = ["layers_to_transform", "layers_pattern", "exclude_modules"];
        let set = |key: &&str| {
            self.object
                .get(*key)
                .is_some_and(|v| ![json!(null), json!([]), json!("")].contains(v))
        };
        let mut targets = match self.object.get("target_modules") {
            None | Some(Value::Null) => Vec::new(),
            // PEFT adapted what these keys left, and the tensors say what that was.
            Some(_) if narrowed.iter().any(set) => modules_in(tensors),
            Some(Value::String(s)) if s.eq_ignore_ascii_case(ALL_LINEAR) => vec![ALL_LINEAR.to_owned()],
            // Likewise what an expression matched.
            Some(Value::String(_)) => modules_in(tensors),
            Some(list) => names(list).ok_or_else(|| {
                self.bad(
                    "target_modules",
                    "must be a list of names, a regular expression or \"all-linear\"",
                )
            })?,
        };
        for target in &mut targets {
            *target = newest_name(target);
        }
        let parameters = match self.object.get("target_parameters") {
            None | Some(Value::Null) => Vec::new(),
            Some(list) => {
                names(list).ok_or_else(|| self.bad("target_parameters", "must be a list of names"))?
            }
        };
        for parameter in parameters {
            targets.push(self.parameter(&parameter)?);
        }
        Ok(targets)
    }

    /// A parameter as a target: the experts' by path, a linear layer's weight as its module.
    fn parameter(&self, name: &str) -> Result<String, AdapterError> {
        if is_expert_parameter(name) {
            return Ok(name.to_owned());
        }
        if ["gate_up_proj", "down_proj"].contains(&name) {
            return Ok(format!("experts.{name}"));
        }
        match name.strip_suffix(".weight") {
            Some(module) if !suffix_matches(module, "gate") => Ok(module.to_owned()),
            _ => Err(self.bad(
                "target_parameters",
                &format!("names {name}; experts.gate_up_proj, experts.down_proj and weights of linear layers are read"),
            )),
        }
    }

    fn overrides(&self) -> Result<Overrides, AdapterError> {
        let rslora = self.object.get("use_rslora").and_then(Value::as_bool);
        Ok(Overrides {
            ranks: self.pattern("rank_pattern", "a rank from 1 to 1024", rank)?,
            alphas: self.pattern("alpha_pattern", "a number", Value::as_f64)?,
            scaling: match rslora {
                Some(true) => Scaling::ByRootOfRank,
                Some(false) | None => Scaling::ByRank,
            },
        })
    }

    fn pattern<T>(
        &self,
        key: &'static str,
        want: &str,
        value: impl Fn(&Value) -> Option<T>,
    ) -> Result<Vec<(String, T)>, AdapterError> {
        let Some(object) = self.object.get(key).and_then(Value::as_object) else {
            return Ok(Vec::new());
        };
        let one = |(pattern, v): (&String, &Value)| match value(v) {
            Some(v) => Ok((pattern.clone(), v)),
            None => Err(self.bad(
                key,
                &format!("gives {pattern:?} the value {v}, which is not {want}"),
            )),
        };
        object.iter().map(one).collect()
    }

    fn bad(&self, key: &'static str, reason: &str) -> AdapterError {
        AdapterError::Config {
            path: self.path.to_owned(),
            key,
            reason: reason.into(),
        }
    }
}

fn rank(value: &Value) -> Option<u32> {
    let rank = value.as_u64().filter(|r| (1..=LARGEST_RANK).contains(r))?;
    u32::try_from(rank).ok()
}

fn names(value: &Value) -> Option<Vec<String>> {
    let list = value.as_array()?;
    list.iter().map(|v| v.as_str().map(str::to_owned)).collect()
}

/// The modules that tensors belong to, but for wrappers of parameters, which `target_parameters` names.
fn modules_in(tensors: &TensorSet) -> Vec<String> {
    let modules: BTreeSet<&str> = tensors
        .0
        .keys()
        .filter_map(|name| module_of(name).map(|(module, _)| module))
        .collect();
    let wrapper = |module: &str| module.ends_with(".experts") || module.ends_with(".base_layer");
    modules
        .into_iter()
        .filter(|m| !wrapper(m))
        .map(str::to_owned)
        .collect()
}

/// Mixtral's modules and tensors had names of their own, which adapters made then still have.
pub(super) fn newest_name(name: &str) -> String {
    let name = name.replace(".block_sparse_moe.", ".mlp.");
    let segment = |part| match part {
        "w1" => "gate_proj",
        "w2" => "down_proj",
        "w3" => "up_proj",
        other => other,
    };
    name.split('.').map(segment).collect::<Vec<_>>().join(".")
}
