//! yamux with a bounded receive window. libp2p's own wrapper leaves yamux's default of 1 GiB for each connection, which
//! hands a peer that much of this machine's memory; everything else is as there.

use super::coalesce::Coalesce;
use futures::{AsyncRead, AsyncWrite, ready};
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use std::collections::VecDeque;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use yamux::{Connection, ConnectionError, Mode, Stream};

/// Streams that one peer may have open on one connection.
const MAX_STREAMS: usize = 128;
/// Bytes received and not yet read, all streams of a connection together: each stream's first 256 KiB, and as much again
/// for those that grow.
const RECEIVE_WINDOW: usize = 2 * MAX_STREAMS * 256 * 1024;
/// Payload of the frames sent: large enough that what a frame costs in tasks woken and queues passed is little beside its
/// bytes, small enough that another stream's turn comes soon and that the C library does not map memory for each.
pub(super) const FRAME: usize = 112 * 1024;
/// Inbound streams that wait to be taken; what comes beyond them is dropped.
const MAX_WAITING: usize = 256;

/// Upgrades a connection to yamux.
#[derive(Clone, Debug)]
pub(super) struct Config(yamux::Config);

impl Default for Config {
    fn default() -> Self {
        let mut config = yamux::Config::default();
        // In this order: yamux checks that the window has 256 KiB for every stream.
        config.set_max_num_streams(MAX_STREAMS);
        config.set_max_connection_receive_window(Some(RECEIVE_WINDOW));
        config.set_split_send_size(FRAME);
        Self(config)
    }
}

impl UpgradeInfo for Config {
    type Info = &'static str;
    type InfoIter = std::iter::Once<Self::Info>;

    fn protocol_info(&self) -> Self::InfoIter {
        std::iter::once("/yamux/1.0.0")
    }
}

impl<C> InboundConnectionUpgrade<C> for Config
where
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Output = Muxer<C>;
    type Error = io::Error;
    type Future = Ready<io::Result<Muxer<C>>>;

    fn upgrade_inbound(self, io: C, _: &'static str) -> Self::Future {
        ready(Ok(Muxer::new(io, self.0, Mode::Server)))
    }
}

impl<C> OutboundConnectionUpgrade<C> for Config
where
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Output = Muxer<C>;
    type Error = io::Error;
    type Future = Ready<io::Result<Muxer<C>>>;

    fn upgrade_outbound(self, io: C, _: &'static str) -> Self::Future {
        ready(Ok(Muxer::new(io, self.0, Mode::Client)))
    }
}

/// A yamux connection. Only asking it for inbound streams moves it along, so streams that come while others are served
/// wait here.
#[derive(Debug)]
pub(super) struct Muxer<C> {
    connection: Connection<Coalesce<C>>,
    waiting: VecDeque<Stream>,
    waker: Option<Waker>,
}

impl<C: AsyncRead + AsyncWrite + Unpin> Muxer<C> {
    fn new(io: C, config: yamux::Config, mode: Mode) -> Self {
        Self {
            connection: Connection::new(Coalesce::new(io), config, mode),
            waiting: VecDeque::new(),
            waker: None,
        }
    }

    fn poll_connection(&mut self, cx: &mut Context<'_>) -> Poll<Result<Stream, ConnectionError>> {
        let next = ready!(self.connection.poll_next_inbound(cx));
        Poll::Ready(next.unwrap_or(Err(ConnectionError::Closed)))
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> StreamMuxer for Muxer<C> {
    type Substream = Stream;
    type Error = ConnectionError;

    fn poll_inbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, Self::Error>> {
        if let Some(stream) = self.waiting.pop_front() {
            return Poll::Ready(Ok(stream));
        }
        if let Poll::Ready(result) = self.poll_connection(cx) {
            return Poll::Ready(result);
        }
        self.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn poll_outbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, Self::Error>> {
        self.connection.poll_new_outbound(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.connection.poll_close(cx)
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<StreamMuxerEvent, Self::Error>> {
        let stream = ready!(self.poll_connection(cx))?;
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(stream);
            if let Some(waker) = self.waker.take() {
                waker.wake();
            }
        } else {
            tracing::debug!("dropped an inbound stream: too many wait");
        }
        // There may be more; others get their turn first.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_are_consistent() {
        // yamux panics where they are not.
        let _ = Config::default();
        assert_eq!(RECEIVE_WINDOW, 64 << 20);
    }
}
