//! Peers that send, and far less than another would: what they are asked for goes to that one.
//!
//! A message that drips says every few seconds that its sender lives, and would keep its blocks until its time is up, while
//! whoever reads a file in order waits for one of them.

use std::time::{Duration, Instant};

use cid::Cid;
use libp2p::PeerId;

use super::{Client, PROGRESS, Peer};

/// So many times as much another must have brought in the same time.
const FAR: f64 = 8.0;

/// What has come of a peer lately.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lately {
    since: Instant,
    bytes: u64,
    /// Of these, bytes that no whole block is known of yet.
    early: u64,
}

impl Lately {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            bytes: 0,
            early: 0,
        }
    }

    /// Bytes of a message under way.
    pub(super) fn on_bytes(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.early += bytes;
    }

    /// A block of this size, some of whose bytes were counted when they came.
    pub(super) fn on_block(&mut self, size: u64) {
        let counted = self.early.min(size);
        self.early -= counted;
        self.bytes += size - counted;
    }

    /// Bytes a second at most, once they have been counted for `time`, when counting begins anew.
    pub(super) fn rate_after(&mut self, now: Instant, time: Duration) -> Option<f64> {
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed < time {
            return None;
        }
        // As many may have come that were not told yet.
        let rate = (self.bytes + PROGRESS) as f64 / elapsed.as_secs_f64();
        (self.since, self.bytes) = (now, 0);
        Some(rate)
    }
}

impl Client {
    /// Those that have kept something for as long as counts as a stall, and in that time brought far less than another
    /// provider would that can be asked for it. A provider that is alone, or among its equals, is left to its time.
    pub(super) fn outpaced(&mut self, now: Instant) -> Vec<PeerId> {
        let stall = self.config.stall;
        let rate = |(id, peer): (&PeerId, &mut Peer)| {
            let rate = peer.rate_after(now, stall)?;
            peer.asked_before(now, stall).next()?;
            Some((*id, rate))
        };
        let slow: Vec<(PeerId, f64)> = self.peers.iter_mut().filter_map(rate).collect();
        let is_outpaced = |(id, rate): &(PeerId, f64)| self.is_outpaced(now, id, *rate);
        let outpaced = slow.into_iter().filter(is_outpaced);
        outpaced.map(|(id, _)| id).collect()
    }

    /// A block came from `id`. Others that were asked for it long before are asked after the rest from now on, until they
    /// answer: whoever reads block by block would wait for the same one each time.
    pub(super) fn overtake(&mut self, now: Instant, id: PeerId, cid: &Cid) {
        let Some(want) = self.wants.get(cid) else { return };
        for other in want.told.iter().filter(|other| **other != id) {
            if let Some(peer) = self.peers.get_mut(other) {
                peer.on_overtaken(now, cid, self.config.stall);
            }
        }
    }

    fn is_outpaced(&self, now: Instant, id: &PeerId, rate: f64) -> bool {
        let Some(peer) = self.peers.get(id) else {
            return false;
        };
        let Some((_, cid)) = peer.asked_before(now, self.config.stall).min() else {
            return false;
        };
        let Some(want) = self.wants.get(&cid) else {
            return false;
        };
        let sessions = want.sessions.iter().filter_map(|id| self.sessions.get(id));
        sessions
            .flat_map(|session| &session.providers)
            .filter(|other| *other != id && !self.has_refused(now, want, other))
            .filter_map(|other| self.peers.get(other)?.proven_rate(now))
            .any(|other| other > FAR * rate)
    }
}
