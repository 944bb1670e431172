//! Settings of the network.

use super::{DirectSockets, Reachability};
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use serde::{Deserialize, Serialize};

/// Whether peers on the local network are looked for by multicast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Mdns {
    /// Look for peers on the LAN.
    #[default]
    On,
    /// Do not.
    Off,
}

/// The `[network]` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where to listen: TCP (`/ip4/…/tcp/…`) and QUIC (`/ip4/…/udp/…/quic-v1`) addresses; port 0 is any free one.
    pub listen: Vec<Multiaddr>,
    /// Through whom to join; `/p2p/…` at the end. The genesis file's list is added.
    pub bootstrap: Vec<Multiaddr>,
    /// Addresses under which others reach this node, when it cannot see them itself (port forwarding).
    pub external: Vec<Multiaddr>,
    /// Whether others can reach this node, if that is not to be found out.
    pub reachability: Reachability,
    /// Peers on the LAN.
    pub mdns: Mdns,
    /// Sealed links on sockets of their own, at the TCP port that is listened on anyway.
    pub direct_sockets: DirectSockets,
    /// Connections held at once, both directions together.
    pub max_connections: u32,
    /// Connections held at once with one peer.
    pub max_connections_per_peer: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: default_listen(),
            bootstrap: Vec::new(),
            external: Vec::new(),
            reachability: Reachability::Auto,
            mdns: Mdns::On,
            direct_sockets: DirectSockets::On,
            max_connections: 512,
            max_connections_per_peer: 4,
        }
    }
}

fn default_listen() -> Vec<Multiaddr> {
    let any = Multiaddr::empty().with(Protocol::Ip4(std::net::Ipv4Addr::UNSPECIFIED));
    vec![
        any.clone().with(Protocol::Tcp(4011)),
        any.with(Protocol::Udp(4011)).with(Protocol::QuicV1),
    ]
}

/// A setting out of its range.
#[derive(Debug, thiserror::Error)]
#[error("network.{key} {problem}")]
pub struct ConfigError {
    key: &'static str,
    problem: String,
}

impl Config {
    /// Checks what types cannot.
    ///
    /// # Errors
    /// The key and what it must be.
    pub fn check(&self) -> Result<(), ConfigError> {
        let fail = |key, problem| Err(ConfigError { key, problem });
        if self.listen.is_empty() {
            return fail(
                "listen",
                "is empty: give at least one address, such as /ip4/0.0.0.0/tcp/4011".to_owned(),
            );
        }
        for address in &self.bootstrap {
            if peer_of(address).is_none() {
                return fail(
                    "bootstrap",
                    format!("has {address}, which does not end in /p2p/PEER"),
                );
            }
        }
        if self.max_connections < 8 {
            return fail(
                "max_connections",
                format!("is {}; it must be at least 8", self.max_connections),
            );
        }
        if self.max_connections_per_peer == 0 {
            return fail(
                "max_connections_per_peer",
                "is 0; it must be at least 1".to_owned(),
            );
        }
        Ok(())
    }
}

/// The peer an address ends in (`/p2p/…`).
#[must_use]
pub fn peer_of(address: &Multiaddr) -> Option<libp2p::PeerId> {
    match address.iter().last() {
        Some(Protocol::P2p(peer)) => Some(peer),
        Some(_) | None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bootstrap_address_names_its_peer() {
        let config = Config {
            bootstrap: vec!["/ip4/1.2.3.4/tcp/1".parse().unwrap()],
            ..Config::default()
        };
        let message = config.check().unwrap_err().to_string();
        assert!(
            message.contains("/ip4/1.2.3.4/tcp/1, which does not end in /p2p/PEER"),
            "{message}"
        );
    }

    #[test]
    fn defaults_pass() {
        Config::default().check().unwrap();
    }
}
