//! Reading a model directory's tensors straight from its memory-mapped safetensors (TRAINING "Models").

use super::LoadError;
use super::config::ModelConfig;
use super::layout::TensorSpec;
use super::names::{Place, ignored, places};
use super::precision::Loading;
use super::weights::{Weight, Weights};
use super::{HeadKind, Role};
use crate::quant::{self, BitsAndBytesError, Nf4Tensor};
use burn::tensor::Device;
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The mapped files of a model directory. Nothing but their headers has been read.
#[derive(Debug)]
pub struct Store {
    files: Vec<(PathBuf, memmap2::Mmap)>,
    tensors: BTreeMap<String, Stored>,
}

/// A tensor on disk.
#[derive(Clone, Debug)]
struct Stored {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Range<usize>,
}

/// A model's tensor within one on disk.
#[derive(Debug)]
struct Found {
    /// Name on disk.
    name: String,
    stored: Stored,
    /// The values' bytes in the file.
    bytes: Range<usize>,
}

impl Store {
    /// Maps `model.safetensors`, or the shards that `model.safetensors.index.json` lists, and reads their headers.
    ///
    /// # Errors
    /// A missing or broken file; a tensor that two shards hold.
    pub fn open(dir: &Path) -> Result<Self, WeightsError> {
        let mut store = Self {
            files: Vec::new(),
            tensors: BTreeMap::new(),
        };
        for path in files(dir)? {
            store.add(path)?;
        }
        Ok(store)
    }

    fn add(&mut self, path: PathBuf) -> Result<(), WeightsError> {
        let map = map_file(&path)?;
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|e| WeightsError::Format {
            path: path.clone(),
            reason: e.to_string(),
        })?;
        let start = 8 + header;
        for name in metadata.offset_keys() {
            let Some(info) = metadata.info(&name) else {
                continue;
            };
            let stored = Stored {
                file: self.files.len(),
                dtype: info.dtype,
                shape: info.shape.clone(),
                bytes: start + info.data_offsets.0..start + info.data_offsets.1,
            };
            if self.tensors.insert(name.clone(), stored).is_some() {
                return Err(WeightsError::Tensor {
                    path,
                    name,
                    reason: "is in two shards".into(),
                });
            }
        }
        self.files.push((path, map));
        Ok(())
    }

    /// Every weight that `config` asks for, copied to `device` one after the other, linear layers held as
    /// `loading` says.
    ///
    /// # Errors
    /// A tensor that is missing, of another shape or kind, or used by nothing; a weight to be quantised that is not
    /// finite.
    pub fn weights(
        &self,
        config: &ModelConfig,
        device: &Device,
        loading: Loading,
    ) -> Result<Weights, LoadError> {
        let mut used = BTreeSet::new();
        let mut weights = Weights::default();
        for spec in config.tensors() {
            let found = self.find(config, &spec)?;
            let weight = match self.is_packed(&found.name) {
                true => self.read_packed(&spec, &found, device)?,
                false => self.read(&spec, &found, device, loading)?,
            };
            used.insert(found.name);
            weights.0.insert(spec.name, weight);
        }
        match self.unused(config, &used).next() {
            Some(error) => Err(error),
            None => Ok(weights),
        }
    }

    /// Everything that would keep [`Store::weights`] from loading, found in the headers alone.
    #[must_use]
    pub fn problems(&self, config: &ModelConfig) -> Vec<LoadError> {
        let mut used = BTreeSet::new();
        let mut problems = Vec::new();
        for spec in config.tensors() {
            match self.find(config, &spec) {
                Ok(found) => {
                    used.insert(found.name);
                }
                Err(error) => {
                    // A tensor of another shape is refused once, and is not unused besides.
                    used.extend(
                        places(config.architecture, &spec.name)
                            .into_iter()
                            .map(Place::name),
                    );
                    problems.push(error);
                }
            }
        }
        problems.extend(self.unused(config, &used));
        problems
    }

    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, map)| map.len() as u64).sum()
    }

    /// Kinds of values on disk, each with its number of values.
    #[must_use]
    pub fn kinds(&self) -> BTreeMap<String, u64> {
        let mut kinds = BTreeMap::new();
        for stored in self.tensors.values() {
            let elements: usize = stored.shape.iter().product();
            *kinds.entry(format!("{:?}", stored.dtype)).or_default() += elements as u64;
        }
        kinds
    }

    fn find(&self, config: &ModelConfig, spec: &TensorSpec) -> Result<Found, LoadError> {
        let all = places(config.architecture, &spec.name);
        for place in all {
            let name = place.clone().name();
            let Some(stored) = self.tensors.get(&name) else {
                continue;
            };
            let linear = matches!(spec.role, Role::Linear | Role::Expert);
            if linear && self.is_packed(&name) {
                return Ok(Found {
                    name,
                    stored: stored.clone(),
                    bytes: stored.bytes.clone(),
                });
            }
            if element_size(stored.dtype).is_none() {
                return Err(LoadError::Weights(WeightsError::Tensor {
                    path: self.files[stored.file].0.clone(),
                    name,
                    reason: format!("is {:?}; F32, F16 and BF16 are read", stored.dtype),
                }));
            }
            let bytes = within(&place, spec, stored, config).map_err(|want| LoadError::Shape {
                name: name.clone(),
                got: stored.shape.clone(),
                want,
            })?;
            return Ok(Found {
                name,
                stored: stored.clone(),
                bytes,
            });
        }
        Err(LoadError::Missing {
            name: spec.name.clone(),
        })
    }

    /// Whether a tensor on disk is a weight in bitsandbytes' NF4.
    fn is_packed(&self, name: &str) -> bool {
        self.tensors.contains_key(&quant::state_name(name))
    }

    fn read_packed(&self, spec: &TensorSpec, found: &Found, device: &Device) -> Result<Weight, LoadError> {
        let part = |name: &str| {
            let stored = self.tensors.get(name)?;
            let bytes = self.files[stored.file].1.get(stored.bytes.clone())?;
            Some((stored.dtype, bytes))
        };
        let matrix = quant::read(part, &found.name).map_err(|e| {
            LoadError::Weights(WeightsError::Packed {
                path: self.files[found.stored.file].0.clone(),
                source: e,
            })
        })?;
        if matrix.shape().as_slice() != spec.shape {
            return Err(LoadError::Shape {
                name: found.name.clone(),
                got: matrix.shape().to_vec(),
                want: spec.shape.clone(),
            });
        }
        Ok(Weight::Nf4(Nf4Tensor::new(matrix, device)))
    }

    fn read(
        &self,
        spec: &TensorSpec,
        found: &Found,
        device: &Device,
        loading: Loading,
    ) -> Result<Weight, LoadError> {
        let (path, map) = &self.files[found.stored.file];
        let bad = |reason: &str| {
            LoadError::Weights(WeightsError::Tensor {
                path: path.clone(),
                name: found.name.clone(),
                reason: reason.into(),
            })
        };
        let bytes = map
            .get(found.bytes.clone())
            .ok_or_else(|| bad("ends after its file"))?;
        let data = to_f32(found.stored.dtype, bytes).ok_or_else(|| bad("is of a kind that is not read"))?;
        Weight::held(spec, data, device, loading)?.ok_or_else(|| bad("is not as long as its shape says"))
    }

    fn unused<'a>(
        &'a self,
        config: &'a ModelConfig,
        used: &'a BTreeSet<String>,
    ) -> impl Iterator<Item = LoadError> + 'a {
        let tied = config.head == HeadKind::Tied;
        let left = self.tensors.keys().filter(move |name| {
            let of_packed = quant::weight_of_part(name).is_some_and(|weight| used.contains(weight));
            let passed_over = ignored(name) || (tied && *name == "lm_head.weight");
            !(passed_over || of_packed || used.contains(*name))
        });
        left.map(|name| LoadError::Unused {
            name: name.clone(),
            architecture: config.architecture.name(),
        })
    }
}

