//! The job file: read, checked and resolved.

use super::{JobFile, JobSpec, RangeError};
use crate::genesis::Constants;
use crate::ids::CidBytes;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Why a job file is refused. The message names the key and says what it may be.
#[derive(Debug, thiserror::Error)]
pub enum JobFileError {
    /// Not TOML, an unknown key or a wrong type; the source names line and column.
    #[error("the job file does not parse: {0}")]
    Parse(#[from] toml::de::Error),
    /// A value out of its range.
    #[error("job file: {0}")]
    Range(#[from] RangeError),
}

/// The CIDs that stand for a job file's paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Base model directory.
    pub base: CidBytes,
    /// Training questions.
    pub train: CidBytes,
    /// Held-out questions.
    pub heldout: CidBytes,
}

/// What a job file says itself, where a network has a default.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Said {
    schedule: SaidOfSchedule,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SaidOfSchedule {
    redundancy: Option<IgnoredAny>,
}

impl JobFile {
    /// Parses and checks a job file, by the protocol's constants.
    ///
    /// # Errors
    /// An unknown key, a wrong type or a value out of range, named.
    pub fn parse(text: &str) -> Result<Self, JobFileError> {
        Self::parse_in(text, &Constants::default())
    }

    /// Parses and checks a job file that is meant for a network: where it does not say its redundancy, it has the network's.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_in(text: &str, constants: &Constants) -> Result<Self, JobFileError> {
        let mut file: Self = toml::from_str(text)?;
        let said: Said = toml::from_str(text)?;
        if said.schedule.redundancy.is_none() {
            file.schedule.redundancy = constants.redundancy;
        }
        file.check()?;
        Ok(file)
    }

    /// The signed form, with every path replaced.
    #[must_use]
    pub fn resolve(self, cids: Resolved) -> JobSpec {
        JobSpec {
            base: cids.base,
            train: cids.train,
            heldout: cids.heldout,
            name: self.name,
            seed: self.seed,
            use_4bit: self.use_4bit,
            columns: self.columns,
            rewards: self.rewards,
            gspo: self.gspo,
            lora: self.lora,
            rollout: self.rollout,
            schedule: self.schedule,
            wire: self.wire,
            outer: self.outer,
            bounty: self.bounty,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{GspoSpec, LrScheduler};
    use super::*;

    const SMALL: &str = r#"
name = "t"
model = "m"
train = "a.jsonl"
heldout = "b.jsonl"
rewards = [{ name = "numeric" }]
[schedule]
rounds = 2
"#;

    #[test]
    fn defaults_are_the_protocols() {
        let job = JobFile::parse(SMALL).unwrap();
        assert_eq!(job.gspo.beta, 0.1);
        assert_eq!(job.gspo.group_size, 8);
        assert_eq!(job.schedule.aggregate_interval, 50);
        assert!(job.use_4bit);
        assert_eq!(job.gspo.epsilons(), (3e-4, 4e-4));
    }

    #[test]
    fn a_job_that_says_no_redundancy_has_the_networks() {
        let constants = Constants {
            redundancy: 3,
            ..Constants::default()
        };
        let redundancy = |text: &str| JobFile::parse_in(text, &constants).unwrap().schedule.redundancy;
        assert_eq!(redundancy(SMALL), 3);
        for said in [0, 1, 2] {
            assert_eq!(redundancy(&format!("{SMALL}redundancy = {said}\n")), said);
        }
        assert_eq!(
            redundancy(&SMALL.replace("[schedule]\nrounds", "schedule.rounds")),
            3
        );
        assert_eq!(JobFile::parse(SMALL).unwrap().schedule.redundancy, 1);
    }

    #[test]
    fn a_typo_is_named_with_its_line() {
        let text = SMALL.replace("rounds = 2", "roundz = 2");
        let message = JobFile::parse(&text).unwrap_err().to_string();
        assert!(
            message.contains("roundz") && message.contains("line 8"),
            "{message}"
        );
    }

    #[test]
    fn group_size_one_is_refused() {
        let text = format!("{SMALL}[gspo]\ngroup_size = 1\n");
        let message = JobFile::parse(&text).unwrap_err().to_string();
        assert!(message.contains("gspo.group_size is 1"), "{message}");
    }

    #[test]
    fn trl_names_are_aliases() {
        let text = format!("{SMALL}[gspo]\nnum_generations = 4\nepsilon = 0.1\n");
        let job = JobFile::parse(&text).unwrap();
        assert_eq!((job.gspo.group_size, job.gspo.epsilon_low), (4, Some(0.1)));
        let text = format!(
            "load_in_4bit = false\n{SMALL}[gspo]\nlr_scheduler_type = \"cosine\"\ngradient_checkpointing = true\n\
             gradient_accumulation_steps = 2\nmask_truncated_completions = true\nuse_bias_correction_kl = false\n\
             [lora]\nr = 4\nlora_alpha = 8.0\n"
        );
        let job = JobFile::parse(&text).unwrap();
        let gspo = GspoSpec {
            lr_scheduler: LrScheduler::Cosine,
            gradient_checkpointing: true,
            gradient_accumulation_steps: 2,
            mask_truncated: true,
            kl_bias_correction: false,
            ..GspoSpec::default()
        };
        assert_eq!((job.gspo, job.lora.rank, job.use_4bit), (gspo, 4, false));
        let constant = format!("{SMALL}[gspo]\nlr_scheduler_type = \"constant\"\n");
        let constant = JobFile::parse(&constant).unwrap().gspo.lr_scheduler;
        assert_eq!(constant, LrScheduler::ConstantWithWarmup);
    }

    #[test]
    fn parts_that_would_differ_are_refused() {
        let text = format!("{SMALL}[gspo]\nminibatches = 3\n");
        let message = JobFile::parse(&text).unwrap_err().to_string();
        assert!(
            message.contains("gspo.minibatches") && message.contains("divisor"),
            "{message}"
        );
    }
}
