//! Writing a Hugging Face model directory.

use super::Decoder;
use super::names::hub_name;
use super::store::on_disk;
use gym_protocol::tensor::{F32Tensor, TensorSet};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Why a directory cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The disk refuses.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The values cannot be encoded.
    #[error("{}: {reason}", path.display())]
    Encode {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl Decoder {
    /// Writes `config.json`, `generation_config.json` and `model.safetensors` (f32) into `dir`, which is made if
    /// it is not there. Tokenizer files are the caller's.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), SaveError> {
        std::fs::create_dir_all(dir).map_err(|source| SaveError::Write {
            path: dir.to_owned(),
            source,
        })?;
        write_json(&dir.join("config.json"), &self.config().to_json())?;
        write_json(
            &dir.join("generation_config.json"),
            &self.config().generation_json(),
        )?;
        write_tensors(&dir.join("model.safetensors"), &self.stored())
    }
}

impl Decoder {
    /// The weights on the host under the names and with the extents that the Hub's files have.
    fn stored(&self) -> TensorSet {
        let config = self.config();
        let mut host = self.weights().to_host().0;
        let mut set = TensorSet::default();
        for spec in config.tensors() {
            if let Some(tensor) = host.remove(&spec.name) {
                let tensor = F32Tensor {
                    shape: on_disk(&spec).iter().map(|n| *n as u64).collect(),
                    data: tensor.data,
                };
                set.0.insert(hub_name(config.architecture, &spec.name), tensor);
            }
        }
        set
    }
}

/// Writes indented JSON.
pub(crate) fn write_json(path: &Path, value: &Value) -> Result<(), SaveError> {
    let text = serde_json::to_string_pretty(value).map_err(|e| SaveError::Encode {
        path: path.to_owned(),
        reason: e.to_string(),
    })?;
    write_atomically(path, (text + "\n").as_bytes())
}

/// Writes a safetensors file as PyTorch does (`format: pt`), f32 little-endian.
pub(crate) fn write_tensors(path: &Path, tensors: &TensorSet) -> Result<(), SaveError> {
    let encode = |reason: String| SaveError::Encode {
        path: path.to_owned(),
        reason,
    };
    let blobs: Vec<(&str, Vec<usize>, Vec<u8>)> = tensors
        .0
        .iter()
        .map(|(name, t)| {
            let shape = t.shape.iter().map(|n| *n as usize).collect();
            let bytes = t.data.iter().flat_map(|v| v.to_le_bytes()).collect();
            (name.as_str(), shape, bytes)
        })
        .collect();
    let views = blobs
        .iter()
        .map(|(name, shape, bytes)| {
            TensorView::new(Dtype::F32, shape.clone(), bytes)
                .map(|view| (*name, view))
                .map_err(|e| encode(format!("tensor {name}: {e}")))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let bytes = safetensors::serialize(views, Some(metadata)).map_err(|e| encode(e.to_string()))?;
    write_atomically(path, &bytes)
}

/// Writes to a temporary name, flushes, renames: a reader sees the old file or the new one.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), SaveError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".partial");
    let temporary = PathBuf::from(temporary);
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().map_err(|source| SaveError::Write {
        path: path.to_owned(),
        source,
    })
}
