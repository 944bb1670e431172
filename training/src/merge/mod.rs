//! Merging an adapter into its base: W + alpha/r·B·A, written as a plain Hugging Face directory (TRAINING "LoRA").

mod error;
mod files;
mod plan;
mod tensor;

pub use error::MergeError;

use crate::adapter::Adapter;
use crate::lora::Lora;
use crate::model::{ModelConfig, SaveError};
use burn::tensor::Device;
use files::Sources;
use plan::Plan;
use std::path::Path;

/// How the merged model is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeOptions {
    /// Kind of its values.
    pub dtype: MergedDtype,
    /// A file holds at most this many bytes of tensors, a tensor larger than that aside.
    pub shard_bytes: u64,
}

impl Default for MergeOptions {
    fn default() -> Self {
        Self {
            dtype: MergedDtype::Kept,
            shard_bytes: 5_000_000_000,
        }
    }
}

/// Kind of the merged model's values. Sums are taken in f32 and rounded once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergedDtype {
    /// Each tensor's own.
    Kept,
    /// 32 bits.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeReport {
    /// Tensors of the model.
    pub tensors: usize,
    /// Linear layers that the adapter changed.
    pub layers: usize,
    /// Files of weights.
    pub shards: usize,
    /// Bytes of all tensors.
    pub bytes: u64,
}

/// Writes `model` with `adapter` merged into it to `out`, which is made if it is not there: weights with their index,
/// configuration, tokenizer and generation files. One tensor at a time is held in memory.
///
/// # Errors
/// A model or adapter that does not load or fit; a base that is quantised; an `out` that holds weights already; a full
/// disk.
pub fn merge(
    model: &Path,
    adapter: &Adapter,
    out: &Path,
    options: &MergeOptions,
) -> Result<MergeReport, MergeError> {
    let config = ModelConfig::load(model)?;
    let lora = Lora::for_config(&config, adapter, &Device::flex())?;
    let sources = Sources::open(model)?;
    let plan = Plan::new(&config, &lora, &sources, options)?;
    std::fs::create_dir_all(out).map_err(|source| SaveError::Write {
        path: out.to_owned(),
        source,
    })?;
    files::refuse_weights(out)?;
    plan.write(out)?;
    files::copy(model, out, options.dtype)?;
    Ok(plan.report(lora.pairs().len()))
}
