//! The streams of one connection: messages in on the peer's streams, frames out on one of ours.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use libp2p::core::upgrade::ReadyUpgrade;
use libp2p::swarm::handler::{
    ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound,
};
use libp2p::swarm::{
    ConnectionHandler, ConnectionHandlerEvent, Stream, StreamProtocol, StreamUpgradeError, SubstreamProtocol,
};

use super::PROTOCOL;
use super::buffers::Buffers;
use super::client::PROGRESS;
use super::line::Line;
use super::message::{Message, MessageError};
use super::stream::{ReadFault, read_message, write_frame};

/// Streams that a peer may have open to us on one connection.
const MAX_INBOUND: usize = 8;
/// Tries for one frame: the stream may have died while it was idle.
const TRIES: u32 = 2;

/// From the behaviour; opaque outside.
#[derive(Debug)]
pub struct ToHandler(pub(super) Command);

/// To the behaviour; opaque outside.
#[derive(Debug)]
pub struct FromHandler(pub(super) Report);

#[derive(Debug)]
pub(super) enum Command {
    /// Send a frame. Answered by [`Report::Sent`] or [`Report::Lost`].
    Send { frame: Bytes, kind: FrameKind },
    /// Keep the connection, or let it go when it idles.
    Keep(Keep),
    /// Drop the replies that are being sent and wait to be, without a report.
    DropReplies,
}

/// What a frame carries; the behaviour has one of the first and few of the second under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameKind {
    Wants,
    Reply,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    Connection,
    Nothing,
}

#[derive(Debug)]
pub(super) enum Report {
    Message(Message),
    /// Part of a message has arrived.
    Progress,
    Sent(FrameKind),
    Lost(FrameKind),
    /// The peer does not speak bitswap.
    Unsupported,
    Misconduct(MessageError),
    /// A message did not arrive in time; its stream is closed.
    Slow(Duration),
    /// A large message was not asked for; its stream is closed.
    Uncalled(usize),
}

type Reading = BoxFuture<'static, Result<(Stream, Message), ReadFault>>;
type Writing = BoxFuture<'static, io::Result<Stream>>;
type Event = ConnectionHandlerEvent<
    ReadyUpgrade<StreamProtocol>,
    <Handler as ConnectionHandler>::OutboundOpenInfo,
    FromHandler,
>;

/// The stream we write to.
enum Outbound {
    Closed,
    /// Asked for.
    Opening,
    Idle(Stream),
    Writing(Writing),
}

/// How long messages may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// One message, once begun.
    pub(super) message: Duration,
    /// Between two parts of one that is written.
    pub(super) quiet: Duration,
}

/// A frame and how often it has been tried.
struct Outgoing {
    frame: Bytes,
    kind: FrameKind,
    tries: u32,
}

/// The handler of one connection.
pub struct Handler {
    line: Arc<Line>,
    times: Times,
    keep: Keep,
    inbound: FuturesUnordered<Reading>,
    received: Arc<AtomicU64>,
    buffers: Buffers,
    reported: u64,
    outbound: Outbound,
    queue: VecDeque<Outgoing>,
    reports: VecDeque<Report>,
}

impl std::fmt::Debug for Handler {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (inbound, queued) = (self.inbound.len(), self.queue.len());
        out.debug_struct("Handler")
            .field("inbound", &inbound)
            .field("queued", &queued)
            .finish_non_exhaustive()
    }
}

impl Handler {
    pub(super) fn new(line: Arc<Line>, times: Times, buffers: Buffers) -> Self {
        Self {
            line,
            times,
            buffers,
            keep: Keep::Nothing,
            inbound: FuturesUnordered::new(),
            received: Arc::default(),
            reported: 0,
            outbound: Outbound::Closed,
            queue: VecDeque::new(),
            reports: VecDeque::new(),
        }
    }

    fn read_from(&mut self, mut stream: Stream) {
        let (received, buffers) = (Arc::clone(&self.received), self.buffers.clone());
        let (line, deadline) = (Arc::clone(&self.line), self.times.message);
        self.inbound.push(
            async move {
                let message = read_message(&mut stream, &line, &received, &buffers, deadline).await?;
                Ok((stream, message))
            }
            .boxed(),
        );
    }

    fn poll_inbound(&mut self, cx: &mut Context<'_>) -> Option<Report> {
        while let Poll::Ready(Some(read)) = self.inbound.poll_next_unpin(cx) {
            match read {
                Ok((stream, message)) => {
                    // What it holds says more than its bytes.
                    self.reported = self.received.load(Ordering::Relaxed);
                    self.read_from(stream);
                    return Some(Report::Message(message));
                }
                Err(ReadFault::Message(error)) => return Some(Report::Misconduct(error)),
                Err(ReadFault::Slow(after)) => return Some(Report::Slow(after)),
                Err(ReadFault::Uncalled(length)) => return Some(Report::Uncalled(length)),
                Err(fault @ ReadFault::Closed(_)) => {
                    tracing::trace!(%fault, "bitswap stream ended");
                }
            }
        }
        let received = self.received.load(Ordering::Relaxed);
        if received - self.reported >= PROGRESS {
            self.reported = received;
            return Some(Report::Progress);
        }
        None
    }

