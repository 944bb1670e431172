//! Why a set cannot be compared.

use std::path::PathBuf;

/// Why a directory of reference numbers cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceError {
    /// Nothing known in a directory.
    #[error(
        "{} is no set of reference numbers and holds none: known are {}", dir.display(), super::kind::known()
    )]
    NoSet {
        /// The directory.
        dir: PathBuf,
    },
    /// A file or directory cannot be read.
    #[error("{}: {reason}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A tensor is not there or of another type.
    #[error("{}: tensor {name} {reason}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A JSON value is not there or of another type.
    #[error("{what} has no {must} {key:?}")]
    Key {
        /// The object.
        what: String,
        /// The key.
        key: String,
        /// What should be there.
        must: &'static str,
    },
    /// A base model is not there.
    #[error("the base model {name:?} is in none of {folders:?}; say where it is with --models")]
    NoModel {
        /// Its name.
        name: String,
        /// Where it was looked for.
        folders: Vec<PathBuf>,
    },
    /// No base model has the adapter that a set trains.
    #[error(
        "no model in {folders:?} has an adapter of this set's names and shapes; say where it is with --models"
    )]
    NoAdapter {
        /// Where it was looked for.
        folders: Vec<PathBuf>,
    },
    /// The tokenizer is not given.
    #[error("this set needs its tokenizer.json ({source_of}); say where it is with --tokenizer")]
    NoTokenizer {
        /// Where the set says it is from.
        source_of: String,
    },
    /// What this crate makes of the set's files is an error.
    #[error("{0}")]
    Ours(String),
}

impl ReferenceError {
    /// An error of the engine, in its own words.
    pub(super) fn ours(error: impl std::fmt::Display) -> Self {
        Self::Ours(error.to_string())
    }
}
