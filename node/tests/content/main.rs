//! Content between real swarms on loopback.

#![allow(clippy::unwrap_used)]

mod bad_peers;
mod exchange;
mod many_peers;
mod support;
mod wicked;
