//! The sending side as others use it: one queue and one writer task for each peer.

use super::outgoing::{Outgoing, Writer};
use super::{FRAME_DEADLINE, LinkContext, MAX_PAYLOAD, Members, Rates};
use gym_protocol::buffers::Buffers;
use gym_protocol::ids::PeerBytes;
use gym_protocol::message::LinkHeader;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

/// Frames that wait for one peer.
const QUEUE: usize = 8;
/// How long [`LinkPool::send`] waits for a place in the queue.
const QUEUE_DEADLINE: Duration = Duration::from_secs(60);

/// Sends frames over sealed links; clones share the links.
#[derive(Clone, Debug)]
pub struct LinkPool {
    context: LinkContext,
    writers: Arc<Mutex<HashMap<PeerBytes, mpsc::Sender<Outgoing>>>>,
}

/// How a frame is spoilt on purpose, in scenarios that test how others take it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Damage {
    /// Not at all.
    #[default]
    None,
    /// One bit of the seal's tag is flipped.
    BadTag,
    /// The frame ends before its announced length, and the stream with it.
    Truncated,
    /// The same, after so long in the middle of it: as on a network that brings no more.
    Stalled(Duration),
}

/// Why a frame was not taken for sending.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// Too long.
    #[error(
        "a link's payload of {len} bytes is too long: at most {MAX_PAYLOAD} fit a frame; cut it into segments"
    )]
    TooLong {
        /// Its bytes.
        len: usize,
    },
    /// The header does not name this node as the sender and the peer as the receiver.
    #[error("the frame's header names another sender or receiver than the link to {to} has")]
    Header {
        /// The link's receiver.
        to: PeerBytes,
    },
    /// The peer takes nothing.
    #[error("{to} has taken nothing for {QUEUE_DEADLINE:?}")]
    Backlog {
        /// Who.
        to: PeerBytes,
    },
    /// The node is shutting down.
    #[error("the node is shutting down")]
    Stopped,
}

impl LinkPool {
    /// A pool with no links yet.
    #[must_use]
    pub fn new(context: LinkContext) -> Self {
        Self {
            context,
            writers: Arc::default(),
        }
    }

    /// For whose links places are kept.
    #[must_use]
    pub fn members(&self) -> Members {
        self.context.members.clone()
    }

    /// Memory of payloads, theirs and those to come.
    #[must_use]
    pub fn buffers(&self) -> Buffers {
        self.context.buffers.clone()
    }

    /// The bandwidths that its links have shown.
    #[must_use]
    pub fn rates(&self) -> Rates {
        self.context.rates.clone()
    }

    /// Queues a frame for `to`, waiting while its queue is full. What cannot be delivered within a minute from then is
    /// told by [`crate::net::NetEvent::LinkFailed`].
    ///
    /// # Errors
    /// When the payload is too long, the header is not of this link, or the peer takes nothing for a minute.
    pub async fn send(&self, to: PeerBytes, header: LinkHeader, payload: Vec<u8>) -> Result<(), LinkError> {
        self.send_damaged(to, header, payload, Damage::None).await
    }

    /// As [`LinkPool::send`], the frame spoilt on purpose: for scenarios.
    ///
    /// # Errors
    /// As [`LinkPool::send`].
    pub async fn send_damaged(
        &self,
        to: PeerBytes,
        header: LinkHeader,
        payload: Vec<u8>,
        damage: Damage,
    ) -> Result<(), LinkError> {
        if payload.len() > MAX_PAYLOAD {
            return Err(LinkError::TooLong { len: payload.len() });
        }
        if header.sender != self.context.identity.peer() || header.receiver != to {
            return Err(LinkError::Header { to });
        }
        let place = self.place(&to).await?;
        place.send(Outgoing {
            header,
            payload,
            damage,
            expires: Instant::now() + FRAME_DEADLINE,
        });
        Ok(())
    }

    /// A place in the queue to `to`. A writer that ended for idleness is followed by another.
    async fn place(&self, to: &PeerBytes) -> Result<mpsc::OwnedPermit<Outgoing>, LinkError> {
        let wait = async {
            loop {
                if self.context.stop.is_cancelled() {
                    return Err(LinkError::Stopped);
                }
                if let Ok(place) = self.writer(to).reserve_owned().await {
                    return Ok(place);
                }
            }
        };
        timeout(QUEUE_DEADLINE, wait)
            .await
            .unwrap_or_else(|_| Err(LinkError::Backlog { to: to.clone() }))
    }

    fn writer(&self, to: &PeerBytes) -> mpsc::Sender<Outgoing> {
        let mut writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        match writers.get(to) {
            Some(writer) if !writer.is_closed() => writer.clone(),
            Some(_) | None => {
                let (sender, queue) = mpsc::channel(QUEUE);
                tokio::spawn(Writer::new(self.context.clone(), to.clone(), queue).run());
                writers.insert(to.clone(), sender.clone());
                sender
            }
        }
    }
}
