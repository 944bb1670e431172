//! Compares this engine with reference numbers and says how far it is from them.

#![allow(clippy::print_stdout, reason = "a command's result")]

use clap::Parser;
use gym_training::device::{DeviceChoice, resolve};
use gym_training::reference::{Check, Measure, Options, Report, compare};
use std::path::PathBuf;
use std::process::ExitCode;

/// Compares this engine with numbers that transformers, PEFT, TRL and bitsandbytes computed.
///
/// Each DIR is a set of reference numbers, or a folder with sets below it. What kind of set it is, is told by the files
/// in it: a model with its expected.safetensors, gspo.safetensors, step.json, nf4.safetensors and so on. For every
/// quantity in a set the largest difference is printed beside what is allowed. The exit code is 0 when every difference is allowed,
/// 1 when one is not or a quantity is missing or unknown, and 2 when a DIR cannot be read.
///
/// Differences are absolute, relative to the largest value of the same tensor ("rel"), or counts of places that differ
/// where nothing may ("exact").
#[derive(Debug, Parser)]
#[command(name = "reference", version)]
#[command(after_help = "Examples:\n  \
    reference training/tests/fixtures                 every set there\n  \
    reference models/qwen3 models/qwen3_next          two models\n  \
    reference nf4-other --models models               a set whose base model lies elsewhere\n  \
    reference qwen3_tokenizer --tokenizer tokenizer.json")]
struct Args {
    /// A set of reference numbers, or a folder that holds sets
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// The folder of the base models that sets refer to [default: the folder beside the set that has the model, or
    /// ../models]
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// The tokenizer.json that a tokenizer set was made with [default: the one in the set]
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Where models run: cpu, cuda:N or auto; on a GPU the bf16 sets alone are meant to agree
    #[arg(long, default_value = "cpu")]
    device: DeviceChoice,
    /// Print one JSON object a set instead of tables
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let device = match resolve(args.device) {
        Ok(chosen) => chosen.device,
        Err(error) => {
            eprintln!("reference: {error}");
            return ExitCode::from(2);
        }
    };
    let options = Options {
        models: args.models,
        tokenizer: args.tokenizer,
        device: Some(device),
    };
    let (mut sets, mut failed, mut unreadable) = (0usize, 0usize, false);
    for dir in &args.dirs {
        match compare(dir, &options) {
            Ok(reports) => {
                for report in &reports {
                    sets += 1;
                    failed += usize::from(!report.passes());
                    if args.json {
                        print_json(report);
                    } else {
                        print_table(report);
                    }
                }
            }
            Err(error) => {
                eprintln!("reference: {error}");
                unreadable = true;
            }
        }
    }
    if !args.json {
        println!("{} of {sets} sets agree", sets - failed);
    }
    ExitCode::from(if unreadable { 2 } else { u8::from(failed > 0) })
}

fn print_json(report: &Report) {
    let mut value = serde_json::json!(report);
    value["passes"] = report.passes().into();
    println!("{value}");
}

fn print_table(report: &Report) {
    println!("{} ({})", report.dir.display(), report.kind);
    let width = report.checks.iter().map(|c| c.quantity.len()).max().unwrap_or(0);
    for check in &report.checks {
        println!("  {}", line(check, width));
    }
    for problem in &report.problems {
        println!("  FAILS  {problem}");
    }
    println!();
}

fn line(check: &Check, width: usize) -> String {
    let (verdict, name) = (if check.passes() { "ok   " } else { "FAILS" }, &check.quantity);
    let values = check.values;
    let place = if check.worst > 0.0 && !check.place.is_empty() {
        format!("  at {}", check.place)
    } else {
        String::new()
    };
    match check.measure {
        Measure::Exact => format!(
            "{verdict}  {name:width$}  {:>9} differ  of {values}{place}",
            check.worst
        ),
        Measure::Absolute | Measure::Relative => {
            let relative = if check.measure == Measure::Relative {
                " rel"
            } else {
                "    "
            };
            format!(
                "{verdict}  {name:width$}  {:>9.2e}{relative}  allowed {:.1e}, {values} values{place}",
                check.worst, check.tolerance
            )
        }
    }
}
