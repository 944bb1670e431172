//! The run: steps, evaluations, saves, and what is written at the end.

use super::super::output::{complain, text};
use super::super::progress::Bar;
use super::Args;
use super::checkpoint::Checkpoint;
use super::completions::Sheet;
use super::dry_run;
use super::log::{ACCURACY, Log, forget_after};
use super::setup::Setup;
use crate::files::{self, Access};
use anyhow::Context as _;
use gym_protocol::assignment::RoundRows;
use gym_protocol::ids::{CidBytes, Hash32, Rank};
use gym_training::adapter::Adapter;
use gym_training::device::Chosen;
use gym_training::eval::{Answers, Evaluation, ks};
use gym_training::metrics::MetricsWriter;
use gym_training::plot::{Labels, Series, write_chart};
use gym_training::sampling::RolloutKey;
use gym_training::trainer::{Outcome, Rollout, StepError, StepInput, StepReport, Trainer};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A job in training on this machine.
pub(super) struct Run<'a> {
    setup: &'a Setup,
    args: &'a Args,
    trainer: Trainer,
    rows: RoundRows,
    key: RolloutKey,
    step: u64,
    log: Log,
    started: Instant,
    /// Reasons why rewards could not be had, each said once.
    told: BTreeSet<String>,
}

impl<'a> Run<'a> {
    /// Loads everything and finds where an earlier run stopped.
    pub(super) fn start(setup: &'a Setup, args: &'a Args, chosen: &Chosen) -> anyhow::Result<Self> {
        let started = Instant::now();
        files::create_dir(&args.out, Access::Everyone)?;
        let found = Checkpoint::load(&state_file(&args.out), setup.identity)?;
        anyhow::ensure!(
            args.resume || found.is_none(),
            "{} holds a run: give --resume to go on with it, or another --out",
            args.out.display()
        );
        complain(&format!("device: {}", chosen.why));
        setup.notes().into_iter().for_each(complain);
        let mut trainer = load(setup, args, chosen)?;
        if let Some(found) = &found {
            trainer.set_flat_adapter(&found.adapter)?;
            trainer.set_moments(found.moments.clone())?;
        }
        let key = RolloutKey::offline(setup.job.seed);
        let kept = found.map(|found| found.step);
        forget_after(&args.out.join("completions.jsonl"), kept)?;
        Ok(Self {
            rows: RoundRows::new(
                &CidBytes::default(),
                &Hash32(key.beacon),
                setup.train.len() as u64,
            ),
            log: Log::open(&args.out, kept)?,
            step: kept.unwrap_or(0),
            setup,
            args,
            trainer,
            key,
            started,
            told: BTreeSet::new(),
        })
    }

    /// Trains what is left; the report.
    pub(super) fn finish(mut self) -> anyhow::Result<Value> {
        if self.step == 0 {
            self.evaluated()?;
        }
        let steps = self.setup.steps;
        let mut bar = Bar::resumed("steps", self.step, steps);
        while self.step < steps {
            let report = self.one_step(&mut bar)?;
            self.log.add(self.step, numbers(&report, self.epoch()))?;
            let shown = |name| report.metrics.get(name).copied().unwrap_or(f64::NAN);
            bar.at(
                self.step,
                &format!("reward {:.3} loss {:.4}", shown("reward"), shown("loss")),
            );
            self.tell_unscored(&report, &bar);
            self.look_in(&report, &mut bar)?;
        }
        bar.end();
        self.report()
    }

    /// Completions without a reward train nothing: a program that does not start would pass for a run that learns
    /// nothing.
    fn tell_unscored(&mut self, report: &StepReport, bar: &Bar) {
        for (name, count) in &report.metrics {
            let Some(reason) = name.strip_prefix("rewards/unscored/") else {
                continue;
            };
            if *count > 0.0 && self.told.insert(reason.to_owned()) {
                let (step, all) = (self.step, report.rollouts.len());
                bar.aside(&format!(
                    "step {step}: {count} of {all} completions have no reward and train nothing: {reason}"
                ));
            }
        }
    }

