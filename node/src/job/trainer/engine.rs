//! The thread itself: one loaded job at a time.

use super::{JobFiles, Machine, Report, Task, TrainTask, rows_of};
use crate::files::{self, Access};
use crate::job::commit::Trained;
use crate::role::Role;
use gym_protocol::ids::CidBytes;
use gym_protocol::job::spec::JobSpec;
use gym_protocol::tensor::TensorSet;
use gym_training::data::{Question, check_disjoint, read_questions};
use gym_training::eval::Answers;
use gym_training::memory::{Budget, Work};
use gym_training::sampling::RolloutKey;
use gym_training::trainer::{Plan, Rollout, StepError, StepInput, StepReport, Trainer};
use serde_json::json;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use tokio::sync::mpsc::Sender;

/// The job that is loaded.
struct Loaded {
    job: CidBytes,
    spec: JobSpec,
    trainer: Trainer,
    heldout: Vec<Question>,
    /// The round-0 adapter, whose B is zero: the base alone.
    zero: TensorSet,
}

/// Takes tasks until the service is gone.
pub(super) fn run(tasks: &Receiver<Task>, machine: &Machine, reports: &Sender<Report>) {
    let mut loaded: Option<Loaded> = None;
    while let Ok(task) = tasks.recv() {
        let report = match task {
            Task::Load { job, spec, files } => load(machine, job, *spec, &files, &mut loaded),
            Task::Train(task) => train(&task, loaded.as_mut(), reports),
            Task::Evaluate {
                job,
                tag,
                adapter,
                questions,
            } => evaluate(job, tag, adapter.as_deref(), questions, loaded.as_mut()),
        };
        if let Some(report) = report
            && reports.blocking_send(report).is_err()
        {
            return;
        }
    }
}

fn load(
    machine: &Machine,
    job: CidBytes,
    spec: JobSpec,
    files: &JobFiles,
    loaded: &mut Option<Loaded>,
) -> Option<Report> {
    // The earlier job's model goes before the next one comes: never two in memory.
    *loaded = None;
    match open(machine, &spec, files) {
        Ok((trainer, heldout)) => {
            let zero = trainer.adapter();
            *loaded = Some(Loaded {
                job: job.clone(),
                spec,
                trainer,
                heldout,
                zero: zero.clone(),
            });
            Some(Report::Loaded { job, adapter: zero })
        }
        Err(why) => Some(Report::Failed {
            job,
            roster: None,
            tag: None,
            why,
        }),
    }
}

fn open(machine: &Machine, spec: &JobSpec, files: &JobFiles) -> Result<(Trainer, Vec<Question>), String> {
    let read = |path| read_questions(path, &spec.columns).map_err(|e| e.to_string());
    let (train, heldout) = (read(&files.train)?, read(&files.heldout)?);
    check_disjoint(&train, &heldout).map_err(|e| e.to_string())?;
    let plan = Plan {
        programs: machine.programs,
        ..Plan::from(spec)
    };
    let asked = heldout.len().min(spec.schedule.eval_questions as usize) as u64;
    let device = &machine.chosen.device;
    let Some(budget) = budget(machine, asked) else {
        let trainer = Trainer::new(plan, &files.base, device, train).map_err(|e| e.to_string())?;
        return Ok((trainer, heldout));
    };
    let (trainer, fit) =
        Trainer::within(budget, plan, &files.base, device, train).map_err(|e| e.to_string())?;
    if let Some(said) = fit.narrowed(budget.bytes) {
        tracing::info!("{said}");
    }
    Ok((trainer, heldout))
}

/// What a job may hold here; `None` where nothing says how much memory there is. Only workers need room for steps.
fn budget(machine: &Machine, heldout: u64) -> Option<Budget> {
    let validates = if machine.roles.has(Role::Validator) {
        heldout
    } else {
        1
    };
    Some(Budget {
        place: machine.chosen.place.into(),
        work: if machine.roles.has(Role::Worker) {
            Work::Training { heldout: validates }
        } else {
            Work::Evaluation { heldout: validates }
        },
        bytes: machine.memory.bytes(machine.chosen.place)?,
    })
}

/// The loaded job, if it is the one asked for.
fn of_job<'a>(loaded: Option<&'a mut Loaded>, job: &CidBytes) -> Result<&'a mut Loaded, String> {
    loaded
        .filter(|l| l.job == *job)
        .ok_or_else(|| "the job's model is not loaded".to_owned())
}

