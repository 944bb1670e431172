//! The command line. Each command is a file; each answers in plain lines, or with `--json` in JSON.

mod adapters;
mod bar;
mod check;
mod content;
mod delta;
mod eval;
mod generate;
mod genesis;
mod hub;
mod init;
mod job;
mod model;
mod output;
mod pace;
mod peers;
mod plot;
mod pretrain;
mod progress;
mod run;
mod status;
mod stop;
mod train;

use crate::api::ClientError;
use crate::content::command::CommandError;
use crate::home::Home;
use clap::{Parser, Subcommand};
use gym_training::eval::EvalError;
use gym_training::generate::GenerateError;
use gym_training::memory::DoesNotFit;
use gym_training::trainer::{StepError, TrainerError};
use output::Output;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// It failed; the last line on standard error says why.
const FAILED: u8 = 1;
/// The command line is not understood (clap's own code).
const USAGE: u8 = 2;
/// The command needs a running node and there is none.
const NOT_RUNNING: u8 = 3;
/// Training stopped: too many steps in a row were not finite, or the held-out answers' logits.
const NOT_FINITE: u8 = 4;
/// The model or its batches do not fit in memory.
const TOO_LARGE: u8 = 5;

const ABOUT: &str = "\
A GYM node: strangers' machines train one language model together.

To join a network, ask its people for the genesis file and the address of a bootstrap node:

    hanzod init --genesis genesis.toml
    hanzod run --role worker --bootstrap /ip4/192.0.2.1/tcp/4011/p2p/12D3KooW...

and in another terminal:

    hanzod status
    hanzod job watch JOB";

const CODES: &str = "\
Exit codes:
  0  done
  1  failed; the last line on standard error says why
  2  the command line is not understood
  3  no node is running in the home directory
  4  training stopped: too many steps in a row were not finite, or the adapter has left the finite numbers
  5  training does not fit in memory";

#[derive(Debug, Parser)]
#[command(name = "hanzod", version, about = "A GYM node", long_about = ABOUT, after_help = CODES)]
struct Cli {
    /// Where the node keeps keys, configuration, content and logs [default: ~/.hanzod]
    #[arg(long, global = true, env = "HANZOD_HOME", value_name = "DIR")]
    home: Option<PathBuf>,
    /// Answer in JSON on standard output: one value, or one a line (`job watch`, `generate --samples`); `content cat` gives
    /// bytes as they are
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write or check a network's genesis file
    #[command(subcommand)]
    Genesis(genesis::Command),
    /// Set a node up: keys, configuration, the network it belongs to
    Init(init::Args),
    /// Run the node until it is stopped (Ctrl-C, SIGTERM or `hanzod stop`)
    Run(Box<run::Args>),
    /// Stop the running node
    Stop,
    /// Show who the running node is and how it does
    Status,
    /// Show the peers it is connected to
    Peers,
    /// Submit and follow training jobs
    #[command(subcommand)]
    Job(job::Command),
    /// Add, fetch, keep and share files by their CIDs, as IPFS does
    #[command(subcommand)]
    Content(content::Command),
    /// Train a job on this machine alone, with no network
    Train(train::Args),
    /// Answer questions with a model and say how many are right
    Eval(eval::Args),
    /// Complete a prompt with a model
    Generate(generate::Args),
    /// Draw metrics of runs into a picture
    Plot(plot::Args),
    /// Train a small model from nothing
    Pretrain(pretrain::Args),
    /// Look into model directories, bring them from the Hugging Face Hub, put checkpoints there
    #[command(subcommand)]
    Model(check::Command),
    /// Look into delta files and check them
    #[command(subcommand)]
    Delta(delta::Command),
}

/// What every command gets.
struct Context {
    home: Home,
    output: Output,
}

/// The program: parses `args` (the first is its own name), does what they say, and tells how it went. `main` is this, and
/// the testnet runs its nodes through it.
pub fn main_from<I, T>(args: I) -> ExitCode
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come this way too; without a terminal to print to there is nothing left to do.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(USAGE)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    match dispatch(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&format!("error: {}", crate::explain::explain(&error)));
            ExitCode::from(exit_code(&error))
        }
    }
}

fn dispatch(cli: Cli) -> anyhow::Result<()> {
    let context = Context {
        home: Home::locate(cli.home.as_deref())?,
        output: Output::new(cli.json),
    };
    match cli.command {
        Command::Genesis(command) => genesis::main(&context, command),
        Command::Init(args) => init::main(&context, &args),
        Command::Run(args) => run::main(context, *args),
        Command::Stop => stop::main(&context),
        Command::Status => status::main(&context),
        Command::Peers => peers::main(&context),
        Command::Job(command) => job::main(&context, command),
        Command::Content(command) => content::main(&context, command),
        Command::Train(args) => train::main(&context, &args),
        Command::Eval(args) => eval::main(&context, &args),
        Command::Generate(args) => generate::main(&context, &args),
        Command::Plot(args) => plot::main(&context, &args),
        Command::Pretrain(args) => pretrain::main(&context, &args),
        Command::Model(command) => check::main(&context, command),
        Command::Delta(command) => delta::main(&context, command),
    }
}

/// Variables named `HANZOD_…` that no option knows: likely typing errors.
fn unknown_variables(set: impl Iterator<Item = OsString>) -> Vec<String> {
    use clap::CommandFactory;
    let cli = Cli::command();
    let commands = std::iter::once(&cli).chain(cli.get_subcommands());
    let known: Vec<OsString> = commands
        .flat_map(clap::Command::get_arguments)
        .filter_map(|argument| argument.get_env().map(std::ffi::OsStr::to_os_string))
        .collect();
    set.filter(|name| name.to_string_lossy().starts_with("HANZOD_") && !known.contains(name))
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

fn exit_code(error: &anyhow::Error) -> u8 {
    if let Some(ClientError::NotRunning(_)) = error.downcast_ref() {
        NOT_RUNNING
    } else if error.downcast_ref().is_some_and(CommandError::is_offline) {
        NOT_RUNNING
    } else if error.downcast_ref().is_some_and(is_not_finite) {
        NOT_FINITE
    } else if error.is::<DoesNotFit>() || matches!(error.downcast_ref(), Some(TrainerError::Memory(_))) {
        TOO_LARGE
    } else {
        FAILED
    }
}

fn is_not_finite(error: &StepError) -> bool {
    matches!(
        error,
        StepError::TooManyBadSteps { .. }
            | StepError::Evaluate(EvalError::Generate(GenerateError::NonFinite { .. }))
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn misspelt_variables_are_found() {
        let set = ["HANZOD_HOME", "HANZOD_LISTEN", "HANZOD_LISTNE", "PATH"];
        assert_eq!(
            unknown_variables(set.into_iter().map(OsString::from)),
            ["HANZOD_LISTNE"]
        );
    }
}
