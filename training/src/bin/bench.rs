//! `bench [--steps N] [--threads N] [--json] [--scale FOLDER]`: what a GSPO step costs, beside `scripts/bench/bench_trl.py`
//! in its mode `trl4`.
//!
//! The work: Qwen3 of random weights (4 layers, width 256, 8 and 4 heads of 32, MLP 1024, vocabulary 512) with LoRA of
//! rank 16 on every linear layer, f32; 4 prompts of 24 tokens × 8 completions of exactly 64; four minibatches a rollout.
//! Keys are the script's: `rollout_s` generation, `fwd_bwd_s` forward and backward passes of the updates, `other_s` the
//! rest (old log-probabilities, rewards, optimizer), tokens counted as 32 × 64 and 32 × 88. Two steps warm up.
//!
//! `--scale` varies layers and sequences over four sizes each instead, and writes a chart and its numbers to a folder.
#![allow(clippy::print_stdout, reason = "a command's result")]

use gym_protocol::job::spec::JobFile;
use gym_training::Device;
use gym_training::data::{Prompt, Question};
use gym_training::model::{Decoder, ModelConfig};
use gym_training::plot::{Labels, Series, write_chart};
use gym_training::sampling::{RolloutKey, derive_key, philox};
use gym_training::threads::with_threads;
use gym_training::trainer::{Plan, StepInput, Trainer};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::{AddAssign, Sub};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tracing::span;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const GROUP: u32 = 8;
const PROMPT: usize = 24;
const COMPLETION: usize = 64;
const VOCABULARY: usize = 512;
const WARM_UP: usize = 2;
/// The sizes of `--scale`.
const LAYERS: [usize; 4] = [2, 4, 6, 8];
const PROMPTS: [u32; 4] = [2, 4, 6, 8];

fn main() -> Result<(), Failure> {
    let options = Options::parse()?;
    let times = Times::default();
    tracing::subscriber::set_global_default(Recorder(times.clone()))?;
    with_threads(options.threads, || match &options.scale {
        Some(folder) => scale(folder, &options, &times),
        None => step_costs(&options, &times),
    })?
}

struct Options {
    steps: usize,
    threads: usize,
    format: Format,
    scale: Option<PathBuf>,
}

#[derive(PartialEq, Eq)]
enum Format {
    Table,
    Json,
}

impl Options {
    fn parse() -> Result<Self, Failure> {
        let mut options = Self {
            steps: 8,
            threads: 1,
            format: Format::Table,
            scale: None,
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--steps" => options.steps = value()?.parse()?,
                "--threads" => options.threads = value()?.parse()?,
                "--scale" => options.scale = Some(value()?.into()),
                "--json" => options.format = Format::Json,
                other => return Err(format!("unknown argument {other}; see the top of bench.rs").into()),
            }
        }
        if options.steps == 0 || options.threads == 0 {
            return Err("--steps and --threads are at least 1".into());
        }
        Ok(options)
    }
}

/// The table or JSON of one size.
fn step_costs(options: &Options, times: &Times) -> Result<(), Failure> {
    let size = Size {
        layers: 4,
        prompts: 4,
    };
    let run = Run::of(size, options.steps, times)?;
    let report = run.report(size, options.threads);
    if options.format == Format::Json {
        println!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(());
    }
    println!("{:22} {:>10} {:>10}", "median of steps", "CPU", "wall");
    for key in ["seconds_per_rollout_step", "rollout_s", "fwd_bwd_s", "other_s"] {
        let of = |clock: &str| report[key][clock]["median"].as_f64().unwrap_or(f64::NAN);
        println!("{key:22} {:>9.3}s {:>9.3}s", of("cpu"), of("wall"));
    }
    for key in ["rollout_tok_s", "train_tok_s_88", "whole_step_completion_tok_s"] {
        let of = |clock: &str| report[key][clock].as_f64().unwrap_or(f64::NAN);
        println!("{key:22} {:>10.0} {:>10.0}", of("cpu_median"), of("wall_median"));
    }
    println!("{:22} {:>10}", "peak_rss_mib", report["peak_rss_mib"]);
    Ok(())
}

