//! Direct sockets: a sealed link's frames on a TCP connection of their own, past TLS and the multiplexer
//! (docs/decisions/0016-direct-sockets.md). The link is set up on a libp2p stream as ever; there the receiver says
//! at which port, and with which token, it takes the socket. It comes in at the port libp2p listens on: its first byte
//! tells it from a libp2p connection.
//!
//! On the socket: [`MARK`] and the token from the caller, the answer from the listener, then whatever both agreed on.

use libp2p::core::ConnectedPoint;
use libp2p::tcp::tokio::TcpStream;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// A direct socket's first byte; libp2p's negotiation begins with 0x13.
const MARK: u8 = 0x01;
/// Bytes of a token, and of its answer.
const TOKEN: usize = 16;
/// Sockets that are expected at once.
const MAX_EXPECTED: usize = 1024;
/// How long a listener waits for the rest of a token.
const TOKEN_DEADLINE: Duration = Duration::from_secs(10);

/// Whether a link's frames may take a socket of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum DirectSockets {
    /// Where the peer can be called at its port.
    #[default]
    On,
    /// Everything goes over libp2p's connections.
    Off,
}

/// Where and how a socket is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    port: u16,
    token: [u8; TOKEN],
    answer: [u8; TOKEN],
}

/// The sockets that are expected; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Doors(Arc<Mutex<HashMap<[u8; TOKEN], Waiting>>>);

#[derive(Debug)]
struct Waiting {
    answer: [u8; TOKEN],
    socket: oneshot::Sender<TcpStream>,
}

/// One expected socket; not expected any more when this is dropped.
#[derive(Debug)]
pub(crate) struct Door {
    doors: Doors,
    token: [u8; TOKEN],
    socket: oneshot::Receiver<TcpStream>,
}

impl Offer {
    /// Its bytes on a stream: u16 port, token, answer.
    pub(crate) const BYTES: usize = 2 + 2 * TOKEN;

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        [&self.port.to_le_bytes()[..], &self.token, &self.answer].concat()
    }

    /// `None` when the length is another.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (port, rest) = bytes.split_first_chunk()?;
        let (token, rest) = rest.split_first_chunk()?;
        let (answer, rest) = rest.split_first_chunk()?;
        rest.is_empty().then_some(Self {
            port: u16::from_le_bytes(*port),
            token: *token,
            answer: *answer,
        })
    }

    /// Calls the listener; the socket, once it has given the right answer.
    ///
    /// # Errors
    /// When it does not answer, or something else does; whoever calls sets the deadline.
    pub(crate) async fn call(self, host: IpAddr) -> io::Result<TcpStream> {
        let mut socket = tokio::net::TcpStream::connect(SocketAddr::new(host, self.port)).await?;
        socket.set_nodelay(true)?;
        let mut call = vec![MARK];
        call.extend_from_slice(&self.token);
        socket.write_all(&call).await?;
        let mut answer = [0; TOKEN];
        socket.read_exact(&mut answer).await?;
        if answer != self.answer {
            let what = "something else listens there";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(TcpStream(socket))
    }
}

impl Doors {
    /// Expects a socket at `port`; `None` when too many are, or the system has no randomness.
    pub(crate) fn expect(&self, port: u16) -> Option<(Door, Offer)> {
        let (mut token, mut answer) = ([0; TOKEN], [0; TOKEN]);
        getrandom::fill(&mut token).ok()?;
        getrandom::fill(&mut answer).ok()?;
        let (sender, socket) = oneshot::channel();
        let mut expected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if expected.len() >= MAX_EXPECTED {
            return None;
        }
        let waiting = Waiting {
            answer,
            socket: sender,
        };
        expected.insert(token, waiting);
        let doors = self.clone();
        Some((Door { doors, token, socket }, Offer { port, token, answer }))
    }

    /// Lets a libp2p connection pass; takes a direct socket to who expects it.
    ///
    /// # Errors
    /// For a direct socket, taken or not, since libp2p shall have nothing to do with it.
    pub(super) async fn screen(self, stream: TcpStream, end: ConnectedPoint) -> io::Result<TcpStream> {
        if end.is_dialer() {
            return Ok(stream);
        }
        let mut first = [0];
        if stream.0.peek(&mut first).await? == 0 || first != [MARK] {
            return Ok(stream);
        }
        let taken = timeout(TOKEN_DEADLINE, self.take(stream)).await;
        tracing::debug!(?end, ?taken, "a direct socket");
        Err(io::Error::other(
            "not a libp2p connection but a link's direct socket",
        ))
    }

