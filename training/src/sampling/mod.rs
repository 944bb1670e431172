//! Drawing tokens: noise that anyone can recompute, and the usual filters (TRAINING "Rollouts").

mod choice;
mod filter;
mod noise;
mod philox;

pub use choice::{Choice, NEAR_TIE};
pub use filter::{Filters, LogSoftmax, greedy};
pub use noise::{GUMBEL_SPAN, Noise, RolloutKey, gumbel};
pub(crate) use philox::units;
pub use philox::{Key, derive_key, philox, unit};
