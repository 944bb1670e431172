//! Group Sequence Policy Optimization (Zheng et al. 2025) and its relatives (TRAINING "GSPO").
//!
//! The loss depends on the model through the log-probabilities of the completions' tokens alone, so loss and
//! gradient with respect to them are computed here, in f64 on the host; [`log_probs`] carries the gradient into the
//! model.

mod advantage;
pub(crate) mod log_probs;
mod loss;
mod mask;

pub use advantage::{Advantages, advantages};
pub use loss::{Denominators, Loss, LossConfig, LossMetrics, LossRow, loss};
pub use mask::active;
