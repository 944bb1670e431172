//! `hanzod model check | pull | push | merge | export`.

use super::Context;
use super::adapters::{self, ExportArgs, MergeArgs};
use super::hub;
use super::output::{Output, text};
use clap::Subcommand;
use gym_training::inspect::{Inspection, inspect};
use gym_training::model::{LayerConfig, Mixer, MlpKind, ModelConfig, ModelSize, Storage};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Say what a model directory holds, what it needs, and whether it would load; no weight is read
    Check {
        /// The model: a Hugging Face directory
        dir: PathBuf,
    },
    /// Bring a model from the Hugging Face Hub by its name; goes on where it stopped, and checks every hash
    Pull(hub::PullArgs),
    /// Put a directory, such as a checkpoint, into a repository on the Hugging Face Hub
    Push(hub::PushArgs),
    /// Write a model with an adapter merged into it, as a plain Hugging Face directory
    Merge(MergeArgs),
    /// Write an adapter in the layout that another program expects
    Export(ExportArgs),
}

pub(super) fn main(context: &Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Check { dir } => check(context.output, &dir),
        Command::Pull(args) => hub::pull(context.output, &args),
        Command::Push(args) => hub::push(context.output, &args),
        Command::Merge(args) => adapters::merge_main(context.output, &args),
        Command::Export(args) => adapters::export_main(context.output, &args),
    }
}

fn check(output: Output, dir: &Path) -> anyhow::Result<()> {
    let found = inspect(dir);
    output.show(&describe(&found), plain);
    match found.problems.len() {
        0 => Ok(()),
        1 => anyhow::bail!("{}: 1 thing would not load", dir.display()),
        n => anyhow::bail!("{}: {n} things would not load", dir.display()),
    }
}

fn describe(found: &Inspection) -> Value {
    let tokenizer = found.tokenizer.map(|t| {
        json!({
            "tokens": t.tokens,
            "chat_template": t.chat_template,
        })
    });
    let files = found.files.as_ref().map(|f| {
        json!({
            "bytes": f.bytes,
            "kinds": f.kinds,
        })
    });
    json!({
        "family": found.config.as_ref().map(|c| c.architecture.name()),
        "shape": found.config.as_ref().map(shape),
        "parameters": found.size.map(|s| json!({ "total": s.parameters, "active": s.active })),
        "memory": found.size.map(|s| memory(&s)),
        "files": files,
        "tokenizer": tokenizer,
        "loads": found.problems.is_empty(),
        "problems": found.problems,
    })
}

fn shape(config: &ModelConfig) -> Value {
    let count = |of: fn(&LayerConfig) -> bool| config.layers.iter().filter(|l| of(l)).count();
    let experts = config.experts().map(|e| {
        json!({
            "count": e.count,
            "per_token": e.per_token,
            "shared": e.shared_size.is_some(),
        })
    });
    json!({
        "layers": config.num_hidden_layers,
        "delta_net_layers": count(|l| matches!(l.mixer, Mixer::DeltaNet(_))),
        "window_layers": count(|l| matches!(l.mixer, Mixer::Attention { window: Some(_) })),
        "expert_layers": count(|l| matches!(l.mlp, MlpKind::Experts(_))),
        "hidden": config.hidden_size,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "vocabulary": config.vocab_size,
        "positions": config.max_position_embeddings,
        "experts": experts,
    })
}

/// Bytes.
fn memory(size: &ModelSize) -> Value {
    json!({
        "f32": size.bytes(Storage::F32),
        "bf16": size.bytes(Storage::Bf16),
        "nf4": size.bytes(Storage::Nf4),
        "nf4_unquantised": size.unquantised_bytes(),
        "cache_f32_per_token": 4 * size.cached_per_token,
        "state_f32_per_sequence": 4 * size.state_per_sequence,
    })
}

