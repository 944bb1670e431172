//! `hanzod model merge` and `hanzod model export`: adapters for programs that do not know GYM.

use super::output::Output;
use gym_training::adapter::{Adapter, ExpertNames};
use gym_training::merge::{MergeOptions, MergedDtype, merge};
use gym_training::model::ModelConfig;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Bytes in the unit of `--shard-size`.
const GB: f64 = 1e9;

#[derive(Debug, clap::Args)]
pub(super) struct MergeArgs {
    /// The base model: a Hugging Face directory
    model: PathBuf,
    /// The adapter: a PEFT directory, such as a job's checkpoint
    adapter: PathBuf,
    /// Where the merged model goes: a directory without weights, made if it is not there
    out: PathBuf,
    /// Kind of the merged values
    #[arg(long, value_enum, default_value_t = Dtype::Keep)]
    dtype: Dtype,
    /// Largest weight file, in GB
    #[arg(long, default_value_t = 5.0, value_name = "GB")]
    shard_size: f64,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Dtype {
    /// As in the base model
    Keep,
    F32,
    Bf16,
    F16,
}

#[derive(Debug, clap::Args)]
pub(super) struct ExportArgs {
    /// The adapter: a PEFT directory, such as a job's checkpoint
    adapter: PathBuf,
    /// Where it goes; made if it is not there
    out: PathBuf,
    /// How adapters of routed experts are laid out
    #[arg(long, value_enum, default_value_t = Layout::Peft)]
    layout: Layout,
    /// The base model's directory: its family says what experts are called (needed for Mixtral alone)
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// The base model's name, for the adapter's configuration
    #[arg(long, value_name = "NAME")]
    base: Option<String>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Layout {
    /// All experts of a layer in one tensor
    Peft,
    /// One name for each expert
    Vllm,
}

pub(super) fn merge_main(output: Output, args: &MergeArgs) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.shard_size.is_finite() && args.shard_size > 0.0,
        "--shard-size is {}; it must be above 0",
        args.shard_size
    );
    let options = MergeOptions {
        dtype: match args.dtype {
            Dtype::Keep => MergedDtype::Kept,
            Dtype::F32 => MergedDtype::F32,
            Dtype::Bf16 => MergedDtype::Bf16,
            Dtype::F16 => MergedDtype::F16,
        },
        shard_bytes: (args.shard_size * GB) as u64,
    };
    let report = merge(&args.model, &Adapter::load(&args.adapter)?, &args.out, &options)?;
    let value = json!({
        "out": args.out,
        "tensors": report.tensors,
        "layers": report.layers,
        "shards": report.shards,
        "bytes": report.bytes,
    });
    output.show(&value, |_| {
        format!(
            "{}: {} tensors in {} file(s), {}; {} layers changed",
            args.out.display(),
            report.tensors,
            report.shards,
            super::check::bytes(report.bytes),
            report.layers
        )
    });
    Ok(())
}

pub(super) fn export_main(output: Output, args: &ExportArgs) -> anyhow::Result<()> {
    let mut adapter = Adapter::load(&args.adapter)?;
    if let Layout::Vllm = args.layout {
        let names = match &args.model {
            Some(dir) => ModelConfig::load(dir)?.architecture.into(),
            None => ExpertNames::Projections,
        };
        adapter = adapter.per_expert(names)?;
    }
    if let Some(base) = &args.base {
        adapter.base.clone_from(base);
    }
    adapter.save(&args.out)?;
    let value: Value = json!({ "out": args.out, "tensors": adapter.tensors.0.len() });
    output.show(&value, |_| {
        format!("{}: {} tensors", args.out.display(), adapter.tensors.0.len())
    });
    Ok(())
}
