//! The run: rounds, outer steps, metrics, and what is written at the end.

use super::super::output::text;
use super::super::progress::Bar;
use super::checkpoint::Checkpoint;
use crate::files::{self, Access};
use gym_protocol::assignment::{RoundRows, rounds_for_epochs};
use gym_protocol::cbor::sha3_256;
use gym_protocol::ids::{CidBytes, Hash32, Rank};
use gym_protocol::job::spec::JobFile;
use gym_protocol::state::apply_outer;
use gym_training::Device;
use gym_training::adapter::Adapter;
use gym_training::data::{Question, check_disjoint, read_questions};
use gym_training::metrics::{MetricsWriter, read_metrics};
use gym_training::plot::{Labels, Series, write_chart};
use gym_training::reward::Programs;
use gym_training::sampling::RolloutKey;
use gym_training::trainer::{Plan, StepInput, StepReport, Trainer};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A job in training on this machine.
pub(super) struct Run<'a> {
    job: &'a JobFile,
    out: PathBuf,
    trainer: Trainer,
    heldout: Vec<Question>,
    rows: RoundRows,
    key: RolloutKey,
    rounds: u64,
    checkpoint: Checkpoint,
    started: Instant,
}

impl<'a> Run<'a> {
    /// Loads everything and finds where an earlier run stopped.
    pub(super) fn start(
        job: &'a JobFile,
        file: &str,
        base: &Path,
        out: &Path,
        device: &Device,
    ) -> anyhow::Result<Self> {
        let started = Instant::now();
        files::create_dir(out, Access::Everyone)?;
        let train = read_questions(&base.join(&job.train), &job.columns)?;
        let mut heldout = read_questions(&base.join(&job.heldout), &job.columns)?;
        check_disjoint(&train, &heldout)?;
        heldout.truncate(job.schedule.eval_questions as usize);
        let trainer = Trainer::new(plan(job), &base.join(&job.model), device, train)?;
        let questions = trainer.questions() as u64;
        let key = RolloutKey::offline(job.seed);
        let mut run = Self {
            rows: RoundRows::new(&CidBytes::default(), &Hash32(key.beacon), questions),
            rounds: rounds(job, questions),
            checkpoint: fresh(&trainer, sha3_256(&[file.as_bytes()])),
            job,
            out: out.to_path_buf(),
            trainer,
            heldout,
            key,
            started,
        };
        run.resume()?;
        Ok(run)
    }

    fn resume(&mut self) -> anyhow::Result<()> {
        match Checkpoint::load(&self.checkpoint_file(), self.checkpoint.job)? {
            Some(found) => {
                self.trainer.set_flat_adapter(&found.adapter)?;
                self.trainer.set_moments(found.moments.clone())?;
                self.checkpoint = found;
                self.forget_metrics_after(self.checkpoint.rounds)?;
            }
            None => {
                self.forget_metrics_after(0)?;
                self.checkpoint.correct_before = self.correct()?;
                self.checkpoint.save(&self.checkpoint_file())?;
            }
        }
        Ok(())
    }

    /// Trains what is left, then writes adapter and plot; the report.
    pub(super) fn finish(mut self) -> anyhow::Result<Value> {
        let mut metrics = MetricsWriter::open(&self.metrics_file())?;
        let steps = self.rounds * u64::from(self.job.schedule.aggregate_interval);
        let mut bar = Bar::new("steps", steps);
        while self.checkpoint.rounds < self.rounds {
            self.round(&mut metrics, &mut bar)?;
        }
        bar.end();
        self.report()
    }

    /// `aggregate_interval` steps, then the outer step with the one delta there is, then the checkpoint.
    fn round(&mut self, metrics: &mut MetricsWriter, bar: &mut Bar) -> anyhow::Result<()> {
        let interval = self.job.schedule.aggregate_interval;
        let before = self.trainer.flat_adapter().to_vec();
        for local in 0..interval {
            let step = self.checkpoint.rounds * u64::from(interval) + u64::from(local);
            let report = self.step(step)?;
            metrics.append(&record(self.checkpoint.rounds, step, &report))?;
            let reward = report.metrics.get("reward").copied().unwrap_or(f64::NAN);
            bar.at(step + 1, &format!("reward {reward:.3}"));
        }
        let delta: Vec<f32> = self
            .trainer
            .flat_adapter()
            .iter()
            .zip(&before)
            .map(|(a, b)| a - b)
            .collect();
        let stepped = apply_outer(self.job.outer, &before, &self.checkpoint.momentum, &delta)?;
        self.trainer.set_flat_adapter(&stepped.state)?;
        metrics.sync()?;
        self.checkpoint.rounds += 1;
        self.checkpoint.adapter = stepped.state;
        self.checkpoint.momentum = stepped.momentum;
        self.checkpoint.moments = self.trainer.moments().clone();
        self.checkpoint.save(&self.checkpoint_file())?;
        Ok(())
    }

