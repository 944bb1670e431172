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
    /// The same, ascending.
    sorted: Vec<u64>,
}

/// Durations remembered.
const WINDOW: usize = 64;
/// k: how many median absolute deviations above the median are still on time.
const DEVIATIONS: u64 = 6;

impl Estimate {
    /// Adds a measured duration.
    pub fn add(&mut self, ms: u64) {
        if self.recent.len() == WINDOW
            && let Some(oldest) = self.recent.pop_front()
            && let Ok(at) = self.sorted.binary_search(&oldest)
        {
            self.sorted.remove(at);
        }
        self.recent.push_back(ms);
        self.sorted.insert(self.sorted.partition_point(|v| *v < ms), ms);
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
        let middle = self.sorted.len() / 2;
        let Some(median) = self.sorted.get(middle) else {
            return cap;
        };
        let deviation = self.deviation(*median, middle);
        median
            .saturating_add(DEVIATIONS.saturating_mul(deviation))
            .clamp(floor.min(cap), cap)
    }

    /// The median absolute deviation: the middle one of two ascending runs, away from the median to either side.
    fn deviation(&self, median: u64, middle: usize) -> u64 {
        let (below, above) = self.sorted.split_at(middle);
        let mut below = below.iter().rev().map(|v| median - v).peekable();
        let mut above = above.iter().map(|v| v - median).peekable();
        let mut nearest = || match (below.peek(), above.peek()) {
            (Some(b), Some(a)) if b <= a => below.next(),
            (Some(_), None) => below.next(),
            (_, _) => above.next(),
        };
        (0..=middle).filter_map(|_| nearest()).last().unwrap_or(0)
    }
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

    #[test]
    fn the_deadline_is_median_and_deviations_of_the_last_ones() {
        let mut e = Estimate::default();
        let mut all = Vec::new();
        for i in 0..300u64 {
            let ms = i * i * 7_919 % 1_009;
            e.add(ms);
            all.push(ms);
            let mut recent = all[all.len().saturating_sub(WINDOW)..].to_vec();
            recent.sort_unstable();
            let median = recent[recent.len() / 2];
            let mut away: Vec<u64> = recent.iter().map(|v| v.abs_diff(median)).collect();
            away.sort_unstable();
            let want = median + DEVIATIONS * away[away.len() / 2];
            assert_eq!(e.deadline(0, u64::MAX), want, "after {i}");
        }
    }
}
