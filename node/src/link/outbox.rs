//! Frames on their way to the links: in order for each peer, without holding up whoever sends them.

use super::{Damage, LinkPool};
use gym_protocol::buffers::Buffers;
use gym_protocol::ids::PeerBytes;
use gym_protocol::message::LinkHeader;
use std::collections::HashMap;
use tokio::sync::mpsc;

/// Frames that wait for one peer's link: a round's segments at the largest sizes.
const QUEUE: usize = 4_096;

type Frame = (LinkHeader, Vec<u8>, Damage);

/// One queue and one task for each peer.
#[derive(Debug)]
pub struct Outbox {
    links: LinkPool,
    failed: mpsc::Sender<PeerBytes>,
    queues: HashMap<PeerBytes, mpsc::Sender<Frame>>,
}

impl Outbox {
    /// Peers that take nothing are told to `failed`.
    #[must_use]
    pub fn new(links: LinkPool, failed: mpsc::Sender<PeerBytes>) -> Self {
        Self {
            links,
            failed,
            queues: HashMap::new(),
        }
    }

    /// The bandwidths that its links have shown.
    #[must_use]
    pub fn rates(&self) -> super::Rates {
        self.links.rates()
    }

    /// Memory of payloads, theirs and those to come.
    #[must_use]
    pub fn buffers(&self) -> Buffers {
        self.links.buffers()
    }

    /// For whose links places are kept.
    #[must_use]
    pub fn members(&self) -> super::Members {
        self.links.members()
    }

    /// Queues a frame. `false` when the peer's queue is full: it takes nothing.
    pub fn send(&mut self, to: &PeerBytes, header: LinkHeader, payload: Vec<u8>, damage: Damage) -> bool {
        let queue = match self.queues.get(to) {
            Some(queue) if !queue.is_closed() => queue.clone(),
            Some(_) | None => self.open(to),
        };
        queue.try_send((header, payload, damage)).is_ok()
    }

    fn open(&mut self, to: &PeerBytes) -> mpsc::Sender<Frame> {
        let (sender, queue) = mpsc::channel(QUEUE);
        tokio::spawn(carry(self.links.clone(), to.clone(), queue, self.failed.clone()));
        self.queues.insert(to.clone(), sender.clone());
        sender
    }
}

/// Ends when the peer takes nothing (its queue is then dropped whole) or the outbox is gone.
async fn carry(
    links: LinkPool,
    to: PeerBytes,
    mut queue: mpsc::Receiver<Frame>,
    failed: mpsc::Sender<PeerBytes>,
) {
    while let Some((header, payload, damage)) = queue.recv().await {
        if let Err(e) = links.send_damaged(to.clone(), header, payload, damage).await {
            tracing::warn!(peer = %to, "frames for this peer are dropped: {e}");
            let _ = failed.send(to).await;
            return;
        }
    }
}
