//! The GYM protocol, pure: no socket, runtime, key or clock. `docs/ARCHITECTURE.md` draws how the parts meet.

pub mod assignment;
pub mod buffers;
pub mod cbor;
pub mod delta;
pub mod genesis;
pub mod ids;
pub mod job;
pub mod member;
pub mod message;
pub mod orchestrator;
pub mod pack;
pub mod quant;
pub mod ring;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod state;
pub mod tensor;
pub mod time;
mod wide;
