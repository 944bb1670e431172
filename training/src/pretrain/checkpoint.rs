//! What a killed run goes on from: weights, moments, counters.

use super::PretrainError;
use crate::model::{SaveError, WeightsError, map_file, to_f32, write_atomically, write_tensors};
use crate::optim::{AdamW, AdamWConfig, Moments, UpdateError};
use gym_protocol::tensor::{F32Tensor, TensorSet};
use safetensors::SafeTensors;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A run's state between two steps.
#[derive(Clone, Debug)]
pub(super) struct Checkpoint {
    pub(super) weights: TensorSet,
    pub(super) optimizer: AdamW,
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
const FIRST: &str = "optimizer.first_moments";
const SECOND: &str = "optimizer.second_moments";

impl Checkpoint {
    pub(super) fn fresh(fingerprint: String, weights: TensorSet, optimizer: AdamWConfig) -> Self {
        Self {
            optimizer: AdamW::new(optimizer, weights.elements()),
            weights,
            step: 0,
            tokens: 0,
            counters: Counters {
                fingerprint,
                ..Counters::default()
            },
        }
    }

    /// One step of the optimizer; the gradient's norm before clipping.
    pub(super) fn update(&mut self, gradients: &[f32], learning_rate: f64) -> Result<f64, UpdateError> {
        let mut flat = self.weights.flatten();
        let norm = self.optimizer.update(&mut flat, gradients, learning_rate)?;
        for tensor in self.weights.0.values_mut() {
            let rest = flat.split_off(tensor.data.len());
            tensor.data = std::mem::replace(&mut flat, rest);
        }
        Ok(norm)
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
        // The step is in the tensors' file name: state.json, written last, says which file counts.
        write_tensors(&dir.join(format!("{}-{TENSORS}", self.step)), &self.tensors())?;
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

    /// Weights under their names, moments as two flat vectors.
    fn tensors(&self) -> TensorSet {
        let flat = |values: &[f32]| F32Tensor {
            shape: vec![values.len() as u64],
            data: values.to_vec(),
        };
        let moments = self.optimizer.moments();
        let mut all = self.weights.clone();
        all.0.insert(FIRST.into(), flat(&moments.m));
        all.0.insert(SECOND.into(), flat(&moments.v));
        all
    }

    /// The saved state; `None` when there is none.
    pub(super) fn load(
        dir: &Path,
        fingerprint: &str,
        optimizer: AdamWConfig,
    ) -> Result<Option<Self>, PretrainError> {
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
        let mut weights = read(&path)?;
        let mut take = |name| {
            let tensor = weights.0.remove(name);
            tensor
                .map(|t| t.data)
                .ok_or_else(|| other(format!("{} has no {name}", path.display())))
        };
        let moments = Moments {
            m: take(FIRST)?,
            v: take(SECOND)?,
            updates: counters.step,
        };
        let mut optimizer = AdamW::new(optimizer, weights.elements());
        optimizer.set_moments(moments);
        Ok(Some(Self {
            weights,
            optimizer,
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

fn read(path: &Path) -> Result<TensorSet, WeightsError> {
    let format = |reason: String| WeightsError::Format {
        path: path.to_owned(),
        reason,
    };
    let map = map_file(path)?;
    let tensors = SafeTensors::deserialize(&map).map_err(|e| format(e.to_string()))?;
    let mut set = TensorSet::default();
    for (name, view) in tensors.iter() {
        let tensor = F32Tensor {
            shape: view.shape().iter().map(|n| *n as u64).collect(),
            data: to_f32(view.dtype(), view.data()).ok_or_else(|| format(format!("{name} is not f32")))?,
        };
        set.0.insert(name.to_owned(), tensor);
    }
    Ok(set)
}
