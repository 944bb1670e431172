//! What a killed run goes on from: weights, moments, counters.

use super::PretrainError;
use crate::model::{SaveError, map_file, to_f32, write_atomically, write_tensors};
use gym_protocol::tensor::{F32Tensor, TensorSet};
use safetensors::SafeTensors;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// A run's state between two steps.
#[derive(Clone, Debug)]
pub(super) struct Checkpoint {
    pub(super) weights: TensorSet,
    /// Means of the gradients.
    pub(super) first: TensorSet,
    /// Means of their squares.
    pub(super) second: TensorSet,
    pub(super) step: u64,
    pub(super) tokens: u64,
    counters: Counters,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Counters {
    fingerprint: String,
    step: u64,
    tokens: u64,
    loss_sum: f64,
    loss_steps: u64,
}

const TENSORS: &str = "state.safetensors";
const COUNTERS: &str = "state.json";

impl Checkpoint {
    pub(super) fn fresh(fingerprint: String, weights: TensorSet) -> Self {
        Self {
            first: zeros_like(&weights),
            second: zeros_like(&weights),
            weights,
            step: 0,
            tokens: 0,
            counters: Counters {
                fingerprint,
                ..Counters::default()
            },
        }
    }

    /// Counts a step; the last hundredth of the run's losses are averaged.
    pub(super) fn count(&mut self, tokens: u64, loss: f64, steps: u64) {
        self.step += 1;
        self.tokens += tokens;
        if self.step + steps.div_ceil(100) > steps {
            self.counters.loss_sum += loss;
            self.counters.loss_steps += 1;
        }
    }

    pub(super) fn final_loss(&self) -> f64 {
        self.counters.loss_sum / self.counters.loss_steps as f64
    }

    /// One file holds everything and is renamed into place, so that a crash leaves the old state or the new one.
    pub(super) fn save(&self, dir: &Path) -> Result<(), SaveError> {
        std::fs::create_dir_all(dir).map_err(|source| SaveError::Write {
            path: dir.to_owned(),
            source,
        })?;
        let parts = [
            ("weights", &self.weights),
            ("first", &self.first),
            ("second", &self.second),
        ];
        let named = parts.iter().flat_map(|(part, set)| {
            set.0
                .iter()
                .map(move |(name, tensor)| (format!("{part}:{name}"), tensor.clone()))
        });
        // The step is in the tensors' file name: state.json, written last, says which file counts.
        let tensors = dir.join(format!("{}-{TENSORS}", self.step));
        write_tensors(&tensors, &TensorSet(named.collect()))?;
        let counters = Counters {
            step: self.step,
            tokens: self.tokens,
            ..self.counters.clone()
        };
        let text = serde_json::to_string(&counters).map_err(|e| SaveError::Encode {
            path: dir.join(COUNTERS),
            reason: e.to_string(),
        })?;
        write_atomically(&dir.join(COUNTERS), text.as_bytes())?;
        remove_older(dir, self.step);
        Ok(())
    }

    /// The saved state; `None` when there is none.
    pub(super) fn load(dir: &Path, fingerprint: &str) -> Result<Option<Self>, PretrainError> {
        let Ok(text) = std::fs::read_to_string(dir.join(COUNTERS)) else {
            return Ok(None);
        };
        let other = |reason: String| PretrainError::OtherRun {
            dir: dir.to_owned(),
            reason,
        };
        let counters: Counters =
            serde_json::from_str(&text).map_err(|e| other(format!("{COUNTERS}: {e}")))?;
        if counters.fingerprint != fingerprint {
            return Err(other(
                "the checkpoint is of a run with another configuration or seed".into(),
            ));
        }
        let path = dir.join(format!("{}-{TENSORS}", counters.step));
        let mut parts = read(&path)?;
        let mut take = |part| {
            parts
                .remove(part)
                .ok_or_else(|| other(format!("{} has no {part}", path.display())))
        };
        Ok(Some(Self {
            weights: take("weights")?,
            first: take("first")?,
            second: take("second")?,
            step: counters.step,
            tokens: counters.tokens,
            counters,
        }))
    }

    pub(super) fn remove(dir: &Path) -> Result<(), SaveError> {
        match std::fs::remove_dir_all(dir) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(SaveError::Write {
                path: dir.to_owned(),
                source,
            }),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Files of earlier steps; one that cannot be removed only takes up space.
fn remove_older(dir: &Path, step: u64) {
    let current = format!("{step}-{TENSORS}");
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_string_lossy().ends_with(TENSORS) && name != *current {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Tensor sets by the prefix of their names.
fn read(path: &Path) -> Result<BTreeMap<String, TensorSet>, PretrainError> {
    let format = |reason: String| crate::model::WeightsError::Format {
        path: path.to_owned(),
        reason,
    };
    let map = map_file(path)?;
    let tensors = SafeTensors::deserialize(&map).map_err(|e| format(e.to_string()))?;
    let mut parts: BTreeMap<String, TensorSet> = BTreeMap::new();
    for (name, view) in tensors.iter() {
        let (part, name) = name
            .split_once(':')
            .ok_or_else(|| format(format!("odd name {name}")))?;
        let tensor = F32Tensor {
            shape: view.shape().iter().map(|n| *n as u64).collect(),
            data: to_f32(view.dtype(), view.data()).ok_or_else(|| format(format!("{name} is not f32")))?,
        };
        parts
            .entry(part.to_owned())
            .or_default()
            .0
            .insert(name.to_owned(), tensor);
    }
    Ok(parts)
}

/// Zeros of the same names and shapes.
pub(super) fn zeros_like(set: &TensorSet) -> TensorSet {
    let zeros = set.0.iter().map(|(name, tensor)| {
        let zero = F32Tensor {
            shape: tensor.shape.clone(),
            data: vec![0.0; tensor.data.len()],
        };
        (name.clone(), zero)
    });
    TensorSet(zeros.collect())
}
