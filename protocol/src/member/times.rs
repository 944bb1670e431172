//! How long a ring's segments may take: median + k·MAD of what was measured, over the rounds (PROTOCOL section 6,
//! "Failure").

use crate::job::spec::DeadlinesSpec;
use crate::message::Link;
use crate::quant::SEGMENT;
use crate::time::{Estimate, Time};

/// One-way trips until a first segment: the two of a link's handshake, its answer, and the segment itself.
const TRIPS: u64 = 4;

/// Measured waits.
#[derive(Clone, Debug, Default)]
pub(super) struct RingTimes {
    /// From a manifest to the first segment.
    first: Estimate,
    /// From one segment to the next.
    next: Estimate,
}

/// What a ring waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// Its first segment.
    First,
    /// Another.
    Next,
}

impl RingTimes {
    /// A segment came.
    pub(super) fn add(&mut self, what: Waiting, ms: u64) {
        match what {
            Waiting::First => self.first.add(ms),
            Waiting::Next => self.next.add(ms),
        }
    }

    /// What no ring has shown yet, from the links' delay and bandwidth.
    pub(super) fn foresee(&mut self, links: &[Link]) {
        if !self.first.is_empty() {
            return;
        }
        for link in links {
            let carried = (SEGMENT as u64 * 4).checked_div(link.bytes_per_ms.into());
            self.first
                .add(TRIPS * u64::from(link.delay_us) / 1000 + carried.unwrap_or(0));
        }
    }

    /// How long to wait in a view: within floor and cap, doubled with each view.
    pub(super) fn wait(&self, what: Waiting, limits: Limits, view: u32) -> u64 {
        let estimate = match what {
            Waiting::First => &self.first,
            Waiting::Next => &self.next,
        };
        let wait = if estimate.is_empty() {
            limits.floor
        } else {
            estimate.deadline(limits.floor, limits.cap)
        };
        wait.saturating_mul(1 << view.min(6))
    }
}

/// The least and the most a segment is waited for in a first view, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    floor: u64,
    cap: u64,
}

impl Limits {
    pub(super) fn of(deadlines: &DeadlinesSpec) -> Self {
        Self {
            floor: deadlines.ring_floor_ms,
            cap: deadlines.ring_cap_ms,
        }
    }
}

/// When a ring's segment is overdue.
pub(super) fn overdue(times: &RingTimes, what: Waiting, since: Time, limits: Limits, view: u32) -> Time {
    since.plus(times.wait(what, limits, view))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PeerBytes;

    const LIMITS: Limits = Limits {
        floor: 5_000,
        cap: 120_000,
    };

    #[test]
    fn a_first_segment_is_waited_for_as_long_as_earlier_ones_took() {
        let mut times = RingTimes::default();
        assert_eq!(times.wait(Waiting::First, LIMITS, 0), 5_000, "nothing measured");
        for ms in [20_000, 21_000, 19_000, 20_500] {
            times.add(Waiting::First, ms);
        }
        let wait = times.wait(Waiting::First, LIMITS, 0);
        assert!((20_000..30_000).contains(&wait), "{wait}");
        assert_eq!(times.wait(Waiting::First, LIMITS, 2), 4 * wait);
        assert_eq!(times.wait(Waiting::Next, LIMITS, 1), 10_000, "the floor, doubled");
    }

    #[test]
    fn links_foresee_what_no_ring_has_shown() {
        let link = |n: u8, bytes_per_ms| Link {
            peer: PeerBytes::new(vec![n]).unwrap(),
            delay_us: 300_000,
            bytes_per_ms,
        };
        let mut times = RingTimes::default();
        times.foresee(&[link(1, 100), link(2, 100), link(3, 0)]);
        // 1 MiB at 100 bytes a millisecond, and four trips of 300 ms.
        assert_eq!(times.wait(Waiting::First, LIMITS, 0), 10_485 + 1_200);
        times.foresee(&[link(1, 1)]);
        assert_eq!(times.wait(Waiting::First, LIMITS, 0), 11_685, "foreseen once");
    }
}
