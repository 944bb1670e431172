//! `command`: a program of the operator's judges completions.
//!
//! It reads one JSON line a sample, `{"prompt", "completion", "answer", "row"}`, until its input ends, and writes one line
//! a sample in the same order: a JSON number, or `null` for no reward. It gets a whole batch at once. If anything about
//! the batch is wrong (an exit code, a line too few or too many, no number, the time), its answers cannot be told apart,
//! and every sample is asked again in a process of its own: what fails then costs that sample alone.
//!
//! The program runs in a process group that is killed when it ends or its time is over, with a short environment and, on
//! Linux, without the network: a seccomp filter refuses every new socket but local ones. Elsewhere, or where the kernel
//! refuses the filter, it runs with the network and a warning says so. It can read and write files as this process can.

mod isolate;
mod process;

use super::{RewardConfigError, RewardFunction, Sample, Unscored};
use gym_protocol::job::spec::RewardSpec;
use isolate::Isolation;
use process::Task;
use serde_json::json;
use std::time::{Duration, Instant};

const SAMPLE_TIMEOUT_MS: u32 = 5_000;
const BATCH_TIMEOUT_MS: u32 = 120_000;

/// A program's number for each completion.
#[derive(Debug)]
pub(super) struct Program {
    program: Vec<String>,
    sample_timeout: Duration,
    batch_timeout: Duration,
    isolation: Isolation,
}

impl Program {
    pub(super) fn new(spec: &RewardSpec) -> Result<Self, RewardConfigError> {
        let program = spec
            .program
            .clone()
            .filter(|p| p.first().is_some_and(|p| !p.is_empty()));
        let program = program.ok_or(RewardConfigError::MissingKey {
            name: "command",
            key: "program",
            example: "program = [\"python3\", \"reward.py\"]",
        })?;
        let timeout = |value: Option<u32>, default: u32| {
            Duration::from_millis(u64::from(value.unwrap_or(default).max(1)))
        };
        Ok(Self {
            program,
            sample_timeout: timeout(spec.sample_timeout_ms, SAMPLE_TIMEOUT_MS),
            batch_timeout: timeout(spec.batch_timeout_ms, BATCH_TIMEOUT_MS),
            isolation: Isolation::probe(),
        })
    }

    fn run(&self, samples: &[Sample<'_>], deadline: Instant) -> Result<Vec<Result<f64, Unscored>>, Unscored> {
        let input: Vec<u8> = samples.iter().flat_map(line).collect();
        process::run(&Task {
            program: &self.program,
            isolation: &self.isolation,
            input,
            answers: samples.len(),
            deadline,
        })
    }
}

impl RewardFunction for Program {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, Unscored> {
        self.run(std::slice::from_ref(sample), Instant::now() + self.sample_timeout)?
            .pop()
            .unwrap_or(Err(Unscored::ProgramSilent))
    }

    fn score_batch(&self, samples: &[Sample<'_>]) -> Vec<Result<f64, Unscored>> {
        let end = Instant::now() + self.batch_timeout;
        if samples.len() > 1 {
            // Half of the time is kept for asking again.
            let together = (self.sample_timeout * samples.len() as u32).min(self.batch_timeout / 2);
            if let Ok(answers) = self.run(samples, Instant::now() + together) {
                return answers;
            }
        }
        let alone = |sample| {
            let deadline = end.min(Instant::now() + self.sample_timeout);
            if Instant::now() >= deadline {
                return Err(Unscored::ProgramTimeout);
            }
            self.run(std::slice::from_ref(sample), deadline)?
                .pop()
                .unwrap_or(Err(Unscored::ProgramSilent))
        };
        samples.iter().map(alone).collect()
    }
}

fn line(sample: &Sample<'_>) -> Vec<u8> {
    let value = json!({
        "prompt": sample.prompt,
        "completion": sample.completion,
        "answer": sample.answer,
        "row": sample.row,
    });
    let mut line = value.to_string().into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests;
