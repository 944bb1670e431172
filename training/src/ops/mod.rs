//! The decoder's operations: few, wide passes over memory. Every tensor is [tokens, features], tokens packed without
//! padding.

mod attention;
mod decode;
mod graph;
mod host;
mod linear;
mod norm;
mod place;
mod swiglu;
#[cfg(test)]
mod testing;

pub(crate) use attention::{AttentionShape, attention};
pub(crate) use decode::{CachedRows, attend_cached};
pub(crate) use linear::{Adapter, Frozen, linear};
pub(crate) use norm::rms_norm;
pub(crate) use place::{HeadNorm, Rotation, place};
pub(crate) use swiglu::swiglu;