/// Where a tensor's bytes lie within `stored`, or the shape that `stored` should have had.
fn within(
    place: &Place,
    spec: &TensorSpec,
    stored: &Stored,
    config: &ModelConfig,
) -> Result<Range<usize>, Vec<usize>> {
    let size = element_size(stored.dtype).unwrap_or(1);
    let wanted = spec.elements() * size;
    match place {
        Place::Whole(_) => {
            let shape = on_disk(spec);
            let extra_rows = spec.role == Role::Embedding || spec.role == Role::Head;
            let fits = stored.shape == shape
                // An embedding padded beyond the vocabulary: its last rows belong to no token.
                || (extra_rows && stored.shape.len() == 2 && stored.shape[1] == shape[1]
                    && stored.shape[0] > shape[0]);
            match fits {
                true => Ok(stored.bytes.start..stored.bytes.start + wanted),
                false => Err(shape),
            }
        }
        Place::Fused {
            expert, part, parts, ..
        } => {
            let experts = config.experts().map_or(0, |e| e.count);
            let shape = vec![experts, parts * spec.shape[0], spec.shape[1]];
            if stored.shape != shape {
                return Err(shape);
            }
            let start = stored.bytes.start + (expert * parts + part) * wanted;
            Ok(start..start + wanted)
        }
    }
}

/// The extent that a tensor has on disk: a convolution there has one input channel a feature.
pub(super) fn on_disk(spec: &TensorSpec) -> Vec<usize> {
    match (spec.role, spec.shape.as_slice()) {
        (Role::Convolution, [features, taps]) => vec![*features, 1, *taps],
        (_, shape) => shape.to_vec(),
    }
}

fn element_size(dtype: Dtype) -> Option<usize> {
    // The enumeration is open.
    #[allow(clippy::wildcard_enum_match_arm)]
    match dtype {
        Dtype::F32 => Some(4),
        Dtype::F16 | Dtype::BF16 => Some(2),
        _ => None,
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
    /// A weight in bitsandbytes' NF4 cannot be used.
    #[error("{}: {source}", path.display())]
    Packed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: BitsAndBytesError,
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
pub(crate) fn files(dir: &Path) -> Result<Vec<PathBuf>, WeightsError> {
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
