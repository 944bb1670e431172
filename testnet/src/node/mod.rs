//! A node as this program sees it: a child process with a home.

mod api;
mod entry;
mod process;
mod program;

pub use api::Api;
pub use entry::{ENTRY, entry};
pub use process::{NodeProcess, NodeSpec};
pub use program::Program;
