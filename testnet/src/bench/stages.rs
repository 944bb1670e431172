//! Where a member's processor time goes.

use hanzod::metrics::Metrics;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Processor seconds by stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Stages {
    /// Sealing frames.
    pub(super) seal: f64,
    /// Opening them.
    pub(super) open: f64,
    /// Integers: maxima, rounding, adding, packing and unpacking, decoding, residuals; hashing and signing of hops.
    pub(super) quantise: f64,
    /// Floats: weighing, adding, dividing, and checking what came; hashing and signing of hops.
    pub(super) add: f64,
    /// What is left: TLS, yamux, the kernel's sockets, copies, and the tasks between them.
    pub(super) transport: f64,
    /// Not processor time: what of the round's wall time its process did not run.
    pub(super) wait: f64,
}

impl Stages {
    /// As `(name, seconds)`, in the order of the table.
    pub(super) fn named(&self) -> [(&'static str, f64); 6] {
        [
            ("seal", self.seal),
            ("open", self.open),
            ("transport", self.transport),
            ("quantise", self.quantise),
            ("add", self.add),
            ("wait", self.wait),
        ]
    }

    /// The links' part of them so far, from the node's counters.
    pub(super) fn of_links(metrics: &Metrics) -> Self {
        let seconds = |name| metrics.get(name, &[]) as f64 / 1e9;
        Self {
            seal: seconds("gym_link_seal_cpu_nanoseconds_total"),
            open: seconds("gym_link_open_cpu_nanoseconds_total"),
            ..Self::default()
        }
    }
}

/// Processor seconds of this process.
pub(super) fn process_cpu() -> f64 {
    seconds(ClockId::ProcessCPUTime)
}

/// Processor seconds of this thread.
pub(super) fn thread_cpu() -> f64 {
    seconds(ClockId::ThreadCPUTime)
}

fn seconds(clock: ClockId) -> f64 {
    let t = clock_gettime(clock);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}
