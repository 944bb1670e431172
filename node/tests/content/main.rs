//! Content between real swarms on loopback.

#![allow(clippy::unwrap_used)]

mod bad_peers;
mod exchange;
mod support;
mod wicked;
