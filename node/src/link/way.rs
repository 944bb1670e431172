//! Which way a link's frames go: a direct socket where the receiver can be called at its port, else the stream on which
//! the link was set up. After message 2 the receiver sends its offer, or an empty frame; the sender calls, and says in
//! one byte what came of it.

use super::LinkContext;
use crate::net::codec::{read_frame, write_frame};
use crate::net::{DirectSockets, Door, Offer, PeerInfo, ip_of, is_circuit};
use futures::{AsyncRead, AsyncWrite};
use gym_protocol::ids::PeerBytes;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use libp2p::tcp::tokio::TcpStream;
use std::io;
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::timeout;

/// Said when frames follow on the stream, or on the socket.
const STREAM: u8 = 0;
const SOCKET: u8 = 1;
/// A peer's hosts that are called.
const MAX_HOSTS: usize = 2;
/// How long a call may take: so many of the peer's round trips, within these bounds.
const CALL_ROUND_TRIPS: u32 = 6;
const CALL_LEAST: Duration = Duration::from_millis(300);
const CALL_MOST: Duration = Duration::from_secs(3);

impl LinkContext {
    /// The receiver's side: offers a socket; `None` when frames come on the stream.
    pub(super) async fn offer_socket<T>(&self, stream: &mut T) -> io::Result<Option<TcpStream>>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let (door, offer) = self.expect_socket().await.unzip();
        let bytes = offer.map(Offer::to_bytes).unwrap_or_default();
        write_frame(stream, &[&bytes]).await?;
        let chosen = read_frame(stream, 1).await?;
        match door {
            Some(door) if chosen == [SOCKET] => Ok(door.socket().await),
            Some(_) | None => Ok(None),
        }
    }

    async fn expect_socket(&self) -> Option<(Door, Offer)> {
        if self.direct == DirectSockets::Off {
            return None;
        }
        let own = self.net.listeners().await.ok()?;
        // Addresses from outside, where they are known, come last.
        let port = own.iter().rev().find_map(tcp_port)?;
        self.doors.expect(port)
    }

    /// The sender's side: calls where `to` offers a socket; `None` when frames go on the stream.
    pub(super) async fn call_socket<R, W>(
        &self,
        to: &PeerBytes,
        reader: &mut R,
        writer: &mut W,
    ) -> io::Result<Option<TcpStream>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let offer = read_frame(reader, Offer::BYTES).await?;
        let socket = match Offer::from_bytes(&offer) {
            Some(offer) if self.direct == DirectSockets::On => self.call(to, offer).await,
            Some(_) | None => None,
        };
        let way = if socket.is_some() { SOCKET } else { STREAM };
        write_frame(writer, &[&[way]]).await?;
        Ok(socket)
    }

    /// Calls the hosts at which `to` is connected, and no others: an offer cannot send us elsewhere.
    async fn call(&self, to: &PeerBytes, offer: Offer) -> Option<TcpStream> {
        let peer = self.net.peer(to).await.ok()??;
        let deadline = call_deadline(peer.rtt);
        for host in hosts(&peer) {
            match timeout(deadline, offer.call(host)).await {
                Ok(Ok(socket)) => return Some(socket),
                Ok(Err(error)) => tracing::debug!(peer = %to, %host, %error, "no direct socket"),
                Err(_) => tracing::debug!(peer = %to, %host, ?deadline, "a direct socket took too long"),
            }
        }
        None
    }
}

fn call_deadline(rtt: Option<Duration>) -> Duration {
    rtt.map_or(CALL_MOST, |rtt| {
        (rtt * CALL_ROUND_TRIPS).clamp(CALL_LEAST, CALL_MOST)
    })
}

fn hosts(peer: &PeerInfo) -> Vec<IpAddr> {
    let mut hosts = Vec::new();
    for host in peer.addresses.iter().filter_map(host) {
        if !hosts.contains(&host) && hosts.len() < MAX_HOSTS {
            hosts.push(host);
        }
    }
    hosts
}

/// The host of a connection that no relay carries.
fn host(address: &Multiaddr) -> Option<IpAddr> {
    ip_of(address).filter(|_| !is_circuit(address))
}

#[allow(clippy::wildcard_enum_match_arm)] // libp2p knows many kinds of address
fn tcp_port(address: &Multiaddr) -> Option<u16> {
    host(address)?;
    match address.iter().nth(1)? {
        Protocol::Tcp(port) => Some(port),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    #[test]
    fn relays_are_not_called() {
        let relay = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";
        let through = address(&format!("/ip4/1.2.3.4/tcp/1/p2p/{relay}/p2p-circuit"));
        assert_eq!((host(&through), tcp_port(&through)), (None, None));
        assert_eq!(
            host(&address("/ip6/::1/udp/4/quic-v1")),
            Some("::1".parse().unwrap())
        );
        assert_eq!(tcp_port(&address("/ip6/::1/udp/4/quic-v1")), None);
        assert_eq!(tcp_port(&address("/ip4/1.2.3.4/tcp/4011")), Some(4011));
        assert_eq!(tcp_port(&address("/dns4/example.org/tcp/4011")), None);
    }

    #[test]
    fn a_call_waits_by_the_round_trip() {
        let ms = Duration::from_millis;
        assert_eq!(call_deadline(None), CALL_MOST);
        assert_eq!(call_deadline(Some(ms(1))), CALL_LEAST);
        assert_eq!(call_deadline(Some(ms(100))), ms(600));
        assert_eq!(call_deadline(Some(ms(5000))), CALL_MOST);
    }
}
