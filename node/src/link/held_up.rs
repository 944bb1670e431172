//! How long the sender of a link could not send as it would: held up by its reader, or by the network.

use super::FRAME_DEADLINE;
use std::time::{Duration, Instant};

/// Held up by this node, or in the middle of one frame, for so long: a sender that gives the frame up is not to blame.
const ENOUGH: Duration = Duration::from_secs(2);
/// In the middle of frames for so long altogether: a frame that waited behind them may be given up soon after it begins.
const SLOW: Duration = Duration::from_secs(20);

/// The waits of about the last two deadlines of a frame.
#[derive(Debug)]
pub(super) struct HeldUp {
    by_us: Waits,
    /// In the middle of frames.
    under_way: Waits,
}

#[derive(Debug)]
struct Waits {
    since: Instant,
    now: Duration,
    before: Duration,
}

impl HeldUp {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            by_us: Waits::new(now),
            under_way: Waits::new(now),
        }
    }

    /// Nothing was read from `from` until `until`.
    pub(super) fn by_us(&mut self, from: Instant, until: Instant) {
        self.by_us.add(from, until);
    }

    /// A frame took from `from` until `until` to come.
    pub(super) fn came(&mut self, from: Instant, until: Instant) {
        self.under_way.add(from, until);
    }

    /// Whether the sender of a frame that began at `began` may have given it up at its own deadline: then it is no more to blame
    /// than for a connection that is lost.
    pub(super) fn excuses(&mut self, began: Instant, now: Instant) -> bool {
        let this = now.saturating_duration_since(began);
        this >= ENOUGH || self.by_us.total(now) >= ENOUGH || self.under_way.total(now) + this >= SLOW
    }
}

impl Waits {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            now: Duration::ZERO,
            before: Duration::ZERO,
        }
    }

    fn add(&mut self, from: Instant, until: Instant) {
        self.turn(until);
        self.now += until.saturating_duration_since(from);
    }

    fn total(&mut self, now: Instant) -> Duration {
        self.turn(now);
        self.now + self.before
    }

    fn turn(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        if passed >= FRAME_DEADLINE {
            self.before = if passed < 2 * FRAME_DEADLINE {
                self.now
            } else {
                Duration::ZERO
            };
            self.now = Duration::ZERO;
            self.since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_long_and_lately_excuses_a_sender() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let excuses = |held_up: &mut HeldUp, ms| held_up.excuses(at(ms), at(ms));
        let mut held_up = HeldUp::new(start);
        assert!(!excuses(&mut held_up, 10));
        held_up.by_us(at(10), at(1_900));
        assert!(!excuses(&mut held_up, 1_900));
        // Many short waits are as bad as a long one.
        for i in 0..20 {
            held_up.by_us(at(2_000 + 100 * i), at(2_010 + 100 * i));
        }
        assert!(excuses(&mut held_up, 4_000));
        assert!(excuses(&mut held_up, 70_000), "a frame's deadline ago");
        assert!(!excuses(&mut held_up, 300_000));
    }

    #[test]
    fn a_frame_that_comes_slowly_may_be_given_up() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut held_up = HeldUp::new(start);
        assert!(!held_up.excuses(at(0), at(1_999)));
        assert!(held_up.excuses(at(0), at(2_000)));
        // One that waited behind others has its deadline soon after it begins.
        for i in 0..7 {
            held_up.came(at(8_000 * i), at(8_000 * (i + 1)));
        }
        assert!(held_up.excuses(at(56_000), at(56_100)));
        // On a link whose frames come fast it is not: whoever cuts one off does so on purpose.
        let mut held_up = HeldUp::new(start);
        for i in 0..1_000 {
            held_up.came(at(60 * i), at(60 * i + 10));
        }
        assert!(!held_up.excuses(at(60_000), at(60_100)));
    }
}
