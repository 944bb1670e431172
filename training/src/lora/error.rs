//! What does not fit.

/// Why an adapter does not fit a model.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoraError {
    /// A target names no linear layer.
    #[error("target module {target} names no linear layer of the model; it has {known}")]
    Target {
        /// The name given.
        target: String,
        /// Names that would do.
        known: String,
    },
    /// A pattern of ranks or alphas cannot be used.
    #[error("{key} has the pattern {pattern:?}: {reason}")]
    Pattern {
        /// `rank_pattern` or `alpha_pattern`.
        key: &'static str,
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor is not there.
    #[error("the adapter has no tensor {name}")]
    Missing {
        /// Its name.
        name: String,
    },
    /// A tensor belongs to no targeted layer.
    #[error("adapter tensor {name} belongs to no targeted layer of the model")]
    Unused {
        /// Its name.
        name: String,
    },
    /// A tensor has another shape.
    #[error("adapter tensor {name} has shape {got:?} where rank and layer ask for {want:?}")]
    Shape {
        /// Its name.
        name: String,
        /// In the adapter.
        got: Vec<u64>,
        /// By layer and rank.
        want: [usize; 2],
    },
}
