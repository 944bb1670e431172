//! `sample_job JOB.toml [WORKERS [RATE [SEED]]]`: the sample job's rounds in one process: every worker's local steps
//! one after another, then the plain average. What the network does, without the network; for tuning.

use burn::tensor::Device;
use gym_protocol::assignment::RoundRows;
use gym_protocol::ids::{CidBytes, Hash32, Rank};
use gym_protocol::job::spec::JobFile;
use gym_training::data::{Question, check_disjoint, read_questions};
use gym_training::eval::Answers;
use gym_training::optim::Moments;
use gym_training::sampling::RolloutKey;
use gym_training::trainer::{Plan, StepInput, Trainer};
use std::path::Path;
use std::time::Instant;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let path = arguments
        .first()
        .ok_or("usage: sample_job JOB.toml [WORKERS [RATE [SEED]]]")?;
    let mut job = JobFile::parse(&std::fs::read_to_string(path)?)?;
    let workers: u32 = arguments.get(1).map_or(Ok(4), |n| n.parse())?;
    if let Some(rate) = arguments.get(2) {
        job.gspo.learning_rate = rate.parse()?;
    }
    if let Some(seed) = arguments.get(3) {
        job.seed = seed.parse()?;
    }
    Run::start(&job, Path::new(path).parent().unwrap_or(Path::new("")), workers)?.rounds()
}

struct Run<'a> {
    job: &'a JobFile,
    trainer: Trainer,
    moments: Vec<Moments>,
    heldout: Vec<Question>,
    started: Instant,
}

impl<'a> Run<'a> {
    fn start(job: &'a JobFile, folder: &Path, workers: u32) -> Result<Self, Failure> {
        let train = read_questions(&folder.join(&job.train), &job.columns)?;
        let heldout = read_questions(&folder.join(&job.heldout), &job.columns)?;
        check_disjoint(&train, &heldout)?;
        let trainer = Trainer::new(Plan::from(job), &folder.join(&job.model), &Device::flex(), train)?;
        let zeros = Moments::zeros(trainer.flat_adapter().len());
        Ok(Self {
            job,
            moments: vec![zeros; workers as usize],
            trainer,
            heldout,
            started: Instant::now(),
        })
    }

    fn rounds(mut self) -> Result<(), Failure> {
        self.evaluate(0)?;
        for round in 0..self.job.schedule.rounds.unwrap_or(1) {
            self.round(round)?;
            self.evaluate(round + 1)?;
        }
        Ok(())
    }

    /// θ' = mean over workers of θ after their local steps.
    fn round(&mut self, round: u64) -> Result<(), Failure> {
        let start = self.trainer.flat_adapter().to_vec();
        let mut sum = vec![0f32; start.len()];
        let workers = self.moments.len() as u32;
        for rank in 0..workers {
            self.trainer.set_flat_adapter(&start)?;
            self.trainer.set_moments(self.moments[rank as usize].clone())?;
            self.local_steps(round, rank, workers)?;
            self.moments[rank as usize] = self.trainer.moments().clone();
            sum.iter_mut()
                .zip(self.trainer.flat_adapter())
                .for_each(|(s, v)| *s += v);
        }
        sum.iter_mut().for_each(|s| *s /= workers as f32);
        Ok(self.trainer.set_flat_adapter(&sum)?)
    }

    fn local_steps(&mut self, round: u64, rank: u32, workers: u32) -> Result<(), Failure> {
        let mut beacon = [0u8; 32];
        beacon[..8].copy_from_slice(&round.to_le_bytes());
        beacon[8..16].copy_from_slice(&self.job.seed.to_le_bytes());
        let rows = RoundRows::new(
            &CidBytes::default(),
            &Hash32(beacon),
            self.trainer.questions() as u64,
        );
        let mut rows = rows.of_member(Rank(rank), workers);
        let key = RolloutKey {
            job: Vec::new(),
            beacon,
            roster_index: rank,
        };
        let (mut rewards, mut lengths) = (Vec::new(), Vec::new());
        for step in 0..self.job.schedule.aggregate_interval {
            let prompts = self.job.gspo.prompts_per_step as usize;
            let rows: Vec<u64> = rows.by_ref().take(prompts).collect();
            let report = self.trainer.step(&StepInput {
                rows: &rows,
                key: &key,
                step,
            })?;
            rewards.push(report.metrics.get("reward").copied().unwrap_or(f64::NAN));
            lengths.push(
                report
                    .metrics
                    .get("completions/mean_length")
                    .copied()
                    .unwrap_or(f64::NAN),
            );
        }
        let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
        eprintln!(
            "  round {round} worker {rank}: reward {:.3} length {:.1}",
            mean(&rewards),
            mean(&lengths)
        );
        Ok(())
    }

    fn evaluate(&self, round: u64) -> Result<(), Failure> {
        let report = self
            .trainer
            .evaluate(&self.heldout, Answers::Greedy, &mut |_| ())?;
        eprintln!(
            "after {round} rounds: accuracy {:.4} ({} of {}), length {:.1}, {:.0} s",
            report.accuracy(),
            report.correct(),
            report.answers.len(),
            report.mean_length(),
            self.started.elapsed().as_secs_f64()
        );
        Ok(())
    }
}
