//! What a job asks for: the job file a person writes (TOML) and the specification that is signed (DAG-CBOR).
//!
//! Defaults are those of PROTOCOL section 5 and TRAINING "GSPO". A [`JobFile`] names a model and question files by
//! path or CID; [`JobFile::resolve`] replaces them with the CIDs under which the content store holds them.

mod check;
mod file;
mod gspo;
mod rollout;
mod rounds;

pub use check::RangeError;
pub use file::{JobFileError, Resolved};
pub use gspo::{GspoSpec, ImportanceSampling, LossType, LrScheduler, ScaleRewards};
pub use rollout::{ColumnsSpec, LoraSpec, RewardSpec, RolloutSpec};
pub use rounds::{DeadlinesSpec, OuterSpec, ScheduleSpec, Wire};

use crate::ids::CidBytes;
use serde::{Deserialize, Serialize};

macro_rules! job_struct {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$fdoc])* pub $field: $ty,)*
            /// A name for people.
            pub name: String,
            /// Seeds the round-0 adapter and the prompt order.
            #[serde(default)]
            pub seed: u64,
            /// Hold frozen linear weights in NF4.
            #[serde(default = "yes", alias = "load_in_4bit")]
            pub use_4bit: bool,
            /// Question-file columns.
            #[serde(default)]
            pub columns: ColumnsSpec,
            /// Reward functions; their weighted sum is the reward.
            pub rewards: Vec<RewardSpec>,
            /// Loss and optimizer.
            #[serde(default)]
            pub gspo: GspoSpec,
            /// Adapter.
            #[serde(default)]
            pub lora: LoraSpec,
            /// Sampling.
            #[serde(default)]
            pub rollout: RolloutSpec,
            /// Rounds, members, deadlines.
            #[serde(default)]
            pub schedule: ScheduleSpec,
            /// Ring precision.
            #[serde(default)]
            pub wire: Wire,
            /// Outer step.
            #[serde(default)]
            pub outer: OuterSpec,
            /// Base units of GYM put up for the job.
            #[serde(default)]
            pub bounty: u64,
        }

        impl $name {
            /// Every value against its bounds, those that a stranger's announcement must keep included.
            ///
            /// # Errors
            /// The first value out of its range, named.
            pub fn check(&self) -> Result<(), RangeError> {
                check::check(&check::Ranged {
                    name: &self.name,
                    columns: &self.columns,
                    rewards: &self.rewards,
                    gspo: &self.gspo,
                    lora: &self.lora,
                    rollout: &self.rollout,
                    schedule: &self.schedule,
                    outer: &self.outer,
                })
            }
        }
    };
}

fn yes() -> bool {
    true
}

job_struct! {
    /// The job file a person writes, TOML.
    JobFile {
        /// A Hugging Face model directory, or its CID.
        model: String,
        /// Training questions: a JSONL or Parquet file, or its CID.
        train: String,
        /// Held-out questions: a JSONL or Parquet file, or its CID.
        heldout: String,
    }
}

job_struct! {
    /// The specification that is signed and announced, DAG-CBOR. A job's id is the CID of this body.
    JobSpec {
        /// The base model's directory.
        base: CidBytes,
        /// The training questions.
        train: CidBytes,
        /// The held-out questions.
        heldout: CidBytes,
    }
}
