//! The delta file (PROTOCOL section 3).

pub mod format;
