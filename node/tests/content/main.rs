//! Content between real swarms on loopback.

#![allow(clippy::unwrap_used)]

mod bad_peers;
mod exchange;
mod many_peers;
mod room;
mod support;
mod wicked;
