//! Ring, outer step, rounds and their deadlines.

use serde::{Deserialize, Serialize};

/// Precision of the ring's traffic (PROTOCOL section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Wire {
    /// Exact f32 sums in ring order.
    #[default]
    F32,
    /// The same, each hop rounded to bf16.
    Bf16,
    /// Exact integer sums of ±127 under shared block scales.
    Q8,
    /// Exact integer sums of ±7 under shared block scales; the mean travels as q8.
    Q4,
}

impl Wire {
    /// Every precision.
    pub const ALL: [Self; 4] = [Self::F32, Self::Bf16, Self::Q8, Self::Q4];

    /// Its name in job files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Q8 => "q8",
            Self::Q4 => "q4",
        }
    }
}

/// A name that no wire precision has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no wire precision: one of {names}", names = Wire::ALL.map(Wire::name).join(", "))]
pub struct WireNameError(String);

impl std::str::FromStr for Wire {
    type Err = WireNameError;

    fn from_str(name: &str) -> Result<Self, WireNameError> {
        let found = Self::ALL.into_iter().find(|w| w.name() == name);
        found.ok_or_else(|| WireNameError(name.to_owned()))
    }
}

/// The outer step taken with the mean delta.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum OuterSpec {
    /// θ' = θ + mean.
    #[default]
    Average,
    /// SGD with Nesterov momentum on the mean (DiLoCo).
    Nesterov {
        /// Outer learning rate.
        learning_rate: f64,
        /// Momentum factor.
        momentum: f64,
    },
}

/// Deadlines of a round's phases, in milliseconds; each phase ends early when everyone has answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeadlinesSpec {
    /// From announcement to the first roster, once `min_workers` have joined.
    pub recruit_ms: u64,
    /// From the roster to the last commitment.
    pub train_ms: u64,
    /// From a commitment to its receipts, and to the reveal.
    pub commit_ms: u64,
    /// Floor of the wait for one ring step.
    pub ring_floor_ms: u64,
    /// Cap of the wait for one ring step.
    pub ring_cap_ms: u64,
    /// From the end of the ring to the close.
    pub attest_ms: u64,
}

impl Default for DeadlinesSpec {
    fn default() -> Self {
        Self {
            recruit_ms: 30_000,
            train_ms: 1_800_000,
            commit_ms: 60_000,
            ring_floor_ms: 5_000,
            ring_cap_ms: 120_000,
            attest_ms: 60_000,
        }
    }
}

/// How many rounds with how many members.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleSpec {
    /// Rounds to close; exactly one of `rounds` and `epochs` is given.
    pub rounds: Option<u64>,
    /// Passes over the questions; converted to rounds when the roster's size is known.
    pub epochs: Option<f64>,
    /// Local GSPO steps a round.
    pub aggregate_interval: u32,
    /// The job pauses below this many workers.
    pub min_workers: u32,
    /// Joiners beyond this many wait.
    pub max_workers: u32,
    /// Replica holders a commit needs.
    pub redundancy: u32,
    /// Share of committed deltas a validator evaluates, 0 to 1.
    pub validator_sampling: f64,
    /// Held-out questions of an evaluation.
    pub eval_questions: u32,
    /// Phase deadlines.
    pub deadlines: DeadlinesSpec,
}

impl Default for ScheduleSpec {
    fn default() -> Self {
        Self {
            rounds: None,
            epochs: None,
            aggregate_interval: 50,
            min_workers: 2,
            max_workers: 64,
            redundancy: 1,
            validator_sampling: 1.0,
            eval_questions: 500,
            deadlines: DeadlinesSpec::default(),
        }
    }
}
