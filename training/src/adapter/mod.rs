//! Adapters on disk, in PEFT's format.

mod config;
mod per_expert;

pub use per_expert::{ExpertNames, PerExpertError};

use crate::lora::Overrides;
use crate::model::{SaveError, map_file, to_f32, write_json, write_tensors};
use gym_protocol::job::spec::LoraSpec;
use gym_protocol::tensor::{F32Tensor, TensorSet};
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};

const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";

/// A PEFT adapter directory: `adapter_config.json` and `adapter_model.safetensors`.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// Rank, alpha, targets. PEFT's `target_parameters` are among the targets
    /// (`mlp.experts.gate_up_proj`); a regular expression is the list of modules that the tensors belong to.
    pub lora: LoraSpec,
    /// Layers of another rank or scale.
    pub overrides: Overrides,
    /// The base model's name or path, as PEFT's `base_model_name_or_path`.
    pub base: String,
    /// Tensors under PEFT's names.
    pub tensors: TensorSet,
}

/// Why an adapter directory is refused.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// There is no such directory.
    #[error(
        "{} is no directory; an adapter is one with {CONFIG} and {TENSORS}, such as a job's checkpoint or a run's adapter/",
        path.display()
    )]
    NoDirectory {
        /// What was given.
        path: PathBuf,
    },
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
    /// One rank and alpha for all layers.
    #[must_use]
    pub fn new(lora: LoraSpec, base: String, tensors: TensorSet) -> Self {
        Self {
            lora,
            overrides: Overrides::default(),
            base,
            tensors,
        }
    }

    /// Reads an adapter directory.
    ///
    /// # Errors
    /// An unreadable file, or a kind of adapter other than LoRA as PEFT's `Linear` layers have it.
    pub fn load(dir: &Path) -> Result<Self, AdapterError> {
        if !dir.is_dir() {
            return Err(AdapterError::NoDirectory { path: dir.to_owned() });
        }
        let tensors = read_tensors(&dir.join(TENSORS))?;
        config::read(&dir.join(CONFIG), tensors)
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
        write_json(&dir.join(CONFIG), &config::json(self))
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
        set.0.insert(config::newest_name(name), F32Tensor { shape, data });
    }
    Ok(set)
}
