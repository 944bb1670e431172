//! The writer task of one peer: opens the link when there is something to send, again when it broke.

use super::frame;
use super::pool::Damage;
use super::rate::Burst;
use super::watch::CpuWatch;
use super::{IDLE, LINK, LinkContext, MAX_WORDS, OPEN_DEADLINE};
use crate::net::codec::{read_frame, write_frame};
use crate::net::{NetError, NetEvent, peer_id};
use futures::future::BoxFuture;
use futures::io::{AsyncReadExt, AsyncWriteExt, WriteHalf};
use gym_crypto::link::{HandshakeError, Initiator, OVERHEAD_BYTES, RESPONSE_BYTES, SealError, Sealer};
use gym_protocol::cbor::{self, CborError};
use gym_protocol::ids::PeerBytes;
use gym_protocol::message::LinkHeader;
use libp2p::Stream;
use libp2p::tcp::tokio::TcpStream;
use std::io;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

/// The first pause after a link could not be opened; it doubles up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// A frame to be sent.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) header: LinkHeader,
    pub(super) payload: Vec<u8>,
    pub(super) damage: Damage,
    pub(super) expires: Instant,
}

/// Writes to one peer.
pub(super) struct Writer {
    context: LinkContext,
    to: PeerBytes,
    queue: mpsc::Receiver<Outgoing>,
    link: Option<Link>,
    burst: Burst,
}

/// An open link.
struct Link {
    sealer: Sealer,
    /// The last sealed payload; its memory is used again.
    sealed: Vec<u8>,
    /// Where the link was set up: the receiver's words come there.
    control: WriteHalf<Stream>,
    /// Where frames go when not on `control`.
    direct: Option<TcpStream>,
    /// Ends when the receiver closes the link: with its words, or silently.
    closed: BoxFuture<'static, io::Result<Vec<u8>>>,
}

