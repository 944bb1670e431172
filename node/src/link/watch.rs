//! Processor time of work that one thread does without waiting.

use crate::metrics::Metrics;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Began when it was made; must be read on the same thread.
pub(super) struct CpuWatch(Timespec);

impl CpuWatch {
    pub(super) fn start() -> Self {
        Self(clock_gettime(ClockId::ThreadCPUTime))
    }

    /// Adds the time since to a counter of nanoseconds.
    pub(super) fn count(&self, metrics: &Metrics, name: &str) {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        let seconds = now.tv_sec - self.0.tv_sec;
        let nanoseconds = seconds * 1_000_000_000 + (now.tv_nsec - self.0.tv_nsec);
        metrics.add(name, &[], u64::try_from(nanoseconds).unwrap_or(0));
    }
}
