//! The decoder's operations: few, wide passes over memory. Every tensor is [tokens, features], tokens packed without
//! padding.

mod attention;
mod decode;
mod host;
mod linear;
mod norm;
mod rotate;
mod swiglu;
#[cfg(test)]
mod testing;

pub(crate) use attention::{AttentionShape, attention};
pub(crate) use decode::{CachedRows, attend_cached};
pub(crate) use linear::{Adapter, Frozen, linear};
pub(crate) use norm::rms_norm;
pub(crate) use rotate::{Rotation, rotate};
pub(crate) use swiglu::swiglu;
