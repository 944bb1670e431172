//! The receiving side: accepts streams, answers handshakes, opens frames, holds each to its link.

use super::frame::{self, Frame, FrameError, Reader};
use super::held_up::HeldUp;
use super::places::{Place, Places};
use super::watch::CpuWatch;
use super::{IDLE, LINK, LinkContext, LinkOffence, MAX_WORDS, OPEN_DEADLINE};
use crate::net::codec::{read_frame, write_frame};
use crate::net::{NetEvent, peer_bytes};
use futures::io::BufReader;
use futures::{AsyncRead, AsyncReadExt, AsyncWriteExt, StreamExt};
use gym_crypto::link::{HandshakeError, INIT_BYTES, OpenError, Opener, PendingReceiver, respond};
use gym_protocol::ids::PeerBytes;
use gym_protocol::message::LinkHeader;
use libp2p::tcp::tokio::TcpStream;
use libp2p::{PeerId, Stream};
use libp2p_stream::{AlreadyRegistered, IncomingStreams};
use std::io;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// What is read of a direct socket at once where a frame's head is expected; payloads go past it.
const SOCKET_BUFFER: usize = 2048;
/// How long frames are still taken from a direct socket when the stream beside it has ended.
const LAST_FRAMES: Duration = Duration::from_secs(5);
/// How long telling the reason for closing a link may take.
const WORDS_DEADLINE: Duration = Duration::from_secs(2);
/// How long after a cut-off frame the peer must still be connected for it to be an offence.
const CUT_OFF_GRACE: Duration = Duration::from_millis(500);

/// Accepts links.
pub struct Acceptor {
    context: LinkContext,
    streams: IncomingStreams,
    links: JoinSet<Place>,
    places: Places,
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acceptor")
            .field("links", &self.links.len())
            .finish_non_exhaustive()
    }
}

/// How a link ended.
enum End {
    /// Closed, lost or idle.
    Quiet,
    Offence(LinkOffence),
}

impl Acceptor {
    /// Registers the protocol.
    ///
    /// # Errors
    /// When another acceptor has it.
    pub fn new(mut context: LinkContext) -> Result<Self, AlreadyRegistered> {
        let streams = context.streams.accept(LINK)?;
        Ok(Self {
            places: Places::new(context.members.clone()),
            context,
            streams,
            links: JoinSet::new(),
        })
    }

    /// Runs until the node stops.
    pub async fn run(mut self) {
        let stop = self.context.stop.clone();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some((peer, stream)) = self.streams.next() => self.accept(peer, stream),
                Some(ended) = self.links.join_next() => {
                    if let Ok(place) = ended {
                        self.places.give_back(&place);
                    }
                }
            }
        }
        self.links.shutdown().await;
    }

    fn accept(&mut self, peer: PeerId, stream: Stream) {
        let from = peer_bytes(&peer);
        let Some(place) = self.places.take(&from) else {
            self.context
                .metrics
                .add("gym_net_dropped_total", &[("kind", "link")], 1);
            return;
        };
        let incoming = Incoming {
            context: self.context.clone(),
            from,
            peer,
        };
        self.links.spawn(async move {
            incoming.run(stream).await;
            place
        });
    }
}

struct Incoming {
    context: LinkContext,
    from: PeerBytes,
    peer: PeerId,
}

impl Incoming {
    async fn run(self, mut stream: Stream) {
        match self.receive(&mut stream).await {
            End::Quiet => tracing::debug!(peer = %self.peer, "a sealed link from it ended"),
            End::Offence(what) => self.offended(what, &mut stream).await,
        }
        let _ = timeout(WORDS_DEADLINE, stream.close()).await;
    }

    /// Says it on both sides, counts it, tells the node.
    async fn offended(&self, what: LinkOffence, stream: &mut Stream) {
        tracing::warn!(peer = %self.peer, "closed a peer's sealed link: {what}");
        self.context.metrics.offence(what.name());
        let words = format!("closed by {}: {}", self.context.identity.peer(), what.to_sender());
        let cut = words.floor_char_boundary(MAX_WORDS);
        let _ = timeout(WORDS_DEADLINE, write_frame(stream, &[&words.as_bytes()[..cut]])).await;
        let event = NetEvent::LinkOffence {
            from: self.from.clone(),
            what,
        };
        let _ = timeout(OPEN_DEADLINE, self.context.events.send(event)).await;
    }

