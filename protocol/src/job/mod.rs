//! Jobs: what is asked for.

pub mod spec;
