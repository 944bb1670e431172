//! Ring all-reduce of one slot, pure: segments in, segments out (PROTOCOL section 6).
//!
//! A slot's machine knows neither who serves the other slots nor how its segments travel. Whoever drives it delivers each
//! predecessor's segment to [`Ring::receive`] and carries away what lands in the outbox.

mod audit;
mod chain;
mod contribution;
mod flat;
mod grid;
mod hop;
mod kept;
mod layout;
mod machine;
mod order;
mod replay;
mod schedule;
mod segment;

pub use audit::{Expected, Finding, Lie, Panel, Verdict, expect, judge};
pub use chain::{
    Chained, HOP_BYTES, HOP_DOMAIN, Hop, HopKeys, Origin, PLACED_BYTES, Place, Scope, ScopeError, Seat,
    placed_from_bytes, placed_to_bytes,
};
pub use contribution::Contribution;
pub use flat::{Config, Ring};
pub use grid::GridRing;
pub use kept::{Carried, Finished, KeptChunks};
pub use layout::{Axis, Grid, Layout};
pub use machine::{Machine, Plan};
pub use order::{Costs, order};
pub use replay::{Part, replay, replay_by_origin, replay_in};
pub use schedule::Schedule;
pub use segment::{Reduced, RingError, Segment};

#[cfg(test)]
mod tests;
