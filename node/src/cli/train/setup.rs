//! What a run trains: the job file with what the command line puts in its place.

use super::Args;
use crate::files;
use anyhow::Context as _;
use gym_protocol::assignment::rounds_for_epochs;
use gym_protocol::cbor::{self, sha3_256};
use gym_protocol::ids::Hash32;
use gym_protocol::job::spec::{JobFile, LrScheduler, OuterSpec, ScheduleSpec};
use gym_training::data::{Question, check_disjoint, read_questions};
use gym_training::reward::Programs;
use gym_training::trainer::Plan;
use std::path::{Path, PathBuf};

/// The longest job file, in bytes.
const MAX_FILE: u64 = 256 * 1024;

/// A run before anything is loaded but its questions.
pub(super) struct Setup {
    pub(super) job: JobFile,
    pub(super) plan: Plan,
    pub(super) model: PathBuf,
    pub(super) train: Vec<Question>,
    /// At most `eval_questions` of them.
    pub(super) heldout: Vec<Question>,
    pub(super) steps: u64,
    /// What a checkpoint must be of to be continued.
    pub(super) identity: Hash32,
}

impl Setup {
    pub(super) fn of(args: &Args) -> anyhow::Result<Self> {
        let text = files::read_text(&args.file, MAX_FILE)?;
        let job = JobFile::parse(&text).with_context(|| args.file.display().to_string())?;
        let absolute = std::path::absolute(&args.file)?;
        let base = absolute.parent().map(PathBuf::from).unwrap_or_default();
        let train = training_questions(&job, args, &base)?;
        let heldout = args.heldout.clone().unwrap_or_else(|| base.join(&job.heldout));
        let mut heldout = read_questions(&heldout, &job.columns)?;
        check_disjoint(&train, &heldout)?;
        heldout.truncate(job.schedule.eval_questions as usize);
        let steps = args.steps.unwrap_or_else(|| steps(&job, train.len() as u64));
        Ok(Self {
            plan: plan(&job, steps),
            identity: identity(&job, &train, steps)?,
            model: args.model.clone().unwrap_or_else(|| base.join(&job.model)),
            train,
            heldout,
            steps,
            job,
        })
    }

    /// What the job file asks for and one machine does not do.
    pub(super) fn notes(&self) -> Option<&'static str> {
        let nesterov = matches!(self.job.outer, OuterSpec::Nesterov { .. });
        nesterov.then_some("outer: a run on one machine has no rounds and takes no outer step")
    }
}

/// The files one after the other, rows numbered through.
fn training_questions(job: &JobFile, args: &Args, base: &Path) -> anyhow::Result<Vec<Question>> {
    let named = [base.join(&job.train)];
    let files = if args.data.is_empty() {
        &named[..]
    } else {
        &args.data
    };
    let mut all: Vec<Question> = Vec::new();
    for file in files {
        let offset = all.len() as u64;
        let questions = read_questions(file, &job.columns)?;
        all.extend(questions.into_iter().map(|question| Question {
            row: question.row + offset,
            ..question
        }));
    }
    Ok(all)
}

fn steps(job: &JobFile, questions: u64) -> u64 {
    let schedule = &job.schedule;
    let interval = schedule.aggregate_interval;
    let rounds = schedule.rounds.unwrap_or_else(|| {
        let epochs = schedule.epochs.unwrap_or(1.0);
        rounds_for_epochs(epochs, questions, 1, interval, job.gspo.prompts_per_step)
    });
    rounds.saturating_mul(interval.into())
}

fn plan(job: &JobFile, steps: u64) -> Plan {
    Plan {
        // Whoever starts the run lets its rewards run programs.
        programs: Programs::Allowed,
        total_updates: Some(steps.saturating_mul(job.gspo.updates_per_step())),
        ..Plan::from(job)
    }
}

/// Hash of all that a step depends on. More steps of the same are the same run, unless the learning rate falls to its
/// end.
fn identity(job: &JobFile, train: &[Question], steps: u64) -> anyhow::Result<Hash32> {
    let falls = job.gspo.lr_scheduler != LrScheduler::ConstantWithWarmup;
    let job = JobFile {
        name: String::new(),
        schedule: ScheduleSpec {
            rounds: falls.then_some(steps),
            ..ScheduleSpec::default()
        },
        ..job.clone()
    };
    let mut rows = Vec::new();
    for question in train {
        rows.extend(serde_json::to_vec(&question.raw)?);
    }
    Ok(sha3_256(&[&cbor::to_dag(&job)?, &rows]))
}