    /// What is due after a step: completions, evaluation, save. A skipped step changed nothing and saves nothing: the
    /// adapters of better times are kept, and a continued run meets the same step again.
    fn look_in(&mut self, report: &StepReport, bar: &mut Bar) -> anyhow::Result<()> {
        let (step, last) = (self.step, self.step == self.setup.steps);
        let due = |every: Option<u64>| every.is_some_and(|every| step.is_multiple_of(every));
        if due(self.args.log_completions) {
            let sheet = Sheet::of(&self.trainer, report, step, self.args.completions);
            let mut file = MetricsWriter::open(&self.args.out.join("completions.jsonl"))?;
            sheet
                .records()
                .iter()
                .try_for_each(|record| file.append(record))?;
            bar.aside(&sheet.table());
        }
        if last || due(self.args.eval_every) {
            self.evaluated()?;
        }
        let interval = u64::from(self.setup.job.schedule.aggregate_interval);
        let changed = report.outcome == Outcome::Updated;
        if last || changed && due(self.args.save_every.or(Some(interval))) {
            self.save()?;
        }
        Ok(())
    }

    fn one_step(&mut self, bar: &mut Bar) -> anyhow::Result<StepReport> {
        let per_step = self.setup.job.gspo.prompts_per_step as usize;
        let skip = usize::try_from(self.step)?.saturating_mul(per_step);
        let rows: Vec<u64> = self
            .rows
            .of_member(Rank(0), 1)
            .skip(skip)
            .take(per_step)
            .collect();
        let input = StepInput {
            rows: &rows,
            key: &self.key,
            step: u32::try_from(self.step)?,
        };
        let taken = self.trainer.step(&input);
        self.step += 1;
        match taken {
            Ok(report) => {
                if let Outcome::Skipped { what, .. } = report.outcome {
                    let kept = self.keep_bad_batch(&report.rollouts)?;
                    bar.aside(&format!("step {} is skipped: non-finite {what}{kept}", self.step));
                }
                Ok(report)
            }
            Err(error) => {
                if let StepError::TooManyBadSteps { rollouts, .. } = &error {
                    let kept = self.keep_bad_batch(rollouts)?;
                    let stopped = format!("training stopped at step {}{kept}", self.step);
                    return Err(anyhow::Error::new(error).context(stopped));
                }
                Err(error.into())
            }
        }
    }

    /// Writes a batch that was not finite for inspection, and says where.
    fn keep_bad_batch(&self, rollouts: &[Rollout]) -> anyhow::Result<String> {
        if rollouts.is_empty() {
            return Ok(String::new());
        }
        let path = self.args.out.join(format!("bad-batch-{}.jsonl", self.step));
        let lines: Vec<String> = rollouts
            .iter()
            .map(|rollout| serde_json::to_string(rollout).map(|line| line + "\n"))
            .collect::<Result<_, _>>()?;
        files::write_atomic(&path, lines.concat().as_bytes(), Access::Everyone)?;
        Ok(format!("; its batch is in {}", path.display()))
    }

    /// Passes over the questions so far.
    fn epoch(&self) -> f64 {
        let drawn = self.step as f64 * f64::from(self.setup.job.gspo.prompts_per_step);
        drawn / self.setup.train.len().max(1) as f64
    }

    fn evaluated(&mut self) -> anyhow::Result<()> {
        let step = self.step;
        self.evaluate()
            .with_context(|| format!("held-out questions after step {step}"))
    }

    /// Held-out pass@1 and pass@k at this step, unless they are in the log already.
    fn evaluate(&mut self) -> anyhow::Result<()> {
        let heldout = &self.setup.heldout;
        if heldout.is_empty() || self.log.has_evaluation(self.step) {
            return Ok(());
        }
        let greedy = self.trainer.evaluate(heldout, Answers::Greedy, &mut |_| ())?;
        let samples = self.args.eval_samples;
        let passes = if samples > 1 {
            let drawn = Answers::Sampled {
                samples,
                seed: self.setup.job.seed,
                filters: (&self.setup.job.rollout).into(),
            };
            passes(&self.trainer.evaluate(heldout, drawn, &mut |_| ())?, samples)
        } else {
            passes(&greedy, 1)
        };
        let mut numbers = vec![
            (ACCURACY, greedy.accuracy()),
            ("eval_reward", greedy.mean_reward()),
            ("eval_completions/mean_length", greedy.mean_length()),
            ("eval_completions/clipped_ratio", greedy.truncated()),
        ];
        numbers.extend(passes.iter().map(|(name, share)| (name.as_str(), *share)));
        self.log.add(self.step, numbers)
    }