fn train(task: &TrainTask, loaded: Option<&mut Loaded>, reports: &Sender<Report>) -> Option<Report> {
    let failed = |why: String| {
        Some(Report::Failed {
            job: task.job.clone(),
            roster: Some(task.roster),
            tag: None,
            why,
        })
    };
    let loaded = match of_job(loaded, &task.job) {
        Ok(loaded) => loaded,
        Err(why) => return failed(why),
    };
    match steps(task, loaded, reports) {
        Ok(report) => report,
        Err(why) => failed(why),
    }
}

/// `aggregate_interval` steps from the round's adapter; `None` when the result is no longer wanted.
fn steps(task: &TrainTask, loaded: &mut Loaded, reports: &Sender<Report>) -> Result<Option<Report>, String> {
    let trainer = &mut loaded.trainer;
    trainer.set_adapter(&task.adapter).map_err(|e| e.to_string())?;
    let before = trainer.flat_adapter().to_vec();
    let per_round = u64::from(loaded.spec.schedule.aggregate_interval) * loaded.spec.gspo.updates_per_step();
    trainer.set_job_updates(task.round.saturating_mul(per_round));
    let key = RolloutKey {
        job: task.job.as_bytes().to_vec(),
        beacon: task.roster.0,
        roster_index: task.rank,
    };
    let mut trained = Trained::default();
    let mut losses = Vec::new();
    let rows = rows_of(task, &loaded.spec, trainer.questions() as u64);
    for (step, rows) in (0u32..).zip(&rows) {
        if task.cancel.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let input = StepInput {
            rows,
            key: &key,
            step,
        };
        let report = trainer.step(&input).map_err(|e| explain(&e, step, task))?;
        trained.samples += report.rollouts.len() as u64;
        trained.tokens += report.tokens as u64;
        trained.rollouts.extend(rollout_lines(step, &report.rollouts));
        losses.extend(report.metrics.get("loss"));
        let told = Report::Step {
            job: task.job.clone(),
            round: task.round,
            step,
            metrics: metrics_of(&report),
        };
        if reports.blocking_send(told).is_err() {
            return Ok(None);
        }
    }
    trained.loss = losses.iter().sum::<f64>() / losses.len().max(1) as f64;
    let delta = trainer
        .flat_adapter()
        .iter()
        .zip(&before)
        .map(|(after, before)| after - before)
        .collect();
    Ok(Some(Report::Trained {
        job: task.job.clone(),
        roster: task.roster,
        delta,
        trained,
    }))
}

/// What went wrong; a batch that was not finite is kept for inspection.
fn explain(error: &StepError, step: u32, task: &TrainTask) -> String {
    let StepError::TooManyBadSteps { rollouts, .. } = error else {
        return error.to_string();
    };
    let path = &task.bad_batch;
    match files::write_atomic(path, &rollout_lines(step, rollouts), Access::Everyone) {
        Ok(()) => format!("{error}; the last batch is in {}", path.display()),
        Err(e) => format!("{error}; the last batch cannot be kept: {e}"),
    }
}

fn metrics_of(report: &StepReport) -> serde_json::Value {
    let mut metrics = json!(report.metrics);
    let time = report.time.rollout + report.time.reward + report.time.train;
    if let Some(map) = metrics.as_object_mut() {
        map.insert("tokens".into(), json!(report.tokens));
        map.insert("step_time".into(), json!(time.as_secs_f64()));
    }
    metrics
}

/// One JSON line a completion: what a validator needs to check it (PROTOCOL section 7.2).
fn rollout_lines(step: u32, rollouts: &[Rollout]) -> Vec<u8> {
    let mut lines = Vec::new();
    for r in rollouts {
        let line = json!({
            "step": step,
            "row": r.row,
            "sample": r.sample,
            "tokens": r.tokens,
            "log_probs": r.log_probs,
            "reward": r.reward,
        });
        lines.extend_from_slice(line.to_string().as_bytes());
        lines.push(b'\n');
    }
    lines
}

fn evaluate(
    job: CidBytes,
    tag: u64,
    adapter: Option<&TensorSet>,
    questions: usize,
    loaded: Option<&mut Loaded>,
) -> Option<Report> {
    let result = of_job(loaded, &job).and_then(|loaded| {
        let adapter = adapter.unwrap_or(&loaded.zero);
        loaded.trainer.set_adapter(adapter).map_err(|e| e.to_string())?;
        let asked = loaded.heldout.len().min(questions);
        loaded
            .trainer
            .evaluate(&loaded.heldout[..asked], Answers::Greedy, &mut |_| ())
            .map_err(|e| e.to_string())
    });
    Some(match result {
        Ok(report) => Report::Evaluated {
            job,
            tag,
            correct: report.correct() as u64,
            questions: report.answers.len() as u64,
        },
        Err(why) => Report::Failed {
            job,
            roster: None,
            tag: Some(tag),
            why,
        },
    })
}
