//! The model's files: mapped, and copied.

use super::{MergeError, MergedDtype};
use crate::model::{SaveError, WeightsError, map_file, weight_files, write_json};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The mapped weight files of a model directory.
pub(super) struct Sources(Vec<(PathBuf, memmap2::Mmap)>);

impl Sources {
    pub(super) fn open(dir: &Path) -> Result<Self, WeightsError> {
        let paths = weight_files(dir)?.into_iter();
        let mapped = paths.map(|path| map_file(&path).map(|map| (path, map)));
        Ok(Self(mapped.collect::<Result<_, _>>()?))
    }

    /// Every tensor by name.
    pub(super) fn tensors(&self) -> Result<BTreeMap<String, TensorView<'_>>, WeightsError> {
        let mut all = BTreeMap::new();
        for (path, map) in &self.0 {
            let file = SafeTensors::deserialize(map).map_err(|e| WeightsError::Format {
                path: path.clone(),
                reason: e.to_string(),
            })?;
            for (name, view) in file.iter() {
                all.insert(name.to_owned(), view);
            }
        }
        Ok(all)
    }
}

pub(super) fn refuse_weights(dir: &Path) -> Result<(), MergeError> {
    for entry in entries(dir)? {
        if entry.extension().is_some_and(|e| e == "safetensors") {
            return Err(MergeError::Occupied { dir: dir.to_owned() });
        }
    }
    Ok(())
}

/// Copies what belongs to the model beside its weights: configuration, tokenizer, chat template, generation settings.
pub(super) fn copy(model: &Path, out: &Path, dtype: MergedDtype) -> Result<(), MergeError> {
    for path in entries(model)? {
        let Some(name) = path.file_name().and_then(|n| n.to_str()) else {
            continue;
        };
        let kind = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        let weights = name.ends_with(".index.json");
        if weights || !["json", "jinja", "txt", "model"].contains(&kind) || !path.is_file() {
            continue;
        }
        let target = out.join(name);
        if name == "config.json" && dtype != MergedDtype::Kept {
            write_json(&target, &with_dtype(&path, dtype)?)?;
            continue;
        }
        std::fs::copy(&path, &target).map_err(|source| MergeError::Copy { path, source })?;
    }
    Ok(())
}

/// `config.json` saying what the values are now, under the key that it has.
fn with_dtype(path: &Path, dtype: MergedDtype) -> Result<Value, MergeError> {
    let name = match dtype {
        MergedDtype::Kept | MergedDtype::F32 => "float32",
        MergedDtype::Bf16 => "bfloat16",
        MergedDtype::F16 => "float16",
    };
    let text = std::fs::read_to_string(path).map_err(|source| MergeError::Copy {
        path: path.to_owned(),
        source,
    })?;
    let mut config: Value = serde_json::from_str(&text).map_err(|e| SaveError::Encode {
        path: path.to_owned(),
        reason: e.to_string(),
    })?;
    let key = match config.get("torch_dtype") {
        Some(_) => "torch_dtype",
        None => "dtype",
    };
    config[key] = json!(name);
    Ok(config)
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>, MergeError> {
    let copy = |source| MergeError::Copy {
        path: dir.to_owned(),
        source,
    };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(copy)? {
        paths.push(entry.map_err(copy)?.path());
    }
    paths.sort();
    Ok(paths)
}
