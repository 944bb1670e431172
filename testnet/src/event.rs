//! What nodes tell of a job (`GET /v1/jobs/{id}/events`).

use serde::Deserialize;
use serde_json::{Map, Value};

/// One event.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Event {
    /// Its number on its node.
    pub n: u64,
    /// Milliseconds since the Unix epoch, by the node's clock.
    pub at: u64,
    /// What happened.
    #[serde(flatten)]
    pub kind: Kind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Kind {
    /// Words for people.
    Notice {
        /// The words.
        text: String,
    },
    /// A part of the node does something else now.
    Doing {
        /// `worker` or `orchestrator`.
        role: String,
        /// What.
        doing: String,
        /// In which round.
        round: u64,
    },
    /// A roster was frozen.
    Round {
        /// The round.
        round: u64,
        /// Which try at it.
        attempt: u32,
        /// Members in order.
        members: Vec<String>,
    },
    /// A worker's local step is done.
    Step {
        /// The round.
        round: u64,
        /// The step in it, from 0.
        step: u32,
        /// Steps of a round.
        steps: u32,
        /// TRL's names.
        metrics: Map<String, Value>,
    },
    /// A round was closed.
    Closed(Closed),
    /// A validator reports.
    Report {
        /// Rounds closed before the state that was measured against.
        round: u64,
        /// `delta` or `checkpoint`.
        subject: String,
        /// Whose delta.
        member: Option<String>,
        /// Held-out questions asked.
        questions: u64,
        /// Right answers without the subject.
        correct_before: u64,
        /// Right answers with it.
        correct_after: u64,
    },
    /// A peer broke a rule.
    Offence {
        /// Who.
        peer: String,
        /// Which.
        offence: String,
        /// More, for people.
        detail: String,
    },
    /// The job is over.
    Finished {
        /// `done`, `cancelled` or `failed`.
        standing: String,
        /// Why.
        why: Option<String>,
    },
    /// Something this program does not know.
    #[serde(other)]
    Other,
}

/// A closed round.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Closed {
    /// The round.
    pub round: u64,
    /// The view it closed in.
    pub view: u32,
    /// State after, hexadecimal.
    pub state_hash: String,
    /// Its checkpoint's CID.
    pub checkpoint: String,
    /// Who signed it.
    pub signers: Vec<String>,
    /// Whose deltas are in the sum, in ring order.
    pub members: Vec<String>,
    /// Whose are not.
    pub left_out: Vec<LeftOut>,
    /// Rows and columns, where they were summed in a grid.
    #[serde(default)]
    pub grid: Option<(u32, u32)>,
}

/// A member whose delta is not in the sum.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct LeftOut {
    /// Who.
    pub member: String,
    /// Why.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_are_read_and_unknown_ones_are_passed_over() {
        let read = |value| serde_json::from_value::<Event>(value).unwrap().kind;
        let doing =
            json!({ "n": 1, "at": 2, "kind": "doing", "role": "worker", "doing": "training", "round": 3 });
        assert_eq!(
            read(doing),
            Kind::Doing {
                role: "worker".into(),
                doing: "training".into(),
                round: 3
            }
        );
        assert_eq!(
            read(json!({ "n": 1, "at": 2, "kind": "new", "x": 1 })),
            Kind::Other
        );
        let closed = json!({
            "n": 1, "at": 2, "kind": "closed", "round": 0, "view": 1, "state_hash": "ab", "checkpoint": "c",
            "signers": ["p"], "members": ["p"], "left_out": [{ "member": "q", "reason": "late" }]
        });
        assert!(matches!(read(closed), Kind::Closed(c) if c.left_out[0].reason == "late"));
    }
}
