//! How much may be asked of a peer at once.

use std::time::{Duration, Instant};

use crate::content::bitswap::MAX_WANTS;

const START: u64 = 2 << 20;
const MIN: u64 = 1 << 20;
const MAX: u64 = 8 << 20;
/// Blocks are taken for the largest usual chunks until some have come: Helia sends nothing at all when more than its largest
/// message, 4 MiB, is asked of it at once.
const START_BLOCK: u64 = 1 << 20;
const SAMPLE: Duration = Duration::from_millis(100);

/// Outstanding bytes follow twice the product of rate and least delay, between 1 and 8 MiB, so that a peer neither
/// idles nor holds what others could bring.
#[derive(Debug, Clone)]
pub(super) struct Window {
    bytes: u64,
    /// Moving average of block sizes, quick to rise, to count wants in bytes before their sizes are known.
    block: u64,
    least: Option<Least>,
    rate: f64,
    sampled: u64,
    since: Instant,
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
            block: START_BLOCK,
            least: None,
            rate: 0.0,
            sampled: 0,
            since: now,
        }
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
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed >= SAMPLE {
            let sample = self.sampled as f64 / elapsed.as_secs_f64();
            self.rate = if self.rate == 0.0 {
                sample
            } else {
                0.75 * self.rate + 0.25 * sample
            };
            (self.sampled, self.since) = (0, now);
            self.resize();
        }
    }

    /// After a stall the peer is asked for little.
    pub(super) fn shrink(&mut self) {
        self.bytes = MIN;
        self.rate = 0.0;
    }

    /// How many blocks may be outstanding.
    pub(super) fn blocks(&self) -> usize {
        let count = self.bytes / self.block.max(1);
        usize::try_from(count).unwrap_or(MAX_WANTS).clamp(1, MAX_WANTS)
    }

    fn resize(&mut self) {
        let delay = self.least.map_or(0.0, |least| least.delay.as_secs_f64());
        self.bytes = ((2.0 * self.rate * delay) as u64).clamp(MIN, MAX);
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

    #[test]
    fn it_follows_the_bandwidth_delay_product() {
        let short = after(10e6, Duration::from_millis(1), 256 << 10);
        assert_eq!(short.blocks(), 4);
        let long = after(20e6, Duration::from_millis(100), 256 << 10);
        assert!((14..=16).contains(&long.blocks()), "{}", long.blocks());
        let longest = after(200e6, Duration::from_millis(200), 256 << 10);
        assert_eq!(longest.blocks(), 32);
    }

    #[test]
    fn quick_small_blocks_do_not_narrow_it_for_large_ones() {
        let mut window = after(20e6, Duration::from_millis(1), 100);
        let (start, rate) = (Instant::now() + Duration::from_secs(60), 20e6);
        for index in 1..60_u32 {
            let now = start + Duration::from_secs_f64(f64::from(index << 20) / rate);
            window.on_block(now, 1 << 20, Duration::from_millis(150));
        }
        assert!((4..=6).contains(&window.blocks()), "{}", window.blocks());
    }

    #[test]
    fn small_blocks_are_asked_for_by_the_thousand() {
        assert_eq!(after(1e6, Duration::from_millis(1), 500).blocks(), MAX_WANTS);
    }
}
