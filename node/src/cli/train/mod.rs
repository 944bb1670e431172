//! `hanzod train`: a job's GSPO on one machine, with no network.

mod checkpoint;
mod completions;
mod dry_run;
mod log;
mod run;
mod setup;

use super::Context;
use crate::config::DeviceChoice;
use gym_training::device;
use gym_training::memory::MemoryLimit;
use gym_training::model::Precision;
use run::Run;
use setup::Setup;
use std::path::PathBuf;

/// Trains a job on this machine alone. Adapter, optimizer, step and position are kept as it goes: after a stop of any
/// kind the same command with --resume goes on where the last save was, to the same bits.
///
/// In DIR: adapter/ (PEFT), checkpoint-N/ (PEFT), state.cbor, metrics.jsonl (TRL's names), tensorboard/, reward.png,
/// completions.jsonl, and bad-batch-N.jsonl where a loss was not finite.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The job file (TOML); model and questions are paths in it, relative to its directory
    file: PathBuf,
    /// Where everything that the run makes goes
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The model instead of the job file's: a Hugging Face directory
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Training questions instead of the job file's; several files are one after the other
    #[arg(long, value_name = "FILE", num_args = 1..)]
    data: Vec<PathBuf>,
    /// Held-out questions instead of the job file's
    #[arg(long, value_name = "FILE")]
    heldout: Option<PathBuf>,
    /// Steps in all [default: the job's rounds or epochs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Go on with the run in DIR, if there is one
    #[arg(long)]
    resume: bool,
    /// Say what the run would need (parameters, memory by part, tokens a step) and stop
    #[arg(long)]
    dry_run: bool,
    /// Memory that may be used, such as 8GiB, or auto for three quarters of what is free: larger batches are split
    #[arg(
        long,
        env = "HANZOD_MEMORY_LIMIT",
        default_value = "auto",
        value_name = "SIZE"
    )]
    memory_limit: MemoryLimit,
    /// Where tensors live: auto, cpu or cuda:N
    #[arg(long, env = "HANZOD_DEVICE", default_value = "auto", value_name = "DEVICE")]
    device: DeviceChoice,
    /// Draw rollouts from a second copy of the model that computes in this precision, as an inference engine would
    /// [default: the model in training draws them]
    #[arg(long, value_name = "PRECISION")]
    rollout_precision: Option<RolloutPrecision>,
    /// CPU threads for tensors; changes no result [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Save every N steps [default: the job's aggregate_interval]
    #[arg(long, alias = "save-steps", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    save_every: Option<u64>,
    /// Saved adapters to keep
    #[arg(long, alias = "save-total-limit", default_value_t = 3, value_name = "N")]
    save_limit: usize,
    /// Answer the held-out questions every N steps, too, not only before and after
    #[arg(long, alias = "eval-steps", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    eval_every: Option<u64>,
    /// Completions of each held-out question, drawn as in training, for pass@k; 1 is the greedy one alone
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    eval_samples: u32,
    /// Show some completions with their rewards every N steps
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    log_completions: Option<u64>,
    /// How many
    #[arg(
        long,
        alias = "num-completions-to-print",
        default_value_t = 4,
        value_name = "N"
    )]
    completions: usize,
}

/// Numbers that rollouts are drawn in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum RolloutPrecision {
    /// Single precision.
    F32,
    /// bfloat16.
    Bf16,
}

impl From<RolloutPrecision> for Precision {
    fn from(precision: RolloutPrecision) -> Self {
        match precision {
            RolloutPrecision::F32 => Self::F32,
            RolloutPrecision::Bf16 => Self::Bf16,
        }
    }
}

pub(super) fn main(context: &Context, args: &Args) -> anyhow::Result<()> {
    if let Some(threads) = args.threads {
        gym_training::threads::limit_threads(threads as usize)?;
    }
    let setup = Setup::of(args)?;
    let chosen = device::resolve(args.device)?;
    if args.dry_run {
        let (report, fit) = dry_run::report(&setup, args, &chosen)?;
        context.output.show(&report, dry_run::plain);
        fit?;
        return Ok(());
    }
    let report = Run::start(&setup, args, &chosen)?.finish()?;
    context.output.show(&report, run::plain);
    Ok(())
}
