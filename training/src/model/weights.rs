//! Named weights, and reading them from memory-mapped safetensors (TRAINING "Models").

use burn::tensor::{Device, Tensor, TensorData};
use gym_protocol::tensor::{F32Tensor, TensorSet};
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// One weight: a norm's vector or a linear layer's matrix [out, in].
#[derive(Clone, Debug)]
pub enum Weight {
    /// One dimension.
    Vector(Tensor<1>),
    /// Two dimensions, row-major as Hugging Face stores them.
    Matrix(Tensor<2>),
}

impl Weight {
    /// The tensor's extent.
    #[must_use]
    pub fn shape(&self) -> Vec<usize> {
        match self {
            Self::Vector(t) => t.dims().to_vec(),
            Self::Matrix(t) => t.dims().to_vec(),
        }
    }

    /// Copies the values to the host, row-major.
    #[must_use]
    pub fn to_host(&self) -> F32Tensor {
        let data = match self {
            Self::Vector(t) => t.to_data(),
            Self::Matrix(t) => t.to_data(),
        };
        F32Tensor {
            shape: self.shape().iter().map(|n| *n as u64).collect(),
            data: data.iter::<f32>().collect(),
        }
    }

    /// Puts host values on `device`; `None` unless `shape` has one or two dimensions that `data` fills.
    #[must_use]
    pub fn from_host(shape: &[usize], data: Vec<f32>, device: &Device) -> Option<Self> {
        if shape.iter().product::<usize>() != data.len() {
            return None;
        }
        match *shape {
            [n] => Some(Self::Vector(Tensor::from_data(
                TensorData::new(data, [n]),
                device,
            ))),
            [m, n] => Some(Self::Matrix(Tensor::from_data(
                TensorData::new(data, [m, n]),
                device,
            ))),
            _ => None,
        }
    }

    /// Without autodiff: for rollouts, the reference pass and saving.
    #[must_use]
    pub fn inner(self) -> Self {
        match self {
            Self::Vector(t) => Self::Vector(t.inner()),
            Self::Matrix(t) => Self::Matrix(t.inner()),
        }
    }

    /// As a fresh leaf of the autodiff graph that keeps its gradient.
    #[must_use]
    pub fn tracked(self) -> Self {
        match self {
            Self::Vector(t) => Self::Vector(t.inner().autodiff().require_grad()),
            Self::Matrix(t) => Self::Matrix(t.inner().autodiff().require_grad()),
        }
    }
}

/// Weights by Hugging Face name (`model.layers.0.self_attn.q_proj.weight`), in bytewise name order.
#[derive(Clone, Debug, Default)]
pub struct Weights(pub BTreeMap<String, Weight>);

impl Weights {
    /// Applies `f` to every weight.
    #[must_use]
    pub fn map(&self, f: impl Fn(Weight) -> Weight) -> Self {
        Self(self.0.iter().map(|(k, w)| (k.clone(), f(w.clone()))).collect())
    }

    /// Copies all to the host.
    #[must_use]
    pub fn to_host(&self) -> TensorSet {
        TensorSet(self.0.iter().map(|(k, w)| (k.clone(), w.to_host())).collect())
    }

    /// Reads `model.safetensors`, or the shards that `model.safetensors.index.json` lists, as f32.
    ///
    /// # Errors
    /// A missing or broken file, a tensor of a kind that is not read, an index that disagrees with its shards.
    pub fn load(dir: &Path, device: &Device) -> Result<Self, WeightsError> {
        let mut weights = Self::default();
        for file in files(dir)? {
            weights.read_file(&file, device)?;
        }
        Ok(weights)
    }