    async fn take(&self, stream: TcpStream) -> io::Result<()> {
        let mut socket = stream.0;
        socket.set_nodelay(true)?;
        let mut call = [0; 1 + TOKEN];
        socket.read_exact(&mut call).await?;
        let token = call.split_last_chunk().map(|(_, token)| *token);
        let waiting = token.and_then(|token| self.forget(&token));
        let waiting = waiting.ok_or_else(|| io::Error::other("nobody expects it"))?;
        socket.write_all(&waiting.answer).await?;
        let gone = |_| io::Error::other("its link has ended");
        waiting.socket.send(TcpStream(socket)).map_err(gone)
    }

    fn forget(&self, token: &[u8; TOKEN]) -> Option<Waiting> {
        let mut expected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        expected.remove(token)
    }
}

impl Door {
    /// The socket; `None` when it will not come.
    pub(crate) async fn socket(mut self) -> Option<TcpStream> {
        (&mut self.socket).await.ok()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.doors.forget(&self.token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libp2p::core::Endpoint;
    use libp2p::core::transport::PortUse;

    /// A socket as a listener gets it, and the port.
    async fn listener() -> (tokio::net::TcpListener, u16) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    fn listening() -> ConnectedPoint {
        ConnectedPoint::Listener {
            local_addr: "/ip4/127.0.0.1/tcp/1".parse().unwrap(),
            send_back_addr: "/ip4/127.0.0.1/tcp/2".parse().unwrap(),
        }
    }

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    async fn screened(doors: &Doors, listener: &tokio::net::TcpListener) -> io::Result<TcpStream> {
        let (socket, _) = listener.accept().await?;
        doors.clone().screen(TcpStream(socket), listening()).await
    }

    #[tokio::test]
    async fn a_socket_finds_who_expects_it() {
        let (doors, (listener, port)) = (Doors::default(), listener().await);
        let (door, offer) = doors.expect(port).unwrap();
        let offer = Offer::from_bytes(&offer.to_bytes()).unwrap();
        let (called, passed) = tokio::join!(offer.call(HERE), screened(&doors, &listener));
        assert!(passed.is_err(), "libp2p does not get it");
        let (mut caller, mut taker) = (called.unwrap().0, door.socket().await.unwrap().0);
        caller.write_all(b"sealed").await.unwrap();
        let mut heard = [0; 6];
        taker.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"sealed");
        assert!(doors.0.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_token_serves_once_and_only_while_it_is_expected() {
        let (doors, (listener, port)) = (Doors::default(), listener().await);
        let (door, offer) = doors.expect(port).unwrap();
        let (first, _) = tokio::join!(offer.call(HERE), screened(&doors, &listener));
        let (again, _) = tokio::join!(offer.call(HERE), screened(&doors, &listener));
        assert!(first.is_ok() && again.is_err());
        drop(door);
        let (door, offer) = doors.expect(port).unwrap();
        drop(door);
        let (late, _) = tokio::join!(offer.call(HERE), screened(&doors, &listener));
        assert!(late.is_err());
        assert!(doors.0.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn another_program_at_the_port_is_told_apart() {
        let (doors, (listener, port)) = (Doors::default(), listener().await);
        let (_door, offer) = doors.expect(port).unwrap();
        let echo = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut heard = [0; 1 + TOKEN];
            socket.read_exact(&mut heard).await.unwrap();
            socket.write_all(&heard).await.unwrap();
        };
        let (called, ()) = tokio::join!(offer.call(HERE), echo);
        assert_eq!(called.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[tokio::test]
    async fn libp2p_passes_with_all_its_bytes() {
        let (doors, (listener, port)) = (Doors::default(), listener().await);
        let mut dialer = tokio::net::TcpStream::connect((HERE, port)).await.unwrap();
        dialer.write_all(b"\x13/multistream/1.0.0\n").await.unwrap();
        let mut passed = screened(&doors, &listener).await.unwrap().0;
        let mut heard = [0; 20];
        passed.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"\x13/multistream/1.0.0\n");
        let dialled = ConnectedPoint::Dialer {
            address: "/ip4/127.0.0.1/tcp/1".parse().unwrap(),
            role_override: Endpoint::Dialer,
            port_use: PortUse::New,
        };
        assert!(doors.screen(TcpStream(dialer), dialled).await.is_ok());
    }

    #[test]
    fn expected_sockets_are_bounded() {
        let doors = Doors::default();
        let held: Vec<_> = (0..MAX_EXPECTED).map(|_| doors.expect(1).unwrap()).collect();
        assert!(doors.expect(1).is_none());
        drop(held);
        assert!(doors.expect(1).is_some());
    }

    #[test]
    fn an_offer_of_another_length_is_none() {
        let (_door, offer) = Doors::default().expect(7).unwrap();
        let bytes = offer.to_bytes();
        assert_eq!(bytes.len(), Offer::BYTES);
        assert!(Offer::from_bytes(&bytes[1..]).is_none());
        assert!(Offer::from_bytes(&[&bytes[..], &[0]].concat()).is_none());
    }
}
