//! What travels around a ring, what can be wrong with it, and what it ends in.

use crate::message::Phase;

/// A segment on its way to the next slot, or from the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Phase.
    pub phase: Phase,
    /// Step of the phase.
    pub step: u32,
    /// Chunk of the flat vector.
    pub chunk: u32,
    /// Segment of the chunk.
    pub segment: u32,
    /// Encoded elements.
    pub payload: Vec<u8>,
}

/// What is wrong with a segment; the predecessor's fault, unless the network doubles frames.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// Not what the schedule expects.
    #[error("{phase:?} step {step}: chunk {chunk} segment {segment} is not expected here")]
    Unexpected {
        /// Phase.
        phase: Phase,
        /// Step.
        step: u32,
        /// Chunk.
        chunk: u32,
        /// Segment.
        segment: u32,
    },
    /// What a gather brings before its sum has passed here: nobody can have it yet.
    #[error("{phase:?} step {step}: chunk {chunk} segment {segment} comes before its sum has passed here")]
    Early {
        /// Phase.
        phase: Phase,
        /// Step.
        step: u32,
        /// Chunk.
        chunk: u32,
        /// Segment.
        segment: u32,
    },
    /// Came before.
    #[error("{phase:?} step {step} segment {segment} came twice")]
    Twice {
        /// Phase.
        phase: Phase,
        /// Step.
        step: u32,
        /// Segment.
        segment: u32,
    },
    /// Wrong number of bytes.
    #[error("{phase:?} step {step} segment {segment} has {got} bytes in place of {want}")]
    Length {
        /// Phase.
        phase: Phase,
        /// Step.
        step: u32,
        /// Segment.
        segment: u32,
        /// Bytes received.
        got: usize,
        /// Bytes expected.
        want: usize,
    },
    /// A value that no honest sum can hold.
    #[error("{phase:?} step {step} segment {segment}: element {element} is not finite or out of bounds")]
    Value {
        /// Phase.
        phase: Phase,
        /// Step.
        step: u32,
        /// Segment.
        segment: u32,
        /// Element of the segment.
        element: usize,
    },
    /// The hop behind a chunk is wrongly signed, or says that something else was sent.
    #[error(
        "{phase:?} step {step}: chunk {chunk} is not what its hop signature says, or the signature is wrong"
    )]
    Hop {
        /// Phase.
        phase: Phase,
        /// Step.
        step: u32,
        /// Chunk.
        chunk: u32,
    },
}

/// The mean of all contributions, and what this slot's rounding left over.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduced {
    /// Σ weight·Δ / Σ weight; the same bits at every slot.
    pub mean: Vec<f32>,
    /// (weighted Δ − integer·scale)/weight for q8 and q4; zeros for floats.
    pub residual: Vec<f32>,
}
