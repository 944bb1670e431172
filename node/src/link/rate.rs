//! The bandwidth to a peer, from what links carry anyway.
//!
//! A frame counts as sent when the stream has taken it, and what a stream takes first disappears into buffers and windows
//! at the speed of memory. So only long bursts, of frames that wait for one another, tell a bandwidth: by their second
//! half, which goes no faster than the receiver takes bytes off its window.

use gym_protocol::ids::PeerBytes;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A burst of fewer bytes tells nothing.
const SHORTEST: u64 = 8 << 20;
/// Frames of a burst that are remembered; a longer one goes on with its later half.
const MARKS: usize = 256;
/// The share of a new burst in the average: 1/4.
const SHARE: u64 = 4;

/// Bandwidths to peers, bytes a millisecond; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Rates(Arc<Mutex<HashMap<PeerBytes, u64>>>);

impl Rates {
    /// What was last known of the way to `peer`; `None` when no burst has gone there yet.
    #[must_use]
    pub fn to(&self, peer: &PeerBytes) -> Option<u32> {
        self.lock().get(peer).copied().map(to_u32)
    }

    /// The best that is known of the way to anybody.
    #[must_use]
    pub fn best(&self) -> Option<u32> {
        self.lock().values().copied().max().map(to_u32)
    }

    /// Takes a burst's bandwidth into the average.
    pub(super) fn take(&self, peer: &PeerBytes, rate: u64) {
        let mut rates = self.lock();
        match rates.get_mut(peer) {
            Some(average) => *average = (*average * (SHARE - 1) + rate) / SHARE,
            None => drop(rates.insert(peer.clone(), rate)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PeerBytes, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn to_u32(rate: u64) -> u32 {
    u32::try_from(rate).unwrap_or(u32::MAX)
}

/// Frames sent to one peer without a pause between them.
#[derive(Debug, Default)]
pub(super) struct Burst {
    /// When each frame had been taken, from a clock of the caller's, and the bytes until then.
    marks: VecDeque<(Duration, u64)>,
}

impl Burst {
    /// A frame begins at `now`; with none before it in the burst, the burst does.
    pub(super) fn begin(&mut self, now: Duration) {
        if self.marks.is_empty() {
            self.marks.push_back((now, 0));
        }
    }

    /// `bytes` were taken until `now`.
    pub(super) fn sent(&mut self, now: Duration, bytes: usize) {
        let before = self.marks.back().map_or(0, |(_, bytes)| *bytes);
        self.marks.push_back((now, before + bytes as u64));
        if self.marks.len() > MARKS {
            self.marks.drain(..MARKS / 2);
        }
    }

    /// Nothing waits any more: the burst's bandwidth, bytes a millisecond, if it was long enough to tell one.
    pub(super) fn end(&mut self) -> Option<u64> {
        let marks = std::mem::take(&mut self.marks);
        let (first, last) = (marks.front()?, marks.back()?);
        if last.1 - first.1 < SHORTEST {
            return None;
        }
        let half = first.1 + (last.1 - first.1) / 2;
        let middle = marks.iter().find(|(_, bytes)| *bytes >= half)?;
        let took = u64::try_from(last.0.saturating_sub(middle.0).as_micros()).ok()?;
        (last.1 - middle.1).checked_mul(1000)?.checked_div(took)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: usize = 1 << 20;

    /// A burst of `frames`, of which the first `buffered` are taken at once, the others at `ms` each.
    fn burst(frames: u64, buffered: u64, ms: u64) -> Option<u64> {
        let mut burst = Burst::default();
        burst.begin(Duration::ZERO);
        for i in 1..=frames {
            let now = Duration::from_millis(i.saturating_sub(buffered) * ms);
            burst.sent(now, FRAME);
        }
        burst.end()
    }

    #[test]
    fn what_buffers_swallow_does_not_count() {
        let expected = FRAME as u64 / 40;
        assert_eq!(burst(16, 0, 40), Some(expected));
        assert_eq!(burst(16, 8, 40), Some(expected));
        assert_eq!(burst(2_000, 8, 40), Some(expected));
    }

    #[test]
    fn short_bursts_tell_nothing() {
        assert_eq!(burst(7, 0, 40), None);
        assert_eq!(burst(0, 0, 40), None);
        assert_eq!(Burst::default().end(), None);
        // All of it in buffers: no time passed.
        assert_eq!(burst(16, 16, 40), None);
    }

    #[test]
    fn a_new_burst_begins_from_nothing() {
        let mut burst = Burst::default();
        burst.begin(Duration::ZERO);
        burst.sent(Duration::from_secs(1), 4 * FRAME);
        assert_eq!(burst.end(), None);
        burst.begin(Duration::from_secs(60));
        (1..=8).for_each(|i| burst.sent(Duration::from_secs(60 + i), FRAME));
        assert_eq!(burst.end(), Some(FRAME as u64 / 1000));
    }

    #[test]
    fn bursts_are_averaged() {
        let (rates, peer) = (Rates::default(), PeerBytes::new(vec![3; 38]).unwrap());
        assert_eq!(rates.to(&peer), None);
        rates.clone().take(&peer, 1_000);
        assert_eq!(rates.to(&peer), Some(1_000));
        rates.take(&peer, 2_000);
        assert_eq!(rates.to(&peer), Some(1_250));
        rates.take(&PeerBytes::new(vec![4; 38]).unwrap(), 9);
        assert_eq!(rates.best(), Some(1_250));
    }
}