    fn poll_outbound(&mut self, cx: &mut Context<'_>) -> Option<Event> {
        loop {
            match std::mem::replace(&mut self.outbound, Outbound::Closed) {
                Outbound::Closed if self.queue.is_empty() => return None,
                Outbound::Closed => {
                    self.outbound = Outbound::Opening;
                    return Some(Event::OutboundSubstreamRequest {
                        protocol: open_protocol(),
                    });
                }
                Outbound::Opening => {
                    self.outbound = Outbound::Opening;
                    return None;
                }
                Outbound::Idle(stream) => match self.queue.front() {
                    Some(next) => {
                        let line = Arc::clone(&self.line);
                        let writing = write(stream, line, next.frame.clone(), self.times);
                        self.outbound = Outbound::Writing(writing);
                    }
                    None => {
                        self.outbound = Outbound::Idle(stream);
                        return None;
                    }
                },
                Outbound::Writing(mut writing) => match writing.poll_unpin(cx) {
                    Poll::Pending => {
                        self.outbound = Outbound::Writing(writing);
                        return None;
                    }
                    Poll::Ready(written) => {
                        if let Some(report) = self.on_written(written) {
                            return Some(notice(report));
                        }
                    }
                },
            }
        }
    }

    fn on_written(&mut self, written: io::Result<Stream>) -> Option<Report> {
        match written {
            Ok(stream) => {
                self.outbound = Outbound::Idle(stream);
                self.queue.pop_front().map(|sent| Report::Sent(sent.kind))
            }
            // It does not read: another stream would not help.
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                self.outbound = Outbound::Closed;
                self.queue.pop_front().map(|lost| Report::Lost(lost.kind))
            }
            Err(_) => self.on_failure(),
        }
    }

    fn drop_replies(&mut self) {
        let first = self.queue.front().map(|first| first.kind);
        if first == Some(FrameKind::Reply) && matches!(self.outbound, Outbound::Writing(_)) {
            self.outbound = Outbound::Closed;
        }
        self.queue.retain(|frame| frame.kind != FrameKind::Reply);
    }

    /// Tries the first frame again on a new stream, or gives it up.
    fn on_failure(&mut self) -> Option<Report> {
        self.outbound = Outbound::Closed;
        let first = self.queue.front_mut()?;
        first.tries += 1;
        if first.tries < TRIES {
            None
        } else {
            self.queue.pop_front().map(|lost| Report::Lost(lost.kind))
        }
    }

    fn on_refusal(&mut self, error: &StreamUpgradeError<std::convert::Infallible>) {
        if matches!(error, StreamUpgradeError::NegotiationFailed) {
            self.outbound = Outbound::Closed;
            self.reports.push_back(Report::Unsupported);
            self.reports
                .extend(self.queue.drain(..).map(|lost| Report::Lost(lost.kind)));
        } else if let Some(report) = self.on_failure() {
            self.reports.push_back(report);
        }
    }
}

impl ConnectionHandler for Handler {
    type FromBehaviour = ToHandler;
    type ToBehaviour = FromHandler;
    type InboundProtocol = ReadyUpgrade<StreamProtocol>;
    type OutboundProtocol = ReadyUpgrade<StreamProtocol>;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = ();

    fn listen_protocol(&self) -> SubstreamProtocol<Self::InboundProtocol> {
        open_protocol()
    }

    fn connection_keep_alive(&self) -> bool {
        self.keep == Keep::Connection || !self.queue.is_empty()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        if let Some(report) = self.reports.pop_front() {
            return Poll::Ready(notice(report));
        }
        if let Some(event) = self.poll_outbound(cx) {
            return Poll::Ready(event);
        }
        match self.poll_inbound(cx) {
            Some(report) => Poll::Ready(notice(report)),
            None => Poll::Pending,
        }
    }

    fn on_behaviour_event(&mut self, ToHandler(command): ToHandler) {
        match command {
            Command::Send { frame, kind } => self.queue.push_back(Outgoing {
                frame,
                kind,
                tries: 0,
            }),
            Command::Keep(keep) => self.keep = keep,
            Command::DropReplies => self.drop_replies(),
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "addresses and other protocols do not matter here"
    )]
    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<'_, Self::InboundProtocol, Self::OutboundProtocol>,
    ) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound {
                protocol: mut stream, ..
            }) if self.inbound.len() < MAX_INBOUND => {
                stream.ignore_for_keep_alive();
                self.read_from(stream);
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound {
                protocol: mut stream,
                ..
            }) => {
                stream.ignore_for_keep_alive();
                self.outbound = Outbound::Idle(stream);
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { error, .. }) => self.on_refusal(&error),
            // A stream too many is closed by being dropped.
            _ => {}
        }
    }
}

fn notice(report: Report) -> Event {
    Event::NotifyBehaviour(FromHandler(report))
}

fn open_protocol() -> SubstreamProtocol<ReadyUpgrade<StreamProtocol>> {
    SubstreamProtocol::new(ReadyUpgrade::new(PROTOCOL), ())
}

fn write(mut stream: Stream, line: Arc<Line>, frame: Bytes, times: Times) -> Writing {
    async move {
        write_frame(&mut stream, &line, &frame, times.quiet, times.message).await?;
        Ok(stream)
    }
    .boxed()
}
