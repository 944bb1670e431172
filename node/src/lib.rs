//! The GYM node: the program `hanzod` as a library. `docs/ARCHITECTURE.md` draws how the parts meet.

mod announce;
pub mod api;
mod cli;
pub mod config;
pub mod connected;
pub mod content;
pub mod counter;
pub mod explain;
pub mod files;
pub mod home;
pub mod hub;
pub mod identity;
pub mod job;
pub mod link;
pub mod logging;
pub mod metrics;
pub mod net;
pub mod publish;
pub mod role;
pub mod runtime;
mod signatures;

pub use cli::main_from;
