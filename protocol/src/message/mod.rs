//! What nodes say to each other about a job: signed bodies, the envelope that carries them, and the check at the edge.
//!
//! Bytes become a bounded [`Envelope`], then a [`Verified`] message; the machines accept only that (PROTOCOL section 0).

mod bodies;
mod envelope;
mod kept;
mod wire;

pub use bodies::*;
pub use envelope::{Body, Envelope, Kind, MAX_ENVELOPE, MessageError, Verified, Verifier, VerifyError};
pub use kept::{HeldChunk, Holding, Kept, MAX_KEPT};
pub use wire::{LinkHeader, LinkKind, Phase};
