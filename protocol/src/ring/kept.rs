//! Chunks whose means an earlier view of the round has finished (PROTOCOL section 6, "Failure"): they are not summed again.
//!
//! Such a chunk goes from slots that hold it to those that do not: a slot sends it on if the next one lacks it, at the step
//! of all-gather that the schedule has for the two. With it goes the word of the owner that finished it, so that nobody
//! need be believed.

use super::Hop;
use std::collections::{BTreeMap, BTreeSet};

/// The chunks that a manifest keeps, and the slots whose servers hold them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptChunks(pub BTreeMap<u32, BTreeSet<u32>>);

impl KeptChunks {
    /// Whether the chunk is not summed again.
    #[must_use]
    pub fn contains(&self, chunk: u32) -> bool {
        self.0.contains_key(&chunk)
    }

    /// Whether a kept chunk is to come to a slot.
    #[must_use]
    pub fn is_lacking(&self, chunk: u32, slot: u32) -> bool {
        self.0.get(&chunk).is_some_and(|holders| !holders.contains(&slot))
    }
}

/// A finished mean, as a member holds it from one view to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The word of the slot that finished it.
    pub hop: Hop,
    /// Its segments, as they travel in all-gather.
    pub segments: Vec<Vec<u8>>,
}

/// What a slot brings from earlier views.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Carried {
    /// Means, by chunk.
    pub means: BTreeMap<u32, Finished>,
    /// What rounding left over of this slot's own part, by chunk (integers only).
    pub left: BTreeMap<u32, Vec<f32>>,
}