    fn read_file(&mut self, path: &Path, device: &Device) -> Result<(), WeightsError> {
        let map = map_file(path)?;
        let tensors = SafeTensors::deserialize(&map).map_err(|e| WeightsError::Format {
            path: path.to_owned(),
            reason: e.to_string(),
        })?;
        for (name, view) in tensors.iter() {
            let bad = |reason: String| WeightsError::Tensor {
                path: path.to_owned(),
                name: name.to_owned(),
                reason,
            };
            let data = to_f32(view.dtype(), view.data())
                .ok_or_else(|| bad(format!("is {:?}; F32, F16 and BF16 are read", view.dtype())))?;
            let weight = Weight::from_host(view.shape(), data, device).ok_or_else(|| {
                bad(format!(
                    "has shape {:?}; one or two dimensions are read",
                    view.shape()
                ))
            })?;
            if self.0.insert(name.to_owned(), weight).is_some() {
                return Err(bad("is in two shards".into()));
            }
        }
        Ok(())
    }
}

/// Why weights cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// A file cannot be opened.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The directory holds no weights.
    #[error("{}: neither model.safetensors nor model.safetensors.index.json; fetch the model again", dir.display())]
    Absent {
        /// The directory.
        dir: PathBuf,
    },
    /// A file is not what its name says.
    #[error("{}: {reason}; fetch the file again", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A tensor cannot be used.
    #[error("{}: tensor {name} {reason}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// What is wrong.
        reason: String,
    },
}

/// The safetensors files of a model directory: the index's shards, or the single file.
fn files(dir: &Path) -> Result<Vec<PathBuf>, WeightsError> {
    let index = dir.join("model.safetensors.index.json");
    if index.exists() {
        return shards(dir, &index);
    }
    let single = dir.join("model.safetensors");
    if single.exists() {
        Ok(vec![single])
    } else {
        Err(WeightsError::Absent { dir: dir.to_owned() })
    }
}

fn shards(dir: &Path, index: &Path) -> Result<Vec<PathBuf>, WeightsError> {
    let format = |reason: &str| WeightsError::Format {
        path: index.to_owned(),
        reason: reason.into(),
    };
    let text = std::fs::read_to_string(index).map_err(|source| WeightsError::Read {
        path: index.to_owned(),
        source,
    })?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| format(&e.to_string()))?;
    let map = value
        .get("weight_map")
        .and_then(serde_json::Value::as_object)
        .ok_or_else(|| format("no weight_map object"))?;
    let mut names: Vec<&str> = Vec::new();
    for file in map.values() {
        // The index comes from strangers: a shard lies in the model's own directory or nowhere.
        let name = file
            .as_str()
            .filter(|f| Path::new(f).file_name().is_some_and(|n| n == *f))
            .ok_or_else(|| format("weight_map holds something other than plain file names"))?;
        names.push(name);
    }
    names.sort_unstable();
    names.dedup();
    Ok(names.into_iter().map(|n| dir.join(n)).collect())
}

/// Maps a file for reading.
///
/// # Errors
/// When it cannot be opened or mapped.
#[allow(unsafe_code)]
pub(crate) fn map_file(path: &Path) -> Result<memmap2::Mmap, WeightsError> {
    let read = |source| WeightsError::Read {
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::open(path).map_err(read)?;
    // SAFETY: the map is read-only and every byte pattern is a valid u8; model files are content-addressed and
    // not written in place, so the one hazard, truncation by another program while mapped, ends this process only.
    unsafe { memmap2::Mmap::map(&file) }.map_err(read)
}

/// Little-endian safetensors bytes as f32; `None` for a kind that is not read.
pub(crate) fn to_f32(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f32>> {
    // Only these three kinds occur in the models this reads; the enumeration is open.
    #[allow(clippy::wildcard_enum_match_arm)]
    match dtype {
        Dtype::F32 => Some(
            bytes
                .as_chunks()
                .0
                .iter()
                .map(|b| f32::from_le_bytes(*b))
                .collect(),
        ),
        Dtype::BF16 => Some(
            bytes
                .as_chunks()
                .0
                .iter()
                .map(|b| bf16::from_le_bytes(*b).to_f32())
                .collect(),
        ),
        Dtype::F16 => Some(
            bytes
                .as_chunks()
                .0
                .iter()
                .map(|b| f16::from_le_bytes(*b).to_f32())
                .collect(),
        ),
        _ => None,
    }
}
