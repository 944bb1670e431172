//! The job file: read, checked and resolved.

use super::{JobFile, JobSpec};
use crate::ids::CidBytes;

/// Why a job file is refused. The message names the key and says what it may be.
#[derive(Debug, thiserror::Error)]
pub enum JobFileError {
    /// Not TOML, an unknown key or a wrong type; the source names line and column.
    #[error("the job file does not parse: {0}")]
    Parse(#[from] toml::de::Error),
    /// A value out of its range.
    #[error("job file: {key} is {got}; it must be {must}")]
    Range {
        /// The key, dotted.
        key: &'static str,
        /// What the file says.
        got: String,
        /// What is allowed.
        must: &'static str,
    },
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

impl JobFile {
    /// Parses and checks a job file.
    ///
    /// # Errors
    /// An unknown key, a wrong type or a value out of range, named.
    pub fn parse(text: &str) -> Result<Self, JobFileError> {
        let file: Self = toml::from_str(text)?;
        file.check()?;
        Ok(file)
    }

    fn check(&self) -> Result<(), JobFileError> {
        let range = |ok: bool, key, got: String, must| {
            if ok {
                Ok(())
            } else {
                Err(JobFileError::Range { key, got, must })
            }
        };
        let s = &self.schedule;
        let g = &self.gspo;
        let r = &self.rollout;
        range(
            !self.name.is_empty() && self.name.len() <= 128,
            "name",
            format!("{:?}", self.name),
            "1 to 128 bytes",
        )?;
        range(
            s.rounds.is_some() != s.epochs.is_some(),
            "schedule.rounds / schedule.epochs",
            format!("{:?} / {:?}", s.rounds, s.epochs),
            "exactly one of the two",
        )?;
        range(s.rounds != Some(0), "schedule.rounds", "0".into(), "at least 1")?;
        range(
            s.epochs.is_none_or(|e| e.is_finite() && e > 0.0),
            "schedule.epochs",
            format!("{:?}", s.epochs),
            "above 0",
        )?;
        range(
            s.min_workers >= 1,
            "schedule.min_workers",
            s.min_workers.to_string(),
            "at least 1",
        )?;
        range(
            s.max_workers >= s.min_workers && s.max_workers <= 4096,
            "schedule.max_workers",
            s.max_workers.to_string(),
            "at least min_workers and at most 4096",
        )?;
        range(
            s.aggregate_interval >= 1,
            "schedule.aggregate_interval",
            "0".into(),
            "at least 1",
        )?;
        range(
            s.redundancy <= 8,
            "schedule.redundancy",
            s.redundancy.to_string(),
            "at most 8",
        )?;
        range(
            (0.0..=1.0).contains(&s.validator_sampling),
            "schedule.validator_sampling",
            s.validator_sampling.to_string(),
            "0 to 1",
        )?;
        range(
            (2..=1024).contains(&g.group_size),
            "gspo.group_size",
            g.group_size.to_string(),
            "2 to 1024: one completion has nothing to be compared with",
        )?;
        range(
            (1..=4096).contains(&g.prompts_per_step),
            "gspo.prompts_per_step",
            g.prompts_per_step.to_string(),
            "1 to 4096",
        )?;
        range(
            g.num_iterations >= 1,
            "gspo.num_iterations",
            "0".into(),
            "at least 1",
        )?;
        range(g.minibatches >= 1, "gspo.minibatches", "0".into(), "at least 1")?;
        range(
            g.gradient_accumulation_steps >= 1,
            "gspo.gradient_accumulation_steps",
            "0".into(),
            "at least 1",
        )?;
        let parts = u64::from(g.minibatches) * u64::from(g.gradient_accumulation_steps);
        range(
            g.rollout_rows().is_multiple_of(parts),
            "gspo.minibatches × gspo.gradient_accumulation_steps",
            parts.to_string(),
            "a divisor of group_size × prompts_per_step, so that all parts are equal",
        )?;
        let positive = |v: f64| v.is_finite() && v > 0.0;
        range(
            positive(g.learning_rate),
            "gspo.learning_rate",
            g.learning_rate.to_string(),
            "above 0",
        )?;
        range(
            g.beta.is_finite() && g.beta >= 0.0,
            "gspo.beta",
            g.beta.to_string(),
            "0 or above",
        )?;
        range(
            positive(g.max_grad_norm),
            "gspo.max_grad_norm",
            g.max_grad_norm.to_string(),
            "above 0",
        )?;
        range(
            positive(r.temperature),
            "rollout.temperature",
            r.temperature.to_string(),
            "above 0",
        )?;
        range(
            r.top_p > 0.0 && r.top_p <= 1.0,
            "rollout.top_p",
            r.top_p.to_string(),
            "above 0, at most 1",
        )?;
        range(
            (0.0..=1.0).contains(&r.min_p),
            "rollout.min_p",
            r.min_p.to_string(),
            "0 to 1",
        )?;
        range(
            r.max_completion_length >= 1,
            "rollout.max_completion_length",
            "0".into(),
            "at least 1",
        )?;
        range(
            (1..=1024).contains(&self.lora.rank),
            "lora.rank",
            self.lora.rank.to_string(),
            "1 to 1024",
        )?;
        range(
            positive(self.lora.alpha),
            "lora.alpha",
            self.lora.alpha.to_string(),
            "above 0",
        )?;
        range(
            !self.lora.target_modules.is_empty(),
            "lora.target_modules",
            "[]".into(),
            "names, or [\"all-linear\"]",
        )?;
        range(
            !self.rewards.is_empty(),
            "rewards",
            "[]".into(),
            "at least one reward function",
        )?;
        Ok(())
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
