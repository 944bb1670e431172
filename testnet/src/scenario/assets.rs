//! A job small enough to be run a dozen times: a random model of a few thousand parameters, a few questions.

use anyhow::Context;
use gym_training::pretrain::{PretrainConfig, run as pretrain};
use std::path::{Path, PathBuf};

/// The name of the model's directory.
pub(super) const MODEL: &str = "model";
/// The name of the training questions.
pub(super) const TRAIN: &str = "train.jsonl";
const HELDOUT: &str = "heldout.jsonl";
/// Questions taken from the sample job's sets.
const TRAIN_LINES: usize = 64;
const HELDOUT_LINES: usize = 16;

/// The least deadline of the ring; each view's is twice the last's.
pub(super) const RING_FLOOR_MS: u64 = 1_000;

/// One step is enough: nothing here is about what the model knows.
const SHAPE: &str = "seed = 1\n[shape]\nlayers = 1\nhidden = 16\nheads = 2\nkv_heads = 1\nhead_dim = 8\nmlp = 32\n\
                     [[stages]]\nsteps = 1\nbatch = 2\nrunning_share = 0.5\n[optimizer]\nwarmup_steps = 1\n";

/// What scenarios vary of the job.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobShape {
    pub(super) rounds: u64,
    pub(super) workers: usize,
    pub(super) redundancy: usize,
    /// LoRA's rank: what travels in a round grows with it.
    pub(super) rank: u32,
    pub(super) wire: &'static str,
}

impl JobShape {
    /// The usual one, of `rounds`.
    pub(super) fn of(rounds: u64) -> Self {
        Self {
            rounds,
            workers: 4,
            redundancy: 1,
            rank: 2,
            wire: "f32",
        }
    }
}

/// The usual job of `rounds`.
pub(super) fn job_text(rounds: u64) -> String {
    job_of(JobShape::of(rounds))
}

/// The job's text. Its reward is one that a random model sometimes gets, so that deltas are not zero.
pub(super) fn job_of(shape: JobShape) -> String {
    let JobShape {
        rounds,
        workers,
        redundancy,
        rank,
        wire,
    } = shape;
    // As many as are more than two thirds.
    let least = 2 * workers / 3 + 1;
    format!(
        r#"name = "survival"
model = "{MODEL}"
train = "{TRAIN}"
heldout = "{HELDOUT}"
seed = 1
use_4bit = false
wire = "{wire}"
rewards = [{{ name = "format", pattern = "[a-g]" }}]
[gspo]
beta = 0.0
group_size = 4
prompts_per_step = 2
learning_rate = 1e-3
[lora]
rank = {rank}
alpha = 4.0
[rollout]
max_prompt_length = 64
max_completion_length = 8
[schedule]
rounds = {rounds}
aggregate_interval = 2
min_workers = {least}
max_workers = {workers}
redundancy = {redundancy}
eval_questions = 8
[schedule.deadlines]
recruit_ms = 5000
train_ms = 8000
commit_ms = 3000
ring_floor_ms = {RING_FLOOR_MS}
ring_cap_ms = 4000
attest_ms = 5000
"#
    )
}

/// Writes model and questions into `dir`.
pub(super) fn write(dir: &Path) -> anyhow::Result<()> {
    let config: PretrainConfig = toml::from_str(SHAPE).context("the scenarios' model")?;
    pretrain(&config, &dir.join(MODEL), &mut |_| ()).context("making the scenarios' model")?;
    head(&questions("train.jsonl"), &dir.join(TRAIN), TRAIN_LINES)?;
    head(&questions("heldout.jsonl"), &dir.join(HELDOUT), HELDOUT_LINES)
}

fn questions(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("assets/questions/chain_sum")
        .join(name)
}

fn head(from: &Path, to: &Path, lines: usize) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(from).with_context(|| from.display().to_string())?;
    let kept: String = text.split_inclusive('\n').take(lines).collect();
    std::fs::write(to, kept).with_context(|| to.display().to_string())
}