/// Step cost by layers and by sequences, each over four sizes: `step-cost.png` and `step-cost.json`.
fn scale(folder: &Path, options: &Options, times: &Times) -> Result<(), Failure> {
    let by_layers = LAYERS.map(|layers| Size { layers, prompts: 4 });
    let by_prompts = PROMPTS.map(|prompts| Size { layers: 4, prompts });
    let measure = |sizes: [Size; 4], x: fn(&Size) -> f64| -> Result<Vec<(f64, f64)>, Failure> {
        let point = |size: &Size| {
            let run = Run::of(*size, options.steps, times)?;
            Ok((x(size), median(run.steps.iter().map(|s| s.cpu))))
        };
        sizes.iter().map(point).collect()
    };
    let layers = measure(by_layers, |s| s.layers as f64)?;
    let sequences = measure(by_prompts, |s| f64::from(s.prompts * GROUP))?;
    std::fs::create_dir_all(folder)?;
    let numbers =
        json!({ "cpu_s_by_layers_at_32_sequences": layers, "cpu_s_by_sequences_at_4_layers": sequences });
    std::fs::write(
        folder.join("step-cost.json"),
        serde_json::to_string_pretty(&numbers)?,
    )?;
    // One axis for both: multiples of the smallest size.
    let relative = |name: &str, points: &[(f64, f64)]| Series {
        name: name.to_owned(),
        points: points.iter().map(|(x, y)| (x / points[0].0, *y)).collect(),
    };
    let labels = Labels {
        title: "CPU time of a GSPO step",
        x: "multiple of the smallest size",
        y: "seconds",
    };
    let series = [
        relative("2 to 8 layers, 32 sequences", &layers),
        relative("16 to 64 sequences, 4 layers", &sequences),
    ];
    write_chart(&folder.join("step-cost.png"), labels, &series)?;
    println!("{}", serde_json::to_string(&numbers)?);
    Ok(())
}

#[derive(Clone, Copy)]
struct Size {
    layers: usize,
    prompts: u32,
}

/// Times of the measured steps, one entry a step.
struct Run {
    steps: Vec<Time>,
    rollouts: Vec<Time>,
    trains: Vec<Time>,
}

impl Run {
    fn of(size: Size, steps: usize, times: &Times) -> Result<Self, Failure> {
        let mut trainer = trainer(size)?;
        let key = RolloutKey::offline(0);
        let mut run = Self {
            steps: Vec::new(),
            rollouts: Vec::new(),
            trains: Vec::new(),
        };
        for step in 0..steps + WARM_UP {
            let first = step as u64 * u64::from(size.prompts);
            let rows: Vec<u64> = (first..first + u64::from(size.prompts)).collect();
            times.clear();
            let started = Time::now();
            let report = trainer.step(&StepInput {
                rows: &rows,
                key: &key,
                step: step as u32,
            })?;
            let whole = Time::now() - started;
            let tokens = (size.prompts * GROUP) as usize * COMPLETION;
            if report.tokens != tokens || report.metrics["frac_reward_zero_std"] != 0.0 {
                return Err(format!(
                    "the work is another: {} tokens, {:?}",
                    report.tokens, report.metrics
                )
                .into());
            }
            if step >= WARM_UP {
                run.steps.push(whole);
                run.rollouts.push(times.of("rollout"));
                run.trains.push(times.of("train"));
            }
        }
        Ok(run)
    }

    fn report(&self, size: Size, threads: usize) -> Value {
        let rows = f64::from(size.prompts * GROUP);
        let (completion, whole) = (rows * COMPLETION as f64, rows * (PROMPT + COMPLETION) as f64);
        let other = (self.steps.iter().zip(&self.rollouts).zip(&self.trains))
            .map(|((step, rollout), train)| *step - *rollout - *train);
        json!({
            "threads": threads,
            "seconds_per_rollout_step": summary(&self.steps),
            "rollout_s": summary(&self.rollouts),
            "rollout_tok_s": rates(completion, &self.rollouts),
            "fwd_bwd_s": summary(&self.trains),
            "train_tok_s_88": rates(whole, &self.trains),
            "other_s": summary(&other.collect::<Vec<_>>()),
            "whole_step_completion_tok_s": rates(completion, &self.steps),
            "peak_rss_mib": peak_rss_mib(),
        })
    }
}

fn summary(times: &[Time]) -> Value {
    let one = |of: fn(&Time) -> f64| {
        let values = || times.iter().map(of);
        json!({
            "best": values().fold(f64::INFINITY, f64::min),
            "median": median(values()),
            "worst": values().fold(0.0, f64::max),
            "n": times.len(),
        })
    };
    json!({ "wall": one(|t| t.wall), "cpu": one(|t| t.cpu) })
}

fn rates(tokens: f64, times: &[Time]) -> Value {
    json!({
        "wall_median": tokens / median(times.iter().map(|t| t.wall)),
        "cpu_median": tokens / median(times.iter().map(|t| t.cpu)),
    })
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
        _ => sorted[middle],
    }
}

/// Most memory this process held, in MiB; `None` where the system does not say.
fn peak_rss_mib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some((kib / 102.4).round() / 10.0)
}