    async fn receive(&self, stream: &mut Stream) -> End {
        let pending = match timeout(OPEN_DEADLINE, self.handshake(stream)).await {
            Ok(Ok(pending)) => pending,
            Ok(Err(end)) => return end,
            Err(_) => return End::Quiet,
        };
        let direct = match timeout(OPEN_DEADLINE, self.context.offer_socket(stream)).await {
            Ok(Ok(direct)) => direct,
            Ok(Err(error)) => return quiet_or_oversized(&error),
            Err(_) => return End::Quiet,
        };
        let result = match direct {
            Some(socket) => self.frames_of_socket(pending, socket, stream).await,
            None => self.frames(pending, stream).await,
        };
        match result {
            Ok(()) => End::Quiet,
            Err(end) => end,
        }
    }

    /// What comes on a direct socket, until it ends, or the stream beside it has ended for a while.
    async fn frames_of_socket(
        &self,
        pending: PendingReceiver,
        socket: TcpStream,
        stream: &mut Stream,
    ) -> Result<(), End> {
        let mut socket = BufReader::with_capacity(SOCKET_BUFFER, socket);
        let frames = self.frames(pending, &mut socket);
        tokio::pin!(frames);
        let mut unused = [0];
        tokio::select! {
            ended = &mut frames => ended,
            _ = stream.read(&mut unused) => timeout(LAST_FRAMES, frames).await.unwrap_or(Ok(())),
        }
    }

    async fn handshake(&self, stream: &mut Stream) -> Result<PendingReceiver, End> {
        let first = read_frame(stream, INIT_BYTES)
            .await
            .map_err(|e| quiet_or_oversized(&e))?;
        let peer = self
            .context
            .net
            .record(&self.from)
            .await
            .map_err(|_| End::Quiet)?;
        let answer = self
            .context
            .with_party(|own| respond(own, peer.record(), &first, self.context.config));
        let (pending, second) = answer.map_err(|e| self.refused(&e))?;
        write_frame(stream, &[&second]).await.map_err(|_| End::Quiet)?;
        self.context.metrics.add(
            "gym_link_handshake_bytes_total",
            &[],
            (8 + first.len() + second.len()) as u64,
        );
        Ok(pending)
    }

    fn refused(&self, error: &HandshakeError) -> End {
        tracing::warn!(peer = %self.peer, %error, "refused a sealed link");
        match error {
            // The peer may hold an older record of ours or have a newer one: a new connection settles that.
            HandshakeError::Record { .. } | HandshakeError::OwnRecord | HandshakeError::Randomness(_) => {
                End::Quiet
            }
            HandshakeError::Length { .. }
            | HandshakeError::Genesis { .. }
            | HandshakeError::SamePeer
            | HandshakeError::Key(_)
            | HandshakeError::Signature { .. }
            | HandshakeError::Confirmation => End::Offence(LinkOffence::Handshake),
        }
    }

    async fn frames<T>(&self, pending: PendingReceiver, stream: &mut T) -> Result<(), End>
    where
        T: AsyncRead + Unpin,
    {
        let mut state = Receiving::Pending(Box::new(pending));
        let mut reader = Reader::new(self.context.buffers.clone());
        let mut held_up = HeldUp::new(Instant::now());
        loop {
            let frame = self
                .next_frame(stream, &mut reader, &mut state, &mut held_up)
                .await?;
            let Some(frame) = frame else {
                return Ok(());
            };
            let around = 8 + frame.associated.len();
            self.check(&frame.header).map_err(End::Offence)?;
            let mut payload = frame.sealed;
            let sealed = payload.len();
            let watch = CpuWatch::start();
            let opened = state.open(self.context.now_ms(), &frame.associated, &mut payload);
            watch.count(&self.context.metrics, "gym_link_open_cpu_nanoseconds_total");
            state = Receiving::Open(opened.map_err(|e| self.unopened(e))?);
            self.context.count("received", frame.header.kind, sealed, around);
            let event = NetEvent::Sealed {
                from: self.from.clone(),
                header: Box::new(frame.header),
                payload,
            };
            // The stream pushes back on the sender while the node is busy.
            let begun = Instant::now();
            match timeout(IDLE, self.context.events.send(event)).await {
                Ok(Ok(())) => held_up.by_us(begun, Instant::now()),
                Ok(Err(_)) | Err(_) => return Ok(()),
            }
        }
    }

