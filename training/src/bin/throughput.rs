//! Rollout and training speed of Qwen3 shapes with random weights.
#![allow(clippy::print_stdout, reason = "a command's result")]

use clap::Parser;
use gym_protocol::job::spec::LoraSpec;
use gym_training::device::{DeviceChoice, resolve};
use gym_training::generate::{Draw, GenerateConfig, Request, generate};
use gym_training::gspo::policy_gradient;
use gym_training::lora::Lora;
use gym_training::model::{Decoder, Loading, ModelConfig, Precision};
use gym_training::quant::Quantisation;
use gym_training::sampling::{Filters, RolloutKey};
use serde_json::json;
use std::time::Instant;

/// Measures rollouts and training of Qwen3 models with random weights: tokens per second and bytes held.
///
/// One line a shape. Rollouts count completion tokens; training counts prompt and completion tokens of a forward and
/// backward pass to the gradient of every adapter weight (rank 16 on all linear layers).
#[derive(Debug, Parser)]
#[command(name = "throughput", version)]
struct Args {
    /// Shapes to measure
    #[arg(long, value_delimiter = ',', default_value = "0.6b,4b,8b")]
    shapes: Vec<Shape>,
    /// Where to run: auto, cpu or cuda:N
    #[arg(long, default_value = "auto")]
    device: DeviceChoice,
    /// Leave linear layers in full precision instead of NF4
    #[arg(long)]
    dense: bool,
    /// Compute in bf16 [default: on a GPU]
    #[arg(long)]
    bf16: bool,
    /// Completions that run together
    #[arg(long, default_value_t = 32)]
    rows: u32,
    /// Prompt tokens
    #[arg(long, default_value_t = 64)]
    prompt: usize,
    /// Completion tokens
    #[arg(long, default_value_t = 64)]
    completion: usize,
    /// Repetitions; the best is printed
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Stop starting new shapes after this many seconds
    #[arg(long, default_value_t = 240)]
    limit: u64,
    /// One JSON object a shape
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Shape {
    /// Two layers of width 256, to try the program
    Tiny,
    /// Qwen3-0.6B
    #[value(name = "0.6b")]
    B06,
    /// Qwen3-4B
    #[value(name = "4b")]
    B4,
    /// Qwen3-8B
    #[value(name = "8b")]
    B8,
}

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let chosen = resolve(args.device)?;
    let gpu = chosen.place != DeviceChoice::Cpu;
    let loading = Loading {
        quantisation: if args.dense {
            Quantisation::None
        } else {
            Quantisation::Nf4
        },
        precision: if args.bf16 || gpu {
            Precision::Bf16
        } else {
            Precision::F32
        },
    };
    eprintln!("device {}; {loading:?}", chosen.why);
    let started = Instant::now();
    for shape in &args.shapes {
        if started.elapsed().as_secs() > args.limit {
            eprintln!("{}: not started, {} s are over", shape.name(), args.limit);
            continue;
        }
        let config = shape.config()?;
        let loaded = Instant::now();
        let decoder = Decoder::init_as(config, 1, &chosen.device, loading)?;
        let loading_s = loaded.elapsed().as_secs_f64();
        let weights: usize = decoder.weights().0.values().map(|w| w.resident_bytes()).sum();
        let lora = Lora::init(
            &decoder,
            &LoraSpec {
                rank: 16,
                alpha: 32.0,
                ..LoraSpec::default()
            },
            1,
        )?;
        let rollout = best(args.repeat, || rollout(&decoder, &lora, &args))?;
        let training = best(args.repeat, || training(&decoder, &lora, &args))?;
        let rows = args.rows as usize;
        let rollout_rate = (rows * args.completion) as f64 / rollout;
        let training_rate = (rows * (args.prompt + args.completion)) as f64 / training;
        if args.json {
            println!(
                "{}",
                json!({ "shape": shape.name(), "device": chosen.place.to_string(), "loading": format!("{loading:?}"),
                    "weights_bytes": weights, "init_s": loading_s, "rollout_tok_s": rollout_rate,
                    "train_tok_s": training_rate, "rows": rows, "prompt": args.prompt, "completion": args.completion })
            );
        } else {
            println!(
                "{:5} weights {:7.2} GB  rollout {rollout_rate:9.0} tok/s  training {training_rate:9.0} tok/s  \
                 (made in {loading_s:.0} s)",
                shape.name(),
                weights as f64 / 1e9
            );
        }
    }
    Ok(())
}

