//! Joining: the bootstrap addresses, and what became of calling them.

use super::super::{BootstrapInfo, peer_of};
use super::{Driver, TICK};
use libp2p::swarm::DialError;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::{Multiaddr, PeerId};
use std::error::Error;

/// The addresses to join through.
#[derive(Debug)]
pub(super) struct Bootstrap {
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    address: Multiaddr,
    peer: PeerId,
    /// Why the last call failed; nothing until one has, and once one has succeeded.
    failure: Option<String>,
}

impl Bootstrap {
    /// Addresses without a peer at their end, which the configuration's check refuses, and this node's own are left out.
    pub(super) fn new(addresses: Vec<Multiaddr>, local: PeerId) -> Self {
        let entry = |address: Multiaddr| {
            let peer = peer_of(&address).filter(|peer| *peer != local)?;
            Some(Entry {
                address,
                peer,
                failure: None,
            })
        };
        Self {
            entries: addresses.into_iter().filter_map(entry).collect(),
        }
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = &Multiaddr> {
        self.entries.iter().map(|entry| &entry.address)
    }

    /// A peer is connected: what failed before no longer counts, and is told again should it come back.
    pub(super) fn connected(&mut self, peer: &PeerId) {
        for entry in self.entries.iter_mut().filter(|entry| entry.peer == *peer) {
            if entry.failure.take().is_some() {
                tracing::info!(address = %entry.address, "the bootstrap node is reached now");
            }
        }
    }

    /// A call has failed. Each address is told of once for each reason, however often it is tried again.
    fn failed(&mut self, peer: &PeerId, error: &DialError) {
        for entry in self.entries.iter_mut().filter(|entry| entry.peer == *peer) {
            let Some(reason) = reason(&entry.address, error) else {
                continue;
            };
            if entry.failure.as_ref() != Some(&reason) {
                let (address, every) = (&entry.address, TICK.as_secs());
                tracing::warn!(
                    "cannot reach the bootstrap node {address}: {reason}; trying again every {every} s"
                );
                entry.failure = Some(reason);
            }
        }
    }
}

/// Why calling `address` failed; nothing where the error is of another address or says nothing of one.
fn reason(address: &Multiaddr, error: &DialError) -> Option<String> {
    let same = |other: &Multiaddr| bare(other) == bare(address);
    match error {
        DialError::WrongPeerId { obtained, .. } => Some(format!(
            "it is another peer, {obtained}: correct what follows /p2p/ or the address"
        )),
        DialError::LocalPeerId { .. } => {
            Some("it is this node: correct the address, or leave it out".to_owned())
        }
        DialError::Transport(failures) => failures
            .iter()
            .find(|(tried, _)| same(tried))
            .map(|(_, failure)| root_cause(failure)),
        DialError::Denied { cause } => Some(root_cause(cause)),
        DialError::NoAddresses | DialError::Aborted | DialError::DialPeerConditionFalse(_) => None,
    }
}

/// The address without the peer at its end.
fn bare(address: &Multiaddr) -> Multiaddr {
    use libp2p::multiaddr::Protocol;
    address
        .iter()
        .filter(|part| !matches!(part, Protocol::P2p(_)))
        .collect()
}

/// The innermost words of an error: what is around them names transports.
fn root_cause(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

impl Driver {
    /// Connects to those bootstrap addresses whose peer is not connected.
    pub(super) fn join(&mut self) {
        let addresses: Vec<Multiaddr> = self.bootstrap.addresses().cloned().collect();
        for address in addresses {
            let Some(peer) = peer_of(&address) else { continue };
            if self.swarm.is_connected(&peer) || self.is_refused(&peer) {
                continue;
            }
            self.swarm.behaviour_mut().kad.add_address(&peer, address.clone());
            let options = DialOpts::peer_id(peer)
                .condition(PeerCondition::DisconnectedAndNotDialing)
                .addresses(vec![address.clone()])
                .build();
            if let Err(error) = self.swarm.dial(options) {
                tracing::debug!(%address, %error, "cannot dial the bootstrap node yet");
                self.bootstrap.failed(&peer, &error);
            }
        }
    }

    /// A call to a peer has failed, which may be a bootstrap node.
    pub(super) fn on_bootstrap_failed(&mut self, peer: &PeerId, error: &DialError) {
        if !self.swarm.is_connected(peer) {
            self.bootstrap.failed(peer, error);
        }
    }

    pub(super) fn bootstrap_info(&self) -> Vec<BootstrapInfo> {
        let info = |entry: &Entry| BootstrapInfo {
            address: entry.address.clone(),
            connected: self.swarm.is_connected(&entry.peer),
            failure: entry.failure.clone(),
        };
        self.bootstrap.entries.iter().map(info).collect()
    }
}
