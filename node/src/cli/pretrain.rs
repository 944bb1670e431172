//! `hanzod pretrain`.

use super::Context;
use gym_training::pretrain::{self, PretrainConfig};
use serde_json::json;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The pretraining file (TOML): seed, sizes, corpus, stages, optimizer
    config: PathBuf,
    /// Where the Hugging Face directory goes; a run that was interrupted there goes on
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub(super) fn main(context: &Context, args: &Args) -> anyhow::Result<()> {
    let config = PretrainConfig::load(&args.config)?;
    let summary = pretrain::run(&config, &args.out, &mut *pretrain::observer())?;
    let value = json!({
        "model": args.out,
        "steps": summary.steps,
        "tokens": summary.tokens,
        "loss": summary.loss,
        "parameters": summary.parameters,
    });
    context.output.show(&value, |_| {
        format!(
            "wrote {}: {} parameters, {} steps, {} tokens, loss {:.4}",
            args.out.display(),
            summary.parameters,
            summary.steps,
            summary.tokens,
            summary.loss
        )
    });
    Ok(())
}
