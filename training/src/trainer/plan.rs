//! What a job asks of the trainer.

pub use crate::quant::Quantisation;
use crate::reward::Programs;
use gym_protocol::job::spec::{GspoSpec, JobFile, JobSpec, LoraSpec, RewardSpec, RolloutSpec};

/// The part of a job that training takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Seeds the round-0 adapter.
    pub seed: u64,
    /// Whether frozen weights are quantised.
    pub quantisation: Quantisation,
    /// Reward functions.
    pub rewards: Vec<RewardSpec>,
    /// Whether they may run programs; a plan of a job does not allow it by itself.
    pub programs: Programs,
    /// Loss and optimizer.
    pub gspo: GspoSpec,
    /// Adapter.
    pub lora: LoraSpec,
    /// Sampling.
    pub rollout: RolloutSpec,
    /// Optimizer updates of the whole job, which a falling learning rate needs; `None` where epochs are given, whose
    /// updates depend on how many train.
    pub total_updates: Option<u64>,
}

macro_rules! plan_from {
    ($job:ty) => {
        impl From<&$job> for Plan {
            fn from(job: &$job) -> Self {
                Self {
                    seed: job.seed,
                    quantisation: if job.use_4bit {
                        Quantisation::Nf4
                    } else {
                        Quantisation::None
                    },
                    rewards: job.rewards.clone(),
                    programs: Programs::Refused,
                    gspo: job.gspo.clone(),
                    lora: job.lora.clone(),
                    rollout: job.rollout.clone(),
                    total_updates: job.schedule.rounds.map(|rounds| {
                        let steps = rounds.saturating_mul(job.schedule.aggregate_interval.into());
                        steps.saturating_mul(job.gspo.updates_per_step())
                    }),
                }
            }
        }
    };
}

plan_from!(JobFile);
plan_from!(JobSpec);