    /// First the state, which a continued run starts from; then the adapter for other programs.
    fn save(&self) -> anyhow::Result<()> {
        self.log.sync()?;
        let state = Checkpoint {
            job: self.setup.identity,
            step: self.step,
            adapter: self.trainer.flat_adapter().to_vec(),
            moments: self.trainer.moments().clone(),
        };
        state.save(&state_file(&self.args.out))?;
        self.save_adapter(&self.args.out.join(format!("{CHECKPOINT}{}", self.step)))?;
        forget_old(&self.args.out, self.args.save_limit)
    }

    fn save_adapter(&self, dir: &Path) -> anyhow::Result<()> {
        let base = self.setup.model.display().to_string();
        let lora = self.setup.job.lora.clone();
        Ok(Adapter::new(lora, base, self.trainer.adapter()).save(dir)?)
    }

    fn report(&self) -> anyhow::Result<Value> {
        let adapter = self.args.out.join("adapter");
        self.save_adapter(&adapter)?;
        let records = self.log.records()?;
        let accuracies = || records.iter().filter_map(|r| r.get(ACCURACY)?.as_f64());
        Ok(json!({
            "accuracy_before": accuracies().next(),
            "accuracy_after": accuracies().next_back(),
            "questions": self.setup.heldout.len(),
            "steps": self.step,
            "seconds": self.started.elapsed().as_secs_f64(),
            "peak_memory": dry_run::peak_memory(),
            "adapter": adapter,
            "metrics": self.log.path(),
            "plot": self.plot(&records)?,
        }))
    }

    fn plot(&self, records: &[Value]) -> anyhow::Result<PathBuf> {
        let path = self.args.out.join("reward.png");
        let point = |r: &Value| Some((r.get("step")?.as_f64()?, r.get("reward")?.as_f64()?));
        let series = Series {
            name: "reward".to_owned(),
            points: records.iter().filter_map(point).collect(),
        };
        let labels = Labels {
            title: &self.setup.job.name,
            x: "step",
            y: "mean reward",
        };
        write_chart(&path, labels, &[series])?;
        Ok(path)
    }
}

/// The model in training, within the memory that may be used.
fn load(setup: &Setup, args: &Args, chosen: &Chosen) -> anyhow::Result<Trainer> {
    let (plan, model, device, train) = (
        setup.plan.clone(),
        &setup.model,
        &chosen.device,
        setup.train.clone(),
    );
    let mut trainer = match dry_run::budget(setup, args, chosen) {
        Some(budget) => {
            let (trainer, fit) = Trainer::within(budget, plan, model, device, train)?;
            fit.narrowed(budget.bytes).iter().for_each(|said| complain(said));
            trainer
        }
        None => Trainer::new(plan, model, device, train)?,
    };
    if let Some(precision) = args.rollout_precision {
        trainer.sample_in(&setup.model, precision.into())?;
    }
    Ok(trainer)
}

/// What a step's record holds.
fn numbers(report: &StepReport, epoch: f64) -> Vec<(&str, f64)> {
    let mut numbers: Vec<(&str, f64)> = vec![("epoch", epoch)];
    numbers.extend(report.metrics.iter().map(|(name, value)| (name.as_str(), *value)));
    let time = report.time.rollout + report.time.reward + report.time.train;
    numbers.push(("step_time", time.as_secs_f64()));
    numbers
}

/// `eval_pass@k` for 1, 2, 4, … and all samples.
fn passes(evaluation: &Evaluation, samples: u32) -> Vec<(String, f64)> {
    ks(samples)
        .filter_map(|k| Some((format!("eval_pass@{k}"), evaluation.pass_at(k)?)))
        .collect()
}

/// A saved adapter's directory is this and its step.
const CHECKPOINT: &str = "checkpoint-";

fn state_file(out: &Path) -> PathBuf {
    out.join("state.cbor")
}

/// Takes away all but the last `keep` saved adapters.
fn forget_old(out: &Path, keep: usize) -> anyhow::Result<()> {
    let mut saved: Vec<u64> = std::fs::read_dir(out)?
        .filter_map(|entry| {
            entry
                .ok()?
                .file_name()
                .to_str()?
                .strip_prefix(CHECKPOINT)?
                .parse()
                .ok()
        })
        .collect();
    saved.sort_unstable();
    for step in saved.iter().take(saved.len().saturating_sub(keep)) {
        std::fs::remove_dir_all(out.join(format!("{CHECKPOINT}{step}")))?;
    }
    Ok(())
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
