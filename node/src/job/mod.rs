//! Jobs on this node: drives the protocol's machines with the network, the content store and the trainer thread.
//!
//! One task ([`service`]) owns every job's machines: it translates what arrives into events, calls `handle`, and carries
//! out the actions. Slow work (fetching, encoding, training) runs beside it and comes back as a [`done::Done`].
//!
//! ```text
//! NetEvent ──▶ inbound ─▶ machines (gym-protocol) ─▶ member / orchestrate / validate ──▶ net, links, content, trainer
//! API call ──▶ handle  ─▶        ▲                                                         │
//!                                └────────────────────────── Done ◀───────────────────────┘
//! ```

mod active;
mod audit;
mod commit;
mod done;
mod edge;
mod events;
mod faults;
mod fetch;
mod form;
mod handle;
mod holds;
mod hops;
mod inbound;
mod keep;
mod log;
mod member;
mod orchestrate;
mod outcome;
mod places;
mod providers;
mod publish;
mod replica;
mod service;
mod state;
mod submit;
mod sync;
#[cfg(test)]
mod tests;
mod trainer;
mod turns;
mod validate;
mod watch;

pub use faults::{Fault, FaultError};
pub use handle::JobsHandle;
pub use hops::NodeHopKeys;
pub(crate) use service::start;

/// Milliseconds since the Unix epoch: the machines' time, so that a restarted node's is later than its earlier one's.
pub(crate) fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}
