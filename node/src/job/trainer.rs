//! The trainer thread: owns model and device, takes one task at a time, answers with events.

mod engine;

use super::commit::Trained;
use crate::role::Roles;
use gym_protocol::assignment::RoundRows;
use gym_protocol::ids::{CidBytes, Hash32, Rank};
use gym_protocol::job::spec::JobSpec;
use gym_protocol::tensor::TensorSet;
use gym_training::device::Chosen;
use gym_training::memory::MemoryLimit;
use gym_training::reward::Programs;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::sync::mpsc;

/// Tasks that wait for the thread.
const QUEUE: usize = 64;

/// Where a job's model and questions lie on this disk.
#[derive(Clone, Debug)]
pub(crate) struct JobFiles {
    pub(crate) base: PathBuf,
    pub(crate) train: PathBuf,
    pub(crate) heldout: PathBuf,
}

/// What the thread is asked to do. Every answer names the job again.
#[derive(Debug)]
pub(crate) enum Task {
    /// Load model and questions, make the round-0 adapter.
    Load {
        job: CidBytes,
        spec: Box<JobSpec>,
        files: JobFiles,
    },
    /// Train a round's steps from `adapter`.
    Train(Box<TrainTask>),
    /// Greedy accuracy on held-out questions with `adapter`, or with the base alone.
    Evaluate {
        job: CidBytes,
        tag: u64,
        adapter: Option<Arc<TensorSet>>,
        questions: usize,
    },
}

/// One round of local training.
#[derive(Debug)]
pub(crate) struct TrainTask {
    pub(crate) job: CidBytes,
    pub(crate) round: u64,
    /// Hash of the roster: the beacon.
    pub(crate) roster: Hash32,
    pub(crate) rank: u32,
    pub(crate) members: u32,
    pub(crate) adapter: Arc<TensorSet>,
    /// Where the last batch goes when too many steps in a row were not finite.
    pub(crate) bad_batch: PathBuf,
    /// Set when the result is no longer wanted; looked at between steps.
    pub(crate) cancel: Arc<AtomicBool>,
}

/// What the thread answers.
#[derive(Debug)]
pub(crate) enum Report {
    /// Loaded: the round-0 adapter and the number of training questions.
    Loaded { job: CidBytes, adapter: TensorSet },
    /// A step is done: TRL's metrics.
    Step {
        job: CidBytes,
        round: u64,
        step: u32,
        metrics: Value,
    },
    /// A round's steps are done: Δ, flat.
    Trained {
        job: CidBytes,
        roster: Hash32,
        delta: Vec<f32>,
        trained: Trained,
    },
    /// An evaluation is done.
    Evaluated {
        job: CidBytes,
        tag: u64,
        correct: u64,
        questions: u64,
    },
    /// A task failed; `roster` for training, `tag` for an evaluation.
    Failed {
        job: CidBytes,
        roster: Option<Hash32>,
        tag: Option<u64>,
        why: String,
    },
}

/// What the thread works with.
#[derive(Debug)]
pub(crate) struct Machine {
    /// Where tensors live.
    pub(crate) chosen: Chosen,
    /// Whether a job's rewards may run programs here.
    pub(crate) programs: Programs,
    /// What a job may hold.
    pub(crate) memory: MemoryLimit,
    /// What the node does, which decides what has to fit.
    pub(crate) roles: Roles,
}

/// Hands tasks to the thread.
#[derive(Clone, Debug)]
pub(crate) struct TrainerHandle {
    tasks: std::sync::mpsc::SyncSender<Task>,
}

impl TrainerHandle {
    /// Starts the thread; its answers go to `reports`.
    pub(crate) fn start(machine: Machine, reports: mpsc::Sender<Report>) -> std::io::Result<Self> {
        let (tasks, queue) = std::sync::mpsc::sync_channel(QUEUE);
        std::thread::Builder::new()
            .name("trainer".into())
            .spawn(move || engine::run(&queue, &machine, &reports))?;
        Ok(Self { tasks })
    }

    /// Without a thread: whoever has the other end sees what is asked.
    #[cfg(test)]
    pub(crate) fn of_queue(tasks: usize) -> (Self, std::sync::mpsc::Receiver<Task>) {
        let (tasks, queue) = std::sync::mpsc::sync_channel(tasks);
        (Self { tasks }, queue)
    }

    /// Queues a task; `false` when the queue is full or the thread is gone.
    pub(crate) fn ask(&self, task: Task) -> bool {
        self.tasks.try_send(task).is_ok()
    }
}

/// The rows that each local step draws: `steps` lists of `per_step` rows.
fn rows_of(task: &TrainTask, spec: &JobSpec, rows: u64) -> Vec<Vec<u64>> {
    let order = RoundRows::new(&task.job, &task.roster, rows);
    let mut mine = order.of_member(Rank(task.rank), task.members);
    let per_step = spec.gspo.prompts_per_step as usize;
    (0..spec.schedule.aggregate_interval)
        .map(|_| mine.by_ref().take(per_step).collect())
        .collect()
}
