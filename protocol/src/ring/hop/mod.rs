//! What a slot does to one segment, in one pass over it: open the sum that came in, add its own part, close it again.
//!
//! The sum's bytes stay in the buffer they came in, whether they grow on the way or not.
//! A slot's Δ is used up on the way: where a part has been added, floats leave room for the mean, integers leave what
//! rounding left over. The plain forms of the same arithmetic are in [`crate::quant`]; tests hold both together.

pub(super) mod bits;
pub(super) mod float;
pub(super) mod int;

#[cfg(test)]
mod tests;

/// A value that no honest sum can hold, by its element in the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadElement(pub(super) usize);
