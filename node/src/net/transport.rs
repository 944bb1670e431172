//! The swarm: TCP (TLS preferred, Noise for others; yamux) and QUIC, with DNS names.

use super::behaviour::{Behaviour, BuildError, Parts};
use super::direct::Doors;
use super::muxer;
use super::reach::ip_of;
use super::security::{Security, SecurityError};
use crate::content::bitswap;
use futures::io::BufReader;
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::Boxed;
use libp2p::core::upgrade::Version;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId, Swarm, SwarmBuilder, Transport as _, identity::Keypair, tcp};
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

/// How long a connection with nothing to do is kept.
const IDLE: Duration = Duration::from_secs(600);
/// How long setting a connection up may take.
const CONNECT: Duration = Duration::from_secs(20);
/// What one read of a TCP socket may bring.
const READ_BUFFER: usize = 64 * 1024;

/// Why the network does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Somebody else has the port.
    #[error(
        "cannot listen on {address}: the port is in use by another program (or another node). Stop that one, or choose \
         another address with --listen; port 0 takes any free one"
    )]
    PortInUse {
        /// The address.
        address: Multiaddr,
    },
    /// The address cannot be listened on.
    #[error(
        "cannot listen on {address}: {reason}. Give an address of this machine, such as /ip4/0.0.0.0/tcp/4011"
    )]
    Listen {
        /// The address.
        address: Multiaddr,
        /// What the system said.
        reason: String,
    },
    /// The system's resolver configuration cannot be read.
    #[error("cannot read the system's DNS configuration: {0}")]
    Dns(io::Error),
    /// A protocol could not be set up.
    #[error("cannot set up the network's protocols: {0}")]
    Protocols(String),
}

/// Builds the swarm; it does not listen yet.
pub(crate) fn build(
    key: Keypair,
    parts: &Parts<'_>,
    content: bitswap::Behaviour,
    doors: &Doors,
) -> Result<Swarm<Behaviour>, StartError> {
    let tcp = secured_tcp(&key, doors).map_err(|e| StartError::Protocols(e.to_string()))?;
    let swarm = SwarmBuilder::with_existing_identity(key)
        .with_tokio()
        .with_quic_config(|mut config| {
            // A machine that trains may leave the network without a turn for a while.
            config.max_idle_timeout = 12_000;
            config
        })
        .with_other_transport(|_| tcp)
        .map_err(|never| match never {})?
        .with_dns()
        .map_err(StartError::Dns)?
        .with_relay_client(Security::new, muxer::Config::default)
        .map_err(|e| StartError::Protocols(e.to_string()))?
        .with_behaviour(|key, relayed| {
            Behaviour::new(key, parts, content, relayed).map_err(|e: BuildError| e)
        })
        .map_err(|e| StartError::Protocols(e.to_string()))?
        .with_swarm_config(|config| config.with_idle_connection_timeout(IDLE))
        .with_connection_timeout(CONNECT)
        .build();
    Ok(swarm)
}

/// TCP, past the links' direct sockets, that reads from the socket in large pieces: rustls by itself asks for 4 KiB at a time.
fn secured_tcp(key: &Keypair, doors: &Doors) -> Result<Boxed<(PeerId, StreamMuxerBox)>, SecurityError> {
    let doors = doors.clone();
    Ok(tcp::tokio::Transport::new(tcp::Config::default())
        .and_then(move |stream, end| doors.screen(stream, end))
        .map(|stream, _| BufReader::with_capacity(READ_BUFFER, stream))
        .upgrade(Version::V1Lazy)
        .authenticate(Security::new(key)?)
        .multiplex(muxer::Config::default())
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)))
        .boxed())
}

/// Listens on every address.
pub(crate) fn listen(swarm: &mut Swarm<Behaviour>, addresses: &[Multiaddr]) -> Result<(), StartError> {
    for address in addresses {
        check_free(address)?;
        swarm
            .listen_on(address.clone())
            .map_err(|e| listen_error(address, &e.to_string()))?;
    }
    Ok(())
}

/// libp2p shares ports for hole punching, so that a second node would start and take half of the first one's visitors.
fn check_free(address: &Multiaddr) -> Result<(), StartError> {
    let result = match socket(address) {
        Some((Transport::Tcp, socket)) => TcpListener::bind(socket).map(drop),
        Some((Transport::Udp, socket)) => UdpSocket::bind(socket).map(drop),
        None => Ok(()),
    };
    result.map_err(|e| {
        if e.kind() == io::ErrorKind::AddrInUse {
            StartError::PortInUse {
                address: address.clone(),
            }
        } else {
            listen_error(address, &e.to_string())
        }
    })
}

enum Transport {
    Tcp,
    Udp,
}

fn socket(address: &Multiaddr) -> Option<(Transport, SocketAddr)> {
    let ip = ip_of(address)?;
    #[allow(clippy::wildcard_enum_match_arm)]
    match address.iter().nth(1)? {
        Protocol::Tcp(port) => Some((Transport::Tcp, SocketAddr::new(ip, port))),
        Protocol::Udp(port) => Some((Transport::Udp, SocketAddr::new(ip, port))),
        _ => None,
    }
}

fn listen_error(address: &Multiaddr, reason: &str) -> StartError {
    StartError::Listen {
        address: address.clone(),
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let address: Multiaddr = format!("/ip4/127.0.0.1/tcp/{port}").parse().unwrap();
        let message = check_free(&address).unwrap_err().to_string();
        assert!(
            message.contains(&format!("/ip4/127.0.0.1/tcp/{port}: the port is in use")),
            "{message}"
        );
    }

    #[test]
    fn somebody_elses_address_is_refused() {
        let address: Multiaddr = "/ip4/192.0.2.1/udp/0/quic-v1".parse().unwrap();
        assert!(matches!(check_free(&address), Err(StartError::Listen { .. })));
    }
}
