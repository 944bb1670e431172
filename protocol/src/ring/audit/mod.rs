//! Who lied about a sum: the ring replayed from the committed deltas, held against the hops' signatures (PROTOCOL
//! section 7.5).
//!
//! A hop's sum follows from what came in and its own committed delta, so every chunk has one right course. The first hop in
//! it that signed something else is at fault, unless what it was given was wrong and signed: then its predecessor said two
//! things, and both signatures show it. An honest hop checks what comes in and keeps the signature, so it is never named.

mod expect;
mod judge;
mod panel;

pub use expect::{Expected, expect};
pub use judge::{Finding, Lie, Verdict, judge};
pub use panel::Panel;

#[cfg(test)]
pub(in crate::ring) mod tests;