    /// Steps are numbered over all rounds: off the network one key serves the whole run.
    fn step(&mut self, step: u64) -> anyhow::Result<StepReport> {
        let per_step = self.job.gspo.prompts_per_step as usize;
        let skip = usize::try_from(step)?.saturating_mul(per_step);
        let rows: Vec<u64> = self
            .rows
            .of_member(Rank(0), 1)
            .skip(skip)
            .take(per_step)
            .collect();
        let input = StepInput {
            rows: &rows,
            key: &self.key,
            step: u32::try_from(step)?,
        };
        Ok(self.trainer.step(&input)?)
    }

    fn correct(&self) -> anyhow::Result<u64> {
        Ok(self.trainer.evaluate(&self.heldout)?.correct as u64)
    }

    fn report(&self) -> anyhow::Result<Value> {
        let adapter = self.out.join("adapter");
        let tensors = self.trainer.adapter();
        Adapter::new(self.job.lora.clone(), self.job.model.clone(), tensors).save(&adapter)?;
        let plot = self.plot()?;
        let total = self.heldout.len() as u64;
        let share = |correct: u64| {
            if total == 0 {
                0.0
            } else {
                correct as f64 / total as f64
            }
        };
        Ok(json!({
            "accuracy_before": share(self.checkpoint.correct_before),
            "accuracy_after": share(self.correct()?),
            "questions": total,
            "rounds": self.checkpoint.rounds,
            "seconds": self.started.elapsed().as_secs_f64(),
            "adapter": adapter,
            "metrics": self.metrics_file(),
            "plot": plot,
        }))
    }

    fn plot(&self) -> anyhow::Result<PathBuf> {
        let path = self.out.join("reward.png");
        let records: Vec<Value> = read_metrics(&self.metrics_file())?;
        let point = |r: &Value| Some((r.get("step")?.as_f64()?, r.get("reward")?.as_f64()?));
        let series = Series {
            name: "reward".to_owned(),
            points: records.iter().filter_map(point).collect(),
        };
        write_chart(
            &path,
            Labels {
                title: &self.job.name,
                x: "step",
                y: "mean reward",
            },
            &[series],
        )?;
        Ok(path)
    }

    /// Steps that were logged but not checkpointed are taken again.
    fn forget_metrics_after(&self, rounds: u64) -> anyhow::Result<()> {
        let path = self.metrics_file();
        if !path.exists() {
            return Ok(());
        }
        drop(MetricsWriter::open(&path)?); // cuts off a torn last line
        let records: Vec<Value> = read_metrics(&path)?;
        let kept = records
            .iter()
            .filter(|r| r.get("round").and_then(Value::as_u64).is_some_and(|n| n < rounds));
        let text: String = kept.map(|record| format!("{record}\n")).collect();
        Ok(files::write_atomic(&path, text.as_bytes(), Access::Everyone)?)
    }

    fn checkpoint_file(&self) -> PathBuf {
        self.out.join("checkpoint.cbor")
    }

    fn metrics_file(&self) -> PathBuf {
        self.out.join("metrics.jsonl")
    }
}

fn rounds(job: &JobFile, questions: u64) -> u64 {
    let schedule = &job.schedule;
    schedule.rounds.unwrap_or_else(|| {
        let epochs = schedule.epochs.unwrap_or(1.0);
        rounds_for_epochs(
            epochs,
            questions,
            1,
            schedule.aggregate_interval,
            job.gspo.prompts_per_step,
        )
    })
}

fn fresh(trainer: &Trainer, job: Hash32) -> Checkpoint {
    Checkpoint {
        job,
        rounds: 0,
        adapter: trainer.flat_adapter().to_vec(),
        momentum: Vec::new(),
        moments: trainer.moments().clone(),
        correct_before: 0,
    }
}

fn record(round: u64, step: u64, report: &StepReport) -> Value {
    let mut record = json!(report.metrics);
    if let Some(map) = record.as_object_mut() {
        map.insert("round".into(), json!(round));
        map.insert("step".into(), json!(step));
        map.insert("tokens".into(), json!(report.tokens));
    }
    record
}

/// The report for people.
pub(super) fn plain(report: &Value) -> String {
    let percent = |key| report.get(key).and_then(Value::as_f64).unwrap_or(f64::NAN) * 100.0;
    format!(
        "accuracy  {:.1} % before, {:.1} % after, {} held-out questions\nadapter   {}\nmetrics   {}\nplot      {}",
        percent("accuracy_before"),
        percent("accuracy_after"),
        text(report, "questions"),
        text(report, "adapter"),
        text(report, "metrics"),
        text(report, "plot"),
    )
}

/// The job as it is trained here: whoever starts it lets its rewards run programs.
fn plan(job: &JobFile) -> Plan {
    Plan {
        programs: Programs::Allowed,
        ..Plan::from(job)
    }
}