impl Shape {
    fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::B06 => "0.6b",
            Self::B4 => "4b",
            Self::B8 => "8b",
        }
    }

    /// As in the config.json of Qwen/Qwen3-0.6B, -4B and -8B.
    fn config(self) -> Result<ModelConfig, Failure> {
        let (hidden, mlp, layers, heads, kv, dim, vocabulary, tied) = match self {
            Self::Tiny => (256, 1024, 2, 8, 4, 32, 512, true),
            Self::B06 => (1024, 3072, 28, 16, 8, 128, 151_936, true),
            Self::B4 => (2560, 9728, 36, 32, 8, 128, 151_936, true),
            Self::B8 => (4096, 12_288, 36, 32, 8, 128, 151_936, false),
        };
        Ok(ModelConfig::from_json(json!({
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": hidden,
            "intermediate_size": mlp, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv, "head_dim": dim, "vocab_size": vocabulary, "tie_word_embeddings": tied,
            "rope_theta": 1e6, "rms_norm_eps": 1e-6, "max_position_embeddings": 40_960, "initializer_range": 0.02,
        }))?)
    }
}

fn best(repeat: usize, mut run: impl FnMut() -> Result<(), Failure>) -> Result<f64, Failure> {
    // The first run tunes kernels and is not counted.
    run()?;
    let mut shortest = f64::INFINITY;
    for _ in 0..repeat.max(1) {
        let started = Instant::now();
        run()?;
        shortest = shortest.min(started.elapsed().as_secs_f64());
    }
    Ok(shortest)
}

fn prompt(args: &Args) -> Vec<u32> {
    (0..args.prompt as u32).map(|i| 3 + i * 7 % 500).collect()
}

fn rollout(decoder: &Decoder, lora: &Lora, args: &Args) -> Result<(), Failure> {
    let (prompt, key) = (prompt(args), RolloutKey::offline(1));
    let draws = (0..args.rows)
        .map(|sample| Draw::Noise(key.noise(0, 0, sample)))
        .collect();
    let config = GenerateConfig {
        filters: Filters::default(),
        max_new_tokens: args.completion,
        eos: Vec::new(),
        pad: 0,
        max_rows: args.rows as usize,
        stop: None,
    };
    let made = generate(
        decoder,
        Some(lora),
        &[Request {
            prompt: &prompt,
            draws,
        }],
        &config,
    )?;
    match made[0].iter().all(|c| c.tokens.len() == args.completion) {
        true => Ok(()),
        false => Err("a completion ended early".into()),
    }
}

fn training(decoder: &Decoder, lora: &Lora, args: &Args) -> Result<(), Failure> {
    let prompt = prompt(args);
    let completions: Vec<Vec<u32>> = (0..args.rows)
        .map(|row| {
            (0..args.completion as u32)
                .map(|i| 3 + (i * 11 + row * 5) % 500)
                .collect()
        })
        .collect();
    let sequences: Vec<(&[u32], &[u32])> = completions
        .iter()
        .map(|c| (prompt.as_slice(), c.as_slice()))
        .collect();
    let gradient = vec![vec![1.0 / args.completion as f64; args.completion]; completions.len()];
    let gradients = policy_gradient(decoder, lora, &sequences, &gradient, 1.0);
    match gradients.0.values().any(|t| t.data.iter().any(|g| *g != 0.0)) {
        true => Ok(()),
        false => Err("every gradient is zero".into()),
    }
}