    /// The next frame; `None` when the link was closed or lost between frames, or is idle.
    async fn next_frame<T>(
        &self,
        stream: &mut T,
        reader: &mut Reader,
        state: &mut Receiving,
        held_up: &mut HeldUp,
    ) -> Result<Option<Frame>, End>
    where
        T: AsyncRead + Unpin,
    {
        let read = {
            let read = timeout(IDLE, frame::read(stream, reader));
            tokio::pin!(read);
            loop {
                let forget = state.forget_in(self.context.now_ms());
                tokio::select! {
                    read = &mut read => break read,
                    () = sleep(forget.unwrap_or(IDLE)), if forget.is_some() => {
                        state.forget_old(self.context.now_ms());
                    }
                }
            }
        };
        match read {
            Ok(Ok(frame)) => {
                held_up.came(reader.began, Instant::now());
                Ok(frame)
            }
            Ok(Err(FrameError::Offence(what))) => Err(End::Offence(what)),
            Ok(Err(FrameError::Io(error))) if error.kind() == io::ErrorKind::UnexpectedEof => {
                if held_up.excuses(reader.began, Instant::now()) {
                    tracing::debug!(peer = %self.peer, "it gave up a frame that came slowly, or that this node had held up");
                    return Ok(None);
                }
                Err(self.cut_off().await)
            }
            Ok(Err(FrameError::Io(_))) | Err(_) => Ok(None),
        }
    }

    /// A frame ended early. When the connection went with it, it is the network's fault or a crash.
    async fn cut_off(&self) -> End {
        tokio::time::sleep(CUT_OFF_GRACE).await;
        match self.context.net.peer(&self.from).await {
            Ok(Some(_)) => End::Offence(LinkOffence::Truncated),
            Ok(None) | Err(_) => End::Quiet,
        }
    }

    fn check(&self, header: &LinkHeader) -> Result<(), LinkOffence> {
        if header.sender != self.from {
            return Err(LinkOffence::WrongSender);
        }
        if header.receiver != self.context.identity.peer() {
            return Err(LinkOffence::WrongReceiver);
        }
        Ok(())
    }

    fn unopened(&self, error: OpenError) -> End {
        tracing::debug!(peer = %self.peer, %error, "a sealed frame does not open");
        End::Offence(match error {
            OpenError::TooShort { .. } => LinkOffence::Truncated,
            OpenError::TooLong { .. } => LinkOffence::Oversized,
            OpenError::NotConfirmed { .. } | OpenError::Confirmation => LinkOffence::Handshake,
            OpenError::BadTag { .. }
            | OpenError::Replay { .. }
            | OpenError::Behind { .. }
            | OpenError::Epoch { .. }
            | OpenError::EpochFull { .. } => LinkOffence::BadTag,
        })
    }
}

enum Receiving {
    Pending(Box<PendingReceiver>),
    Open(Box<Opener>),
}

impl Receiving {
    fn open(self, now_ms: u64, associated: &[u8], buffer: &mut Vec<u8>) -> Result<Box<Opener>, OpenError> {
        match self {
            Self::Pending(pending) => pending.open_first(associated, buffer).map(Box::new),
            Self::Open(mut opener) => opener.open(now_ms, associated, buffer).map(|()| opener),
        }
    }

    /// How long the key of an epoch that is over is still kept.
    fn forget_in(&self, now_ms: u64) -> Option<Duration> {
        match self {
            Self::Pending(_) => None,
            Self::Open(opener) => opener
                .forget_at()
                .map(|at| Duration::from_millis(at.saturating_sub(now_ms))),
        }
    }

    fn forget_old(&mut self, now_ms: u64) {
        if let Self::Open(opener) = self {
            opener.forget_old(now_ms);
        }
    }
}

fn quiet_or_oversized(error: &io::Error) -> End {
    if error.kind() == io::ErrorKind::InvalidData {
        End::Offence(LinkOffence::Oversized)
    } else {
        End::Quiet
    }
}
