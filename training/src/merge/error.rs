//! What can go wrong.

use crate::lora::LoraError;
use crate::model::{ConfigError, SaveError, WeightsError};
use safetensors::Dtype;
use std::path::PathBuf;

/// Why a merged model cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// The model's `config.json`.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model's weights.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The adapter is not of this model.
    #[error(transparent)]
    Adapter(#[from] LoraError),
    /// A file cannot be written.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// A file cannot be copied.
    #[error("{}: {source}", path.display())]
    Copy {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// An adapted layer's weight is nowhere in the files.
    #[error("the model has no tensor {name}, which the adapter changes; fetch the model again")]
    Missing {
        /// Its name.
        name: String,
    },
    /// A tensor has another shape than the configuration says.
    #[error("tensor {name} has shape {got:?} where config.json asks for {want:?}")]
    Shape {
        /// Its name.
        name: String,
        /// In the file.
        got: Vec<usize>,
        /// By the configuration.
        want: Vec<usize>,
    },
    /// An adapted weight is of a kind that nothing can be added to.
    #[error(
        "tensor {name} is {dtype:?}; an adapter is merged into F32, F16 or BF16: take the model before it was quantised"
    )]
    Kind {
        /// Its name.
        name: String,
        /// Its kind.
        dtype: Dtype,
    },
    /// The directory is another model's.
    #[error("{} holds weights already; name an empty directory", dir.display())]
    Occupied {
        /// The directory.
        dir: PathBuf,
    },
}
