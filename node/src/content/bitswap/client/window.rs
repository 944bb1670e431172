//! How much may be asked of a peer at once.

use std::time::{Duration, Instant};

use crate::content::block::MAX_BLOCK;

const START: u64 = 2 << 20;
const MIN: u64 = 1 << 20;
const MAX: u64 = 8 << 20;
/// Blocks of unknown size are taken for the largest usual chunks until some have come: Helia sends nothing at all when more
/// than its largest message, 4 MiB, is asked of it at once.
const START_BLOCK: u64 = 1 << 20;
const SAMPLE: Duration = Duration::from_millis(100);
/// Work for this long may lie at a peer however near it is: reading, hashing, sealing and opening, at both ends.
const WORK: Duration = Duration::from_millis(20);

/// Outstanding bytes follow twice the product of rate and least delay, between 1 and 8 MiB, so that a peer neither
/// idles nor holds what others could bring.
#[derive(Debug, Clone)]
pub(super) struct Window {
    bytes: u64,
    pace: Pace,
    /// Moving average of block sizes, quick to rise, to count wants in bytes whose sizes are not known.
    block: u64,
    least: Option<Least>,
    rate: f64,
    sampled: u64,
    since: Instant,
}

/// How the window grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// By what arrives, which doubles it in every round trip, until the rate has been measured.
    Doubling,
    Measured,
}

/// The least delay of blocks of about this size: what a peer needs for a small block says nothing of large ones.
#[derive(Debug, Clone, Copy)]
struct Least {
    delay: Duration,
    size: u64,
}

impl Least {
    fn or(self, delay: Duration, size: u64) -> Self {
        if size >= 4 * self.size {
            return Self { delay, size };
        }
        let is_less = delay < self.delay && size >= self.size / 2;
        Self {
            delay: if is_less { delay } else { self.delay },
            size: self.size.max(size),
        }
    }
}

impl Window {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            bytes: START,
            pace: Pace::Doubling,
            block: START_BLOCK,
            least: None,
            rate: 0.0,
            sampled: 0,
            since: now,
        }
    }

    /// Something is asked of a peer that had nothing to do: what it did not send before says nothing of its rate.
    pub(super) fn begin(&mut self, now: Instant) {
        (self.sampled, self.since, self.pace) = (0, now, Pace::Doubling);
    }

    /// Takes note of a block that arrived `delay` after it was asked for.
    pub(super) fn on_block(&mut self, now: Instant, size: u64, delay: Duration) {
        self.block = if size > self.block {
            (self.block + size).div_ceil(2)
        } else {
            (7 * self.block + size) / 8
        };
        self.least = Some(
            self.least
                .map_or(Least { delay, size }, |least| least.or(delay, size)),
        );
        self.sampled += size;
        if self.pace == Pace::Doubling {
            self.bytes = (self.bytes + size).min(MAX);
        }
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed >= SAMPLE {
            let sample = self.sampled as f64 / elapsed.as_secs_f64();
            self.rate = if self.rate == 0.0 {
                sample
            } else {
                0.75 * self.rate + 0.25 * sample
            };
            (self.sampled, self.since, self.pace) = (0, now, Pace::Measured);
            self.resize();
        }
    }

    /// After a stall the peer is asked for little.
    pub(super) fn shrink(&mut self) {
        self.bytes = MIN;
        self.rate = 0.0;
    }

    /// Bytes a second as last measured, 0 if they have not been.
    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    /// How many bytes may be outstanding.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many bytes a block is taken for.
    pub(super) fn expect(&self, declared: Option<u64>) -> u64 {
        declared.unwrap_or(self.block).clamp(1, MAX_BLOCK as u64)
    }

    fn resize(&mut self) {
        let delay = self
            .least
            .map_or(Duration::ZERO, |least| 2 * least.delay)
            .max(WORK);
        self.bytes = ((self.rate * delay.as_secs_f64()) as u64).clamp(MIN, MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(rate: f64, delay: Duration, size: u64) -> Window {
        let start = Instant::now();
        let mut window = Window::new(start);
        for index in 1..200_u32 {
            let now = start + Duration::from_secs_f64(f64::from(index) * size as f64 / rate);
            window.on_block(now, size, delay);
        }
        window
    }

    /// Blocks of the usual size that may be outstanding.
    fn blocks(window: &Window) -> u64 {
        window.bytes() / window.expect(None)
    }

    #[test]
    fn it_follows_the_bandwidth_delay_product() {
        let short = after(10e6, Duration::from_millis(1), 256 << 10);
        assert_eq!(blocks(&short), 4);
        let quick = after(300e6, Duration::from_millis(1), 256 << 10);
        assert!((22..=23).contains(&blocks(&quick)), "{}", blocks(&quick));
        let long = after(20e6, Duration::from_millis(100), 256 << 10);
        assert!((14..=16).contains(&blocks(&long)), "{}", blocks(&long));
        let longest = after(200e6, Duration::from_millis(200), 256 << 10);
        assert_eq!(blocks(&longest), 32);
    }

    #[test]
    fn it_doubles_until_the_rate_is_known_and_again_after_a_pause() {
        let start = Instant::now();
        let mut window = Window::new(start);
        for _ in 0..4 {
            window.on_block(start, 1 << 20, Duration::from_millis(1));
        }
        assert_eq!(window.bytes(), START + (4 << 20));
        // A minute of silence is no rate.
        let later = start + Duration::from_secs(60);
        window.begin(later);
        window.on_block(later, 1 << 20, Duration::from_millis(1));
        assert_eq!(window.bytes(), START + (5 << 20));
        window.on_block(later + SAMPLE, 1 << 20, Duration::from_millis(1));
        assert_eq!(window.bytes(), MIN);
    }

    #[test]
    fn quick_small_blocks_do_not_narrow_it_for_large_ones() {
        let mut window = after(20e6, Duration::from_millis(1), 100);
        let (start, rate) = (Instant::now() + Duration::from_secs(60), 20e6);
        window.begin(start);
        for index in 1..60_u32 {
            let now = start + Duration::from_secs_f64(f64::from(index << 20) / rate);
            window.on_block(now, 1 << 20, Duration::from_millis(150));
        }
        assert!((4..=6).contains(&blocks(&window)), "{}", blocks(&window));
    }

    #[test]
    fn declared_sizes_count_within_reason() {
        let window = Window::new(Instant::now());
        assert_eq!(window.expect(Some(300)), 300);
        assert_eq!(window.expect(Some(u64::MAX)), MAX_BLOCK as u64);
        assert_eq!(window.expect(Some(0)), 1);
    }
}
