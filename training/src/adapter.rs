//! Adapters on disk, in PEFT's format.

use crate::model::{SaveError, map_file, to_f32, write_json, write_tensors};
use gym_protocol::job::spec::LoraSpec;
use gym_protocol::tensor::{F32Tensor, TensorSet};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";

/// A PEFT adapter directory: `adapter_config.json` and `adapter_model.safetensors`.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// Rank, alpha, targets.
    pub lora: LoraSpec,
    /// The base model's name or path, as PEFT's `base_model_name_or_path`.
    pub base: String,
    /// Tensors under PEFT's names.
    pub tensors: TensorSet,
}

/// Why an adapter directory is refused.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// A file cannot be read.
    #[error("{}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// The configuration asks for something that is not implemented.
    #[error("{}: \"{key}\" {reason}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

impl Adapter {
    /// Reads an adapter directory.
    ///
    /// # Errors
    /// An unreadable file, or a kind of adapter other than plain LoRA.
    pub fn load(dir: &Path) -> Result<Self, AdapterError> {
        let (lora, base) = read_config(&dir.join(CONFIG))?;
        let tensors = read_tensors(&dir.join(TENSORS))?;
        Ok(Self { lora, base, tensors })
    }

    /// Writes the directory so that PEFT loads it. `dir` is made if it is not there.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), SaveError> {
        std::fs::create_dir_all(dir).map_err(|source| SaveError::Write {
            path: dir.to_owned(),
            source,
        })?;
        write_tensors(&dir.join(TENSORS), &self.tensors)?;
        write_json(&dir.join(CONFIG), &self.config_json())
    }

    fn config_json(&self) -> Value {
        json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": self.base,
            "r": self.lora.rank,
            "lora_alpha": self.lora.alpha,
            "lora_dropout": 0.0,
            "target_modules": self.peft_targets(),
            "bias": "none",
            "fan_in_fan_out": false,
            "inference_mode": true,
            "init_lora_weights": true,
            "modules_to_save": null,
            "use_dora": false,
            "use_rslora": false,
        })
    }

    /// PEFT writes `all-linear` out as the last names of the layers it found.
    fn peft_targets(&self) -> Vec<String> {
        if self.lora.target_modules != ["all-linear"] {
            return self.lora.target_modules.clone();
        }
        let module = |name: &String| {
            let path = name.strip_suffix(".lora_A.weight")?;
            path.rsplit('.').next().map(str::to_owned)
        };
        let mut names: Vec<String> = self.tensors.0.keys().filter_map(module).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

fn read_config(path: &Path) -> Result<(LoraSpec, String), AdapterError> {
    let read = |reason: String| AdapterError::Read {
        path: path.to_owned(),
        reason,
    };
    let bad = |key, reason: &str| AdapterError::Config {
        path: path.to_owned(),
        key,
        reason: reason.into(),
    };
    let text = std::fs::read_to_string(path).map_err(|e| read(e.to_string()))?;
    let value: Value = serde_json::from_str(&text).map_err(|e| read(e.to_string()))?;
    for (key, want) in [("peft_type", json!("LORA")), ("bias", json!("none"))] {
        if value.get(key).is_some_and(|v| *v != want) {
            return Err(bad(key, &format!("must be {want}")));
        }
    }
    // These change what the tensors mean; reading past them would give other logits than PEFT.
    for key in ["use_dora", "use_rslora", "fan_in_fan_out", "lora_bias"] {
        if value.get(key).and_then(Value::as_bool) == Some(true) {
            return Err(bad(key, "is true; only plain LoRA is read"));
        }
    }
    for key in ["rank_pattern", "alpha_pattern"] {
        if value
            .get(key)
            .and_then(Value::as_object)
            .is_some_and(|o| !o.is_empty())
        {
            return Err(bad(
                key,
                "is not empty; one rank and alpha for all layers is read",
            ));
        }
    }
    let rank = value
        .get("r")
        .and_then(Value::as_u64)
        .and_then(|r| u32::try_from(r).ok())
        .filter(|r| (1..=1024).contains(r))
        .ok_or_else(|| bad("r", "must be an integer from 1 to 1024"))?;
    let alpha = value
        .get("lora_alpha")
        .and_then(Value::as_f64)
        .ok_or_else(|| bad("lora_alpha", "must be a number"))?;
    let target_modules = targets(value.get("target_modules"))
        .ok_or_else(|| bad("target_modules", "must be a list of names or \"all-linear\""))?;
    let base = value
        .get("base_model_name_or_path")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let spec = LoraSpec {
        rank,
        alpha,
        target_modules,
    };
    Ok((spec, base.to_owned()))
}

fn targets(value: Option<&Value>) -> Option<Vec<String>> {
    match value? {
        Value::String(s) if s == "all-linear" => Some(vec![s.clone()]),
        Value::Array(list) => list.iter().map(|v| v.as_str().map(str::to_owned)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => None,
    }
}

fn read_tensors(path: &Path) -> Result<TensorSet, AdapterError> {
    let read = |reason: String| AdapterError::Read {
        path: path.to_owned(),
        reason,
    };
    let map = map_file(path).map_err(|e| read(e.to_string()))?;
    let file = SafeTensors::deserialize(&map).map_err(|e| read(e.to_string()))?;
    let mut set = TensorSet::default();
    for (name, view) in file.iter() {
        let data = to_f32(view.dtype(), view.data()).ok_or_else(|| {
            read(format!(
                "tensor {name} is {:?}; F32, F16 and BF16 are read",
                view.dtype()
            ))
        })?;
        let shape = view.shape().iter().map(|n| *n as u64).collect();
        set.0.insert(name.to_owned(), F32Tensor { shape, data });
    }
    Ok(set)
}
