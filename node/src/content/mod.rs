//! Content: an IPFS node inside every node (PROTOCOL section 8).
//!
//! Datasets, models, deltas and checkpoints are UnixFS directories named by CID. [`Content`] is the handle that
//! the rest of the node holds: it adds, fetches, reads, exports and pins. [`open`] also returns the
//! [`bitswap::Behaviour`], which the owner of the swarm composes with its other protocols.
//!
//! ```text
//! Content ──commands (bounded)──▶ bitswap::Behaviour ──▶ swarm
//!    │                                   │
//!    └──────────▶ Store (disk) ◀─────────┘
//! ```
//!
//! The owner of the swarm answers two events of the behaviour: [`bitswap::Event::FindProviders`] with
//! [`bitswap::Behaviour::providers_found`], and [`bitswap::Event::Provide`] by announcing the CID on the DHT.
//! The behaviour dials the providers itself; their addresses come from the other behaviours of the swarm.

pub mod bitswap;
pub mod block;
pub mod car;
pub mod command;
mod disk;
pub mod service;
pub mod store;
pub mod unixfs;
pub(crate) mod wire;

pub use cid::Cid;
pub(crate) use service::SLOWEST_READER;
pub use service::{
    Config, Content, Demand, DemandError, Fetch, FetchError, FetchRequest, FileStream, Pin, Progress, open,
};
pub use store::Store;
pub use unixfs::ContentPath;

/// The content of a store at `root`, without a network, for a test.
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
pub(crate) fn alone(root: std::path::PathBuf) -> Content {
    let config = Config {
        root,
        limit: 1 << 26,
        layout: unixfs::Layout::default(),
        bitswap: bitswap::Config::default(),
    };
    open(config).unwrap().0
}
