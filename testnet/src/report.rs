//! What a run ended in, for people and for programs.

use crate::board::{Board, Evaluation};
use crate::bytes::{Sent, theory};
use crate::folder::RunFolder;
use crate::job::Job;
use crate::network::Network;
use anyhow::Context;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The result of a run. The names are the keys of `--json`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// The job's id.
    pub(crate) job: String,
    /// Its seed.
    pub(crate) seed: u64,
    /// Rounds closed.
    pub(crate) rounds: u64,
    /// Held-out questions asked.
    pub(crate) questions: u64,
    /// Share of them that the base answers rightly, by greedy decoding.
    pub(crate) accuracy_before: f64,
    /// The same with the last checkpoint.
    pub(crate) accuracy_after: f64,
    /// `accuracy_after` − `accuracy_before`.
    pub(crate) gain: f64,
    /// Of the gain, the two measurements taken as independent.
    pub(crate) standard_error: f64,
    /// Members of the last round's sum.
    pub(crate) members: usize,
    /// How many of them signed its state hash.
    pub(crate) signers: usize,
    /// The last state, hexadecimal.
    pub(crate) state_hash: String,
    /// Its checkpoint.
    pub(crate) checkpoint_cid: String,
    /// Adapter parameters.
    pub(crate) elements: usize,
    /// Ring payload with hop signatures and sealing that each worker sent, counted at the stream, in the workers' order.
    pub(crate) bytes_sent_per_worker: Vec<u64>,
    /// Ring payload that each had to send, without sealing.
    pub(crate) bytes_theory: Vec<u64>,
    /// Everything that each worker's links counted, by worker.
    pub(crate) links: BTreeMap<String, Sent>,
    /// Wall-clock seconds, from the first process to the last evaluation.
    pub(crate) seconds: f64,
    /// Processor seconds of all processes.
    pub(crate) cpu_seconds: f64,
    /// The reward plot.
    pub(crate) plot: PathBuf,
    /// Steps, rounds and reports, one JSON object a line.
    pub(crate) metrics: PathBuf,
    /// Every node's log.
    pub(crate) logs: BTreeMap<String, PathBuf>,
}

/// What a report is made from besides the board.
pub(crate) struct Facts<'a> {
    pub(crate) id: String,
    pub(crate) job: &'a Job,
    pub(crate) network: &'a Network,
    /// From the job's summary.
    pub(crate) elements: usize,
    pub(crate) sent: BTreeMap<String, Sent>,
    pub(crate) seconds: f64,
}

impl Report {
    /// `cpu_seconds` is filled in when all processes have ended.
    pub(crate) fn new(board: &Board, facts: Facts<'_>) -> anyhow::Result<Self> {
        let last = board.last().context("no round was closed")?;
        let evaluation = board
            .evaluation
            .context("the validator has not evaluated the last checkpoint")?;
        let (accuracy_before, accuracy_after) = evaluation.accuracies();
        let Facts {
            id,
            job,
            network,
            elements,
            sent,
            seconds,
        } = facts;
        let theory_of = |peer: &str| theory(job.file.wire, elements, peer, board.closed.values());
        let folder: &RunFolder = network.folder();
        Ok(Self {
            job: id,
            seed: job.file.seed,
            rounds: board.closed.len() as u64,
            questions: evaluation.questions,
            accuracy_before,
            accuracy_after,
            gain: accuracy_after - accuracy_before,
            standard_error: evaluation.standard_error(),
            members: last.members.len(),
            signers: last.signers.len(),
            state_hash: last.state_hash.clone(),
            checkpoint_cid: last.checkpoint.clone(),
            elements,
            bytes_sent_per_worker: network
                .workers()
                .map(|w| sent.get(w.name()).map_or(0, |s| s.ring))
                .collect(),
            bytes_theory: network.workers().map(|w| theory_of(w.peer())).collect(),
            links: sent,
            seconds,
            cpu_seconds: 0.0,
            plot: folder.plot(),
            metrics: folder.metrics(),
            logs: network
                .nodes()
                .iter()
                .map(|n| (n.name().to_owned(), n.home().log()))
                .collect(),
        })
    }

    /// For people.
    pub(crate) fn summary(&self) -> String {
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let mut lines = vec![
            format!(
                "accuracy    {} before, {} after on {} held-out questions: {:+.1} points (standard error {:.1})",
                percent(self.accuracy_before),
                percent(self.accuracy_after),
                self.questions,
                100.0 * self.gain,
                100.0 * self.standard_error,
            ),
            format!(
                "state       {}, signed by {} of {} members",
                self.state_hash, self.signers, self.members
            ),
            format!(
                "checkpoint  {} after {} {}",
                self.checkpoint_cid,
                self.rounds,
                if self.rounds == 1 { "round" } else { "rounds" }
            ),
            format!(
                "time        {:.0} s, {:.0} CPU-seconds of all processes",
                self.seconds, self.cpu_seconds
            ),
        ];
        let ring = self
            .links
            .keys()
            .zip(&self.bytes_sent_per_worker)
            .zip(&self.bytes_theory);
        lines.extend(ring.map(|((name, sent), theory)| {
            let over = if *theory == 0 {
                0.0
            } else {
                100.0 * (*sent as f64 / *theory as f64 - 1.0)
            };
            format!("{name:11} sent {sent} bytes in the ring, {theory} in theory ({over:+.3} % for sealing and hop signatures)")
        }));
        lines.push(format!("plot        {}", self.plot.display()));
        lines.push(format!("metrics     {}", self.metrics.display()));
        lines.extend(
            self.logs
                .iter()
                .map(|(name, log)| format!("log         {name}: {}", log.display())),
        );
        lines.join("\n")
    }
}

impl Evaluation {
    fn accuracies(self) -> (f64, f64) {
        let questions = self.questions.max(1) as f64;
        (self.before as f64 / questions, self.after as f64 / questions)
    }

    /// √(p(1−p)/n + q(1−q)/n).
    fn standard_error(self) -> f64 {
        let (before, after) = self.accuracies();
        ((before * (1.0 - before) + after * (1.0 - after)) / self.questions.max(1) as f64).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_error_is_the_binomial_one() {
        let evaluation = Evaluation {
            questions: 500,
            before: 250,
            after: 250,
        };
        assert!((evaluation.standard_error() - (0.5f64 / 500.0).sqrt()).abs() < 1e-12);
        let certain = Evaluation {
            questions: 500,
            before: 0,
            after: 500,
        };
        assert_eq!(
            (certain.accuracies(), certain.standard_error()),
            ((0.0, 1.0), 0.0)
        );
    }
}
