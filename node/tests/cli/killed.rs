//! A run killed at any moment and continued is the uninterrupted run, to the last bit.

use crate::support::hanzod;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const KILLS: u32 = 10;

/// Several updates a step, a shuffle, a reference pass, a rate that falls: everything that has a state.
const JOB: &str = "name = \"killed\"
model = \"MODEL\"
train = \"QUESTIONS/train.jsonl\"
heldout = \"QUESTIONS/heldout.jsonl\"
use_4bit = false
rewards = [{ name = \"numeric\" }, { name = \"length\", weight = 0.1, max_length = 4 }]
[gspo]
group_size = 4
prompts_per_step = 2
minibatches = 2
beta = 0.02
learning_rate = 1e-3
lr_scheduler = \"linear\"
warmup_steps = 3
[rollout]
max_completion_length = 10
[schedule]
rounds = 14
aggregate_interval = 1
eval_questions = 2
";

fn job(root: &Path) -> PathBuf {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testnet/assets");
    let model = assets.join("gym-tiny");
    let questions = assets.join("questions/chain_sum");
    let text = JOB
        .replace("MODEL", model.to_str().unwrap())
        .replace("QUESTIONS", questions.to_str().unwrap());
    let path = root.join("job.toml");
    fs::write(&path, text).unwrap();
    path
}

fn train(job: &Path, out: &Path, threads: u32) -> Command {
    let mut command = hanzod();
    command
        .arg("train")
        .args([job, Path::new("--out"), out])
        .args(["--resume", "--device", "cpu", "--threads", &threads.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Runs to the end: how long it took to the first line of the log, and in all.
fn finish(mut child: Child, out: &Path) -> (Duration, Duration) {
    let started = Instant::now();
    let mut first = None;
    while child.try_wait().unwrap().is_none() {
        assert!(
            started.elapsed() < Duration::from_secs(300),
            "the run does not end"
        );
        if first.is_none() && fs::metadata(out.join("metrics.jsonl")).is_ok_and(|m| m.len() > 0) {
            first = Some(started.elapsed());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(child.wait().unwrap().success());
    (first.unwrap(), started.elapsed())
}

/// Numbers from 0 to 1 that differ from run to run (xorshift).
struct Moments(u64);

impl Moments {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[test]
fn ten_kills_change_no_bit_of_the_adapter() {
    let dir = tempfile::tempdir().unwrap();
    let job = job(dir.path());
    let (whole, killed) = (dir.path().join("whole"), dir.path().join("killed"));
    let bits = |out: &Path| fs::read(out.join("adapter/adapter_model.safetensors")).unwrap();

    let (loading, all) = finish(train(&job, &whole, 1).spawn().unwrap(), &whole);
    let longest = loading + (all - loading).mul_f64(1.6 / f64::from(KILLS));
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    println!("seed {seed}; uninterrupted {all:?}, {loading:?} of it to load; lives of up to {longest:?}");
    let mut moments = Moments(seed);
    let mut steps = Vec::new();
    while steps.len() < KILLS as usize {
        let mut child = train(&job, &killed, 1 + steps.len() as u32 % 2).spawn().unwrap();
        std::thread::sleep(longest.mul_f64(moments.next()));
        if child.try_wait().unwrap().is_some() {
            // The machine has become faster: that run was not killed to its end.
            fs::remove_dir_all(&killed).unwrap();
            continue;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        steps.push(saved(&killed));
    }
    println!("last adapter saved when killed: after steps {steps:?}");
    finish(train(&job, &killed, 2).spawn().unwrap(), &killed);
    assert!(
        bits(&whole) == bits(&killed),
        "seed {seed}: the continued run's adapter differs"
    );

    let metrics = |out: &Path| fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let steps = |text: &str| -> Vec<u64> {
        let records = text
            .lines()
            .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
        records.map(|r| r["step"].as_u64().unwrap()).collect()
    };
    assert_eq!(steps(&metrics(&whole)), steps(&metrics(&killed)), "seed {seed}");
}

/// The newest saved adapter's step.
fn saved(out: &Path) -> u64 {
    let entries = fs::read_dir(out).into_iter().flatten().flatten();
    let step = |name: String| name.strip_prefix("checkpoint-")?.parse().ok();
    entries
        .filter_map(|e| step(e.file_name().into_string().ok()?))
        .max()
        .unwrap_or(0)
}
