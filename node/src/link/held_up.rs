//! How long a link's reader has itself held up its sender.

use super::FRAME_DEADLINE;
use std::time::{Duration, Instant};

/// Held up for so long within a frame's deadline, a sender that gives a frame up is not to blame.
const ENOUGH: Duration = Duration::from_secs(2);

/// The waits of about the last two deadlines of a frame.
#[derive(Debug)]
pub(super) struct HeldUp {
    since: Instant,
    now: Duration,
    before: Duration,
}

impl HeldUp {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            now: Duration::ZERO,
            before: Duration::ZERO,
        }
    }

    /// Nothing was read from `from` until `until`.
    pub(super) fn add(&mut self, from: Instant, until: Instant) {
        self.turn(until);
        self.now += until.saturating_duration_since(from);
    }

    /// Whether the sender could not send for long.
    pub(super) fn is_to_blame(&mut self, now: Instant) -> bool {
        self.turn(now);
        self.now + self.before >= ENOUGH
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
        let mut held_up = HeldUp::new(start);
        assert!(!held_up.is_to_blame(at(10)));
        held_up.add(at(10), at(1_900));
        assert!(!held_up.is_to_blame(at(1_900)));
        // Many short waits are as bad as a long one.
        for i in 0..20 {
            held_up.add(at(2_000 + 100 * i), at(2_010 + 100 * i));
        }
        assert!(held_up.is_to_blame(at(4_000)));
        assert!(held_up.is_to_blame(at(70_000)), "a frame's deadline ago");
        assert!(!held_up.is_to_blame(at(300_000)));
    }
}
