//! Time as the machines see it: milliseconds that the driver counts, real or virtual.

use std::collections::VecDeque;

/// Milliseconds since the driver's own start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// Later by `ms`.
    #[must_use]
    pub fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds since `earlier`, 0 if it is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// When something must have happened, and what it is.
pub type Deadline = (Time, &'static str);

/// The earlier of two deadlines.
#[must_use]
pub fn earlier(a: Option<Deadline>, b: Option<Deadline>) -> Option<Deadline> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if b.0 < a.0 { b } else { a }),
        (a, b) => a.or(b),
    }
}

/// Recent durations of one kind of event; its deadline is median + k·MAD (PROTOCOL section 6, "Failure").
#[derive(Clone, Debug, Default)]
pub struct Estimate {
    recent: VecDeque<u64>,
}

/// Durations remembered.
const WINDOW: usize = 64;
/// k: how many median absolute deviations above the median are still on time.
const DEVIATIONS: u64 = 6;

impl Estimate {
    /// Adds a measured duration.
    pub fn add(&mut self, ms: u64) {
        if self.recent.len() == WINDOW {
            self.recent.pop_front();
        }
        self.recent.push_back(ms);
    }

    /// Durations measured.
    #[must_use]
    pub fn len(&self) -> usize {
        self.recent.len()
    }

    /// Nothing measured yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.recent.is_empty()
    }

    /// median + k·MAD, within \[floor, cap\]; the cap while nothing has been measured.
    #[must_use]
    pub fn deadline(&self, floor: u64, cap: u64) -> u64 {
        if self.recent.is_empty() {
            return cap;
        }
        let median = median(self.recent.iter().copied().collect());
        let deviation = median_of_deviations(&self.recent, median);
        (median + DEVIATIONS * deviation).clamp(floor.min(cap), cap)
    }
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

fn median_of_deviations(values: &VecDeque<u64>, centre: u64) -> u64 {
    median(values.iter().map(|v| v.abs_diff(centre)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_sample_moves_the_deadline_little() {
        let mut e = Estimate::default();
        assert_eq!(e.deadline(10, 1000), 1000);
        for ms in [100, 101, 99, 100, 102, 98] {
            e.add(ms);
        }
        let before = e.deadline(10, 10_000);
        e.add(9_000);
        assert!(e.deadline(10, 10_000) <= before + 12);
        assert_eq!(e.deadline(500, 10_000), 500);
    }
}