#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error(transparent)]
    Net(#[from] NetError),
    #[error("no peer id")]
    NoPeer,
    #[error(transparent)]
    Stream(#[from] libp2p_stream::OpenStreamError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error(transparent)]
    Seal(#[from] SealError),
    #[error(transparent)]
    Header(#[from] CborError),
    #[error("{0} took too long")]
    Late(&'static str),
    #[error("the receiver closed it")]
    Closed(io::Result<Vec<u8>>),
    #[error("the node is shutting down")]
    Stopped,
}

impl Link {
    /// Writes `head` and what was sealed as one frame.
    async fn write(&mut self, head: &[u8]) -> Result<(), SendError> {
        let parts = [head, &self.sealed];
        let Some(socket) = &mut self.direct else {
            return Ok(write_frame(&mut self.control, &parts).await?);
        };
        // A socket to a machine that has vanished takes bytes for long; libp2p knows sooner.
        tokio::select! {
            biased;
            written = write_frame(socket, &parts) => Ok(written?),
            words = &mut self.closed => Err(SendError::Closed(words)),
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        if let Some(socket) = &mut self.direct {
            socket.close().await?;
        }
        self.control.close().await
    }
}

impl Writer {
    pub(super) fn new(context: LinkContext, to: PeerBytes, queue: mpsc::Receiver<Outgoing>) -> Self {
        Self {
            context,
            to,
            queue,
            link: None,
            burst: Burst::default(),
        }
    }

    /// Runs until nothing was to be sent for a while, or the node stops.
    pub(super) async fn run(mut self) {
        let stop = self.context.stop.clone();
        while let Some(outgoing) = self.next().await {
            self.burst.begin(self.context.epoch.elapsed());
            let delivered = tokio::select! {
                delivered = self.deliver(&outgoing) => delivered,
                () = stop.cancelled() => Err(SendError::Stopped),
            };
            match delivered {
                Ok(()) => self.delivered(outgoing.payload),
                Err(error) => {
                    self.burst = Burst::default();
                    self.failed(outgoing.header, &error).await;
                }
            }
        }
        if let Some(mut link) = self.link.take() {
            let _ = timeout(FIRST_PAUSE, link.close()).await;
        }
    }

    fn delivered(&mut self, payload: Vec<u8>) {
        self.burst.sent(self.context.epoch.elapsed(), payload.len());
        self.context.buffers.give(payload);
        if self.queue.is_empty()
            && let Some(rate) = self.burst.end()
        {
            self.context.rates.take(&self.to, rate);
        }
    }

    /// The next frame; meanwhile, hears the receiver close the link.
    async fn next(&mut self) -> Option<Outgoing> {
        let until = Instant::now() + IDLE;
        loop {
            let closed = async {
                match &mut self.link {
                    Some(link) => (&mut link.closed).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                words = closed => self.on_closed(words),
                outgoing = timeout_at(until, self.queue.recv()) => return outgoing.ok().flatten(),
                () = self.context.stop.cancelled() => return None,
            }
        }
    }

    /// Says what the receiver said.
    fn hear(&mut self, error: SendError) -> SendError {
        if let SendError::Closed(words) = error {
            self.on_closed(words);
            return SendError::Io(io::ErrorKind::ConnectionReset.into());
        }
        error
    }

    fn on_closed(&mut self, words: io::Result<Vec<u8>>) {
        self.link = None;
        if let Ok(words) = words {
            let words: String = String::from_utf8_lossy(&words)
                .chars()
                .filter(|c| !c.is_control())
                .collect();
            tracing::warn!(peer = %self.to, "the receiver closed the sealed link to it: {words}");
            self.context.metrics.add("gym_link_refused_total", &[], 1);
        }
    }

    /// Sends one frame before its deadline, opening the link as often as it takes.
    async fn deliver(&mut self, outgoing: &Outgoing) -> Result<(), SendError> {
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match timeout_at(outgoing.expires, self.attempt(outgoing)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => SendError::Late("sending a frame"),
            };
            // Half a frame may be on the stream: it is of no use any more.
            self.link = None;
            tracing::debug!(peer = %self.to, %error, "a sealed link broke or could not be opened");
            let error = self.hear(error);
            if Instant::now() + pause >= outgoing.expires {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    async fn attempt(&mut self, outgoing: &Outgoing) -> Result<(), SendError> {
        let link = match &mut self.link {
            Some(link) => link,
            None => {
                let opened = timeout(OPEN_DEADLINE, open(&mut self.context, &self.to)).await;
                self.link
                    .insert(opened.map_err(|_| SendError::Late("opening the link"))??)
            }
        };
        let associated = cbor::to_wire(&outgoing.header)?;
        let (now, sealed) = (self.context.now_ms(), &mut link.sealed);
        let watch = CpuWatch::start();
        link.sealer
            .seal_into(now, &associated, &outgoing.payload, sealed)?;
        watch.count(&self.context.metrics, "gym_link_seal_cpu_nanoseconds_total");
        let head = frame::head(&associated);
        match outgoing.damage {
            Damage::None => link.write(&head).await?,
            Damage::BadTag => {
                let tag = sealed.len().saturating_sub(OVERHEAD_BYTES);
                sealed[tag] ^= 1;
                link.write(&head).await?;
            }
            Damage::Truncated => return self.cut_short(&head, Duration::ZERO).await,
            Damage::Stalled(pause) => return self.cut_short(&head, pause).await,
        }
        let sealed = link.sealed.len();
        self.context
            .count("sent", outgoing.header.kind, sealed, 4 + head.len());
        Ok(())
    }

    /// Announces a whole frame, sends half of it, and after a pause ends the stream; hears what the receiver says.
    async fn cut_short(&mut self, head: &[u8], pause: Duration) -> Result<(), SendError> {
        let Some(mut link) = self.link.take() else {
            return Ok(());
        };
        let sealed = link.sealed.as_slice();
        let length = (head.len() + sealed.len()) as u32;
        let half = [&length.to_le_bytes(), head, &sealed[..sealed.len() / 2]].concat();
        match &mut link.direct {
            Some(socket) => socket.write_all(&half).await?,
            None => {
                link.control.write_all(&half).await?;
                link.control.flush().await?;
            }
        }
        tokio::time::sleep(pause).await;
        link.close().await?;
        let words = timeout(MAX_PAUSE, &mut link.closed).await;
        self.on_closed(words.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())));
        Ok(())
    }

    async fn failed(&mut self, header: LinkHeader, error: &SendError) {
        self.context.metrics.add("gym_link_failed_total", &[], 1);
        let reason = error.to_string();
        tracing::warn!(peer = %self.to, "could not deliver a sealed frame: {reason}");
        let event = NetEvent::LinkFailed {
            to: self.to.clone(),
            header: Box::new(header),
            reason,
        };
        let _ = timeout(MAX_PAUSE, self.context.events.send(event)).await;
    }
}

async fn open(context: &mut LinkContext, to: &PeerBytes) -> Result<Link, SendError> {
    let peer = context.net.record(to).await?;
    let id = peer_id(to).ok_or(SendError::NoPeer)?;
    let stream = context.streams.open_stream(id, LINK).await?;
    let (mut reader, mut writer) = stream.split();
    let (initiator, first) = context.with_party(|own| Initiator::new(own, peer.record()))?;
    write_frame(&mut writer, &[&first]).await?;
    let second = read_frame(&mut reader, RESPONSE_BYTES).await?;
    let sealer = initiator.finish(&second, context.now_ms(), context.config)?;
    let direct = context.call_socket(to, &mut reader, &mut writer).await?;
    context.metrics.add(
        "gym_link_handshake_bytes_total",
        &[],
        (8 + first.len() + second.len()) as u64,
    );
    let way = if direct.is_some() { "socket" } else { "stream" };
    context.metrics.add("gym_link_opened_total", &[("way", way)], 1);
    tracing::debug!(peer = %to, way, "opened a sealed link");
    let closed = Box::pin(async move { read_frame(&mut reader, MAX_WORDS).await });
    Ok(Link {
        sealer,
        sealed: Vec::new(),
        control: writer,
        direct,
        closed,
    })
}
