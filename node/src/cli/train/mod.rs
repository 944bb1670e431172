//! `hanzod train`: a job on one machine with no network: one member, so that a round's mean is its own delta.

mod checkpoint;
mod run;

use super::Context;
use crate::config::DeviceChoice;
use crate::files;
use crate::job::device;
use anyhow::Context as _;
use gym_protocol::job::spec::JobFile;
use run::Run;
use std::path::PathBuf;

/// The longest job file, in bytes.
const MAX_FILE: u64 = 256 * 1024;

/// Trains as a network of one would: rounds of `aggregate_interval` steps, the outer step after each. What is in `out` is
/// continued: adapter, moments, position and step are kept after every round.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The job file (TOML); model and questions are paths in it, relative to its directory
    file: PathBuf,
    /// Where adapter, metrics, plot and checkpoint go
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Where tensors live: auto, cpu or cuda:N
    #[arg(long, env = "HANZOD_DEVICE", default_value = "auto", value_name = "DEVICE")]
    device: DeviceChoice,
}

pub(super) fn main(context: &Context, args: &Args) -> anyhow::Result<()> {
    let text = files::read_text(&args.file, MAX_FILE)?;
    let job = JobFile::parse(&text).with_context(|| args.file.display().to_string())?;
    let absolute = std::path::absolute(&args.file)?;
    let base = absolute.parent().map(PathBuf::from).unwrap_or_default();
    let (device, _) = device::resolve(args.device)?;
    let report = Run::start(&job, &text, &base, &args.out, &device)?.finish()?;
    context.output.show(&report, run::plain);
    Ok(())
}