fn plain(value: &Value) -> String {
    let mut lines = vec![format!("family      {}", text(value, "family"))];
    let part = |key| value.get(key).filter(|v| !v.is_null());
    lines.extend(part("shape").into_iter().flat_map(plain_shape));
    lines.extend(part("parameters").map(|p| {
        let (total, active) = (number(p, "total"), number(p, "active"));
        format!(
            "parameters  {} in all, {} at work on a token",
            thousands(total),
            thousands(active)
        )
    }));
    lines.extend(part("memory").into_iter().flat_map(plain_memory));
    lines.extend(part("files").map(|files| {
        let kinds = files.get("kinds").and_then(Value::as_object);
        let kinds: Vec<&str> = kinds
            .into_iter()
            .flatten()
            .map(|(kind, _)| kind.as_str())
            .collect();
        format!(
            "files       {} of {}",
            bytes(number(files, "bytes")),
            kinds.join(", ")
        )
    }));
    lines.push(match part("tokenizer") {
        Some(found) if found.get("chat_template") == Some(&Value::Bool(true)) => {
            format!(
                "tokenizer   {} tokens, with a chat template",
                text(found, "tokens")
            )
        }
        Some(found) => format!("tokenizer   {} tokens, no chat template", text(found, "tokens")),
        None => "tokenizer   none that loads; training and generation need one".to_owned(),
    });
    lines.extend(plain_problems(value));
    lines.join("\n")
}

fn plain_shape(shape: &Value) -> Vec<String> {
    let n = |key| number(shape, key);
    let mut lines = vec![
        format!(
            "layers      {} ({} delta-net, {} with a window, {} with experts)",
            n("layers"),
            n("delta_net_layers"),
            n("window_layers"),
            n("expert_layers")
        ),
        format!(
            "width       {}; {} query and {} key heads of {}",
            n("hidden"),
            n("heads"),
            n("kv_heads"),
            n("head_dim")
        ),
        format!("vocabulary  {}", n("vocabulary")),
        format!("positions   {}", n("positions")),
    ];
    if let Some(experts) = shape.get("experts").filter(|e| !e.is_null()) {
        let shared = match experts.get("shared") {
            Some(Value::Bool(true)) => ", and one for all",
            _ => "",
        };
        let (count, chosen) = (number(experts, "count"), number(experts, "per_token"));
        lines.push(format!("experts     {chosen} of {count} for each token{shared}"));
    }
    lines
}

fn plain_memory(memory: &Value) -> Vec<String> {
    let size = |key| bytes(number(memory, key));
    vec![
        format!(
            "weights     f32 {}, bf16 {}, nf4 {} (of which {} stay bf16; on the CPU f32, twice that)",
            size("f32"),
            size("bf16"),
            size("nf4"),
            size("nf4_unquantised")
        ),
        format!(
            "cache       {} a token and {} a sequence, f32",
            size("cache_f32_per_token"),
            size("state_f32_per_sequence")
        ),
    ]
}

fn plain_problems(value: &Value) -> Vec<String> {
    /// More than this says nothing new.
    const SHOWN: usize = 20;
    let problems = value.get("problems").and_then(Value::as_array);
    let problems: Vec<&str> = problems.into_iter().flatten().filter_map(Value::as_str).collect();
    let mut lines = vec![match problems.is_empty() {
        true => "loads       yes".to_owned(),
        false => "loads       no".to_owned(),
    }];
    lines.extend(problems.iter().take(SHOWN).map(|p| format!("  {p}")));
    if problems.len() > SHOWN {
        let more = problems.len() - SHOWN;
        lines.push(format!("  and {more} more; --json lists all"));
    }
    lines
}

fn number(value: &Value, key: &str) -> u64 {
    value.get(key).and_then(Value::as_u64).unwrap_or_default()
}

/// `1,234,567`.
fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `61.1 GB`.
pub(super) fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let unit = UNITS
        .iter()
        .zip(0..5u32)
        .rfind(|(_, power)| n >= 1000u64.pow(*power));
    match unit {
        Some((unit, power)) if power > 0 => format!("{:.1} {unit}", n as f64 / 1000f64.powi(power as i32)),
        _ => format!("{n} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(61_064_245_248), "61.1 GB");
    }
}
