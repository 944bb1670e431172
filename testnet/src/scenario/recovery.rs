//! How long networks took to get over what was done to them.

use super::assets::RING_FLOOR_MS;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};

/// The time from a fault to the close of its round.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovery {
    /// What was done.
    pub fault: String,
    /// Milliseconds from then to the close of the round.
    pub ms: u64,
    /// The view it closed in.
    pub view: u32,
    /// Whether the victim's delta is in the sum.
    pub summed: bool,
}

impl Recovery {
    /// The time in ring deadlines, as they are in view 0.
    #[must_use]
    pub fn deadlines(&self) -> f64 {
        self.ms as f64 / RING_FLOOR_MS as f64
    }

    /// For `--json`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "fault": self.fault,
            "recovery_ms": self.ms,
            "deadlines": self.deadlines(),
            "view": self.view,
            "summed": self.summed,
        })
    }

    /// For people.
    #[must_use]
    pub fn line(&self) -> String {
        let summed = if self.summed { "in the sum" } else { "left out" };
        let (fault, seconds, deadlines) = (&self.fault, self.ms as f64 / 1e3, self.deadlines());
        format!(
            "    {fault:24} closed after {seconds:5.2} s, {deadlines:4.1} deadlines, view {}, {summed}",
            self.view
        )
    }
}

/// What a scenario measured; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Recoveries(Arc<Mutex<Vec<Recovery>>>);

impl Recoveries {
    pub(super) fn add(&self, recovery: Recovery) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(recovery);
    }

    /// All, in order.
    #[must_use]
    pub fn all(&self) -> Vec<Recovery> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
