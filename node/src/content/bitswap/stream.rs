//! One message from a stream, one frame to it, each with a deadline.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::swarm::Stream;

use super::buffers::{Buffers, WORTH_BORROWING};
use super::line::Line;
use super::message::{Message, MessageError, frame_length};

/// Memory follows what has arrived, at most twice as much and this, not what was declared.
const PIECE: usize = 64 << 10;

/// Why no further message comes from a stream.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadFault {
    /// The stream ended, as streams do.
    #[error("closed: {0}")]
    Closed(#[from] io::Error),
    /// A message was begun and not finished in time.
    #[error("a message did not arrive within {0:?}")]
    Slow(Duration),
    /// A large message from a peer that nothing was asked of.
    #[error("a message of {0} bytes came from a peer that was asked for nothing")]
    Uncalled(usize),
    /// What arrived breaks the protocol.
    #[error(transparent)]
    Message(#[from] MessageError),
}

/// Reads one message. Waits for its first byte without a deadline: an idle stream is no fault. Waits too until the peer's
/// other messages leave room for it. Adds what arrives to `received`.
pub(super) async fn read_message(
    stream: &mut Stream,
    line: &Line,
    received: &AtomicU64,
    buffers: &Buffers,
    deadline: Duration,
) -> Result<Message, ReadFault> {
    let mut first = [0; 1];
    stream.read_exact(&mut first).await?;
    match tokio::time::timeout(deadline, read_rest(stream, first[0], line, received, buffers)).await {
        Ok(read) => Ok(Message::decode(&read?)?),
        Err(_) => Err(ReadFault::Slow(deadline)),
    }
}

/// Writes a whole frame, as long as the other side reads: when nothing leaves for `quiet` it is given up.
pub(super) async fn write_frame(
    stream: &mut Stream,
    line: &Line,
    frame: &[u8],
    quiet: Duration,
    deadline: Duration,
) -> io::Result<()> {
    let write = async {
        let mut left = frame;
        while !left.is_empty() {
            let count = tokio::time::timeout(quiet, stream.write(left)).await??;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            line.on_written(count);
            left = left.get(count..).unwrap_or_default();
        }
        tokio::time::timeout(quiet, stream.flush()).await?
    };
    match tokio::time::timeout(deadline, write).await {
        Ok(written) => written,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn read_rest(
    stream: &mut Stream,
    first: u8,
    line: &Line,
    received: &AtomicU64,
    buffers: &Buffers,
) -> Result<Bytes, ReadFault> {
    let length = read_length(stream, first).await?;
    let _room = line.admit(length).await?;
    let mut body = if length <= WORTH_BORROWING {
        Vec::new()
    } else {
        buffers.take()
    };
    let mut part = line.part();
    part.set(body.len());
    let mut filled = 0;
    while filled < length {
        if filled == body.len() {
            body.resize(length.min(PIECE.max(2 * filled)), 0);
            part.set(body.len());
        }
        let end = length.min(body.len());
        let count = stream.read(&mut body[filled..end]).await?;
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        filled += count;
        received.fetch_add(count as u64, Ordering::Relaxed);
    }
    Ok(buffers.lend(body).slice(..length))
}

async fn read_length(stream: &mut Stream, first: u8) -> Result<usize, ReadFault> {
    let mut start = vec![first];
    loop {
        if let Some((length, _)) = frame_length(&start)? {
            return Ok(length);
        }
        let mut next = [0; 1];
        stream.read_exact(&mut next).await?;
        start.push(next[0]);
    }
}