/// A trainer on random weights whose completions never end early.
fn trainer(size: Size) -> Result<Trainer, Failure> {
    let folder = std::env::temp_dir().join(format!("gym-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    write_tokenizer(&folder)?;
    let device = Device::flex();
    std::fs::write(folder.join("config.json"), model(size.layers).to_string())?;
    Decoder::init(ModelConfig::load(&folder)?, 0, &device)?.save(&folder)?;
    // An end that no token is.
    std::fs::write(
        folder.join("generation_config.json"),
        json!({ "eos_token_id": VOCABULARY }).to_string(),
    )?;
    let plan = Plan::from(&JobFile::parse(&job(size.prompts))?);
    let questions = (0..1024).map(question).collect();
    let trainer = Trainer::new(plan, &folder, &device, questions);
    std::fs::remove_dir_all(&folder)?;
    Ok(trainer?)
}

fn model(layers: usize) -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": VOCABULARY, "hidden_size": 256,
        "intermediate_size": 1024, "num_hidden_layers": layers, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 32, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": true,
        "max_position_embeddings": 512, "initializer_range": 0.02, "hidden_act": "silu", "attention_bias": false,
        "eos_token_id": VOCABULARY, "pad_token_id": 0,
    })
}

/// Rewards differ within a group: each of the first eight tokens counts by its parity, with a weight of its own.
fn job(prompts: u32) -> String {
    let reward = |place: u32| {
        let weight = 1u32 << place;
        format!(
            r#"{{ name = "format", pattern = "^(w\\d+ ){{{place}}}w\\d*[02468]\\b", weight = {weight}.0 }}"#
        )
    };
    let rewards: Vec<String> = (0..8).map(reward).collect();
    format!(
        r#"
name = "bench"
model = "m"
train = "a"
heldout = "b"
seed = 0
use_4bit = false
rewards = [{rewards}]
[gspo]
beta = 0.0
learning_rate = 1e-4
group_size = {GROUP}
prompts_per_step = {prompts}
minibatches = 4
[lora]
rank = 16
alpha = 32.0
target_modules = ["all-linear"]
[rollout]
max_completion_length = {COMPLETION}
[schedule]
rounds = 1
"#,
        rewards = rewards.join(", ")
    )
}

fn question(row: u64) -> Question {
    let key = derive_key(&[b"bench", &row.to_le_bytes()]);
    let word = |i: usize| {
        let token = philox([i as u32, 0, 0, 0], key)[0] as usize % (VOCABULARY - 1) + 1;
        format!("w{token}")
    };
    let words: Vec<String> = (0..PROMPT).map(word).collect();
    Question {
        row,
        prompt: Prompt::Text(words.join(" ")),
        answer: String::new(),
        raw: Value::Null,
    }
}

/// The words w0 to w511, separated by spaces.
fn write_tokenizer(folder: &Path) -> Result<(), Failure> {
    let vocabulary: BTreeMap<String, usize> = (0..VOCABULARY).map(|i| (format!("w{i}"), i)).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "WhitespaceSplit" }, "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "w0" },
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string())?;
    std::fs::write(
        folder.join("tokenizer_config.json"),
        json!({ "pad_token": "w0" }).to_string(),
    )?;
    Ok(())
}

/// A reading of both clocks, or a span of them, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Time {
    wall: f64,
    /// Of all threads of this process.
    cpu: f64,
}

impl Time {
    fn now() -> Self {
        static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Self {
            wall: START.elapsed().as_secs_f64(),
            cpu: cpu.tv_sec as f64 + cpu.tv_nsec as f64 * 1e-9,
        }
    }
}

impl Sub for Time {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            wall: self.wall - other.wall,
            cpu: self.cpu - other.cpu,
        }
    }
}

impl AddAssign for Time {
    fn add_assign(&mut self, other: Self) {
        self.wall += other.wall;
        self.cpu += other.cpu;
    }
}

/// Time inside the trainer's tracing spans, summed by name.
#[derive(Clone, Default)]
struct Times(Arc<Mutex<Spans>>);

#[derive(Default)]
struct Spans {
    /// Open and closed spans' names; a span's id is its place plus one.
    names: Vec<&'static str>,
    entered: BTreeMap<u64, Time>,
    sums: BTreeMap<&'static str, Time>,
}

impl Times {
    fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Spans::default();
    }

    fn of(&self, name: &str) -> Time {
        let spans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        spans.sums.get(name).copied().unwrap_or_default()
    }
}

struct Recorder(Times);

impl Recorder {
    fn spans(&self) -> std::sync::MutexGuard<'_, Spans> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl tracing::Subscriber for Recorder {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target().starts_with("gym_training")
    }

    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        let mut spans = self.spans();
        spans.names.push(attributes.metadata().name());
        span::Id::from_u64(spans.names.len() as u64)
    }

    fn enter(&self, id: &span::Id) {
        self.spans().entered.insert(id.into_u64(), Time::now());
    }

    fn exit(&self, id: &span::Id) {
        let mut spans = self.spans();
        let name = spans.names.get(id.into_u64() as usize - 1).copied();
        if let (Some(start), Some(name)) = (spans.entered.remove(&id.into_u64()), name) {
            *spans.sums.entry(name).or_default() += Time::now() - start;
        }
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
}
