//! What became of the addresses to join through, for people.

use libp2p::Multiaddr;
use serde_json::{Value, json};

/// One address to join through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootstrapInfo {
    /// As it was given, with its peer.
    pub address: Multiaddr,
    /// Whether its peer is connected now.
    pub connected: bool,
    /// Why it could not be reached when it was called last, if so.
    pub failure: Option<String>,
}

impl BootstrapInfo {
    /// As the API tells it: `address`, `connected`, `failure`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({ "address": self.address, "connected": self.connected, "failure": self.failure })
    }
}
