//! The GYM protocol, pure: no socket, runtime, key or clock. `docs/ARCHITECTURE.md` draws how the parts meet.

pub mod cbor;
pub mod delta;
pub mod ids;
pub mod job;
pub mod message;
pub mod pack;
pub mod quant;
pub mod ring;
pub mod state;
pub mod tensor;
