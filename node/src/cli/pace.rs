//! How fast something goes, by what was done since it began; what was there before counts for nothing.

use std::time::Duration;

/// Done a second.
pub(super) fn rate(done: u64, elapsed: Duration) -> f64 {
    done as f64 / elapsed.as_secs_f64().max(0.001)
}

/// The time that `left` takes at the pace so far; nothing while nothing was done.
pub(super) fn time_left(done: u64, left: u64, elapsed: Duration) -> Option<Duration> {
    let seconds = left as f64 / rate(done, elapsed);
    (done > 0).then(|| Duration::from_secs_f64(seconds.min(1e9)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_takes_as_long_as_what_was_done() {
        let ten = Duration::from_secs(10);
        assert_eq!(time_left(10, 40, ten), Some(Duration::from_secs(40)));
        assert_eq!(time_left(0, 40, ten), None);
        assert!(time_left(1, u64::MAX, ten).is_some());
        assert_eq!(time_left(5, 5, Duration::ZERO), Some(Duration::from_millis(1)));
    }
}
