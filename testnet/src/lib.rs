//! Real nodes on this machine: one network from nothing, the sample job, faults, and a report.
//!
//! Every node is a process of this very program: `testnet node ARGUMENTS` is `hanzod ARGUMENTS` ([`node::entry`]).

mod args;
mod bench;
mod board;
mod bytes;
mod cpu;
mod event;
mod folder;
pub mod interrupt;
mod job;
pub mod netlab;
pub mod network;
pub mod node;
mod output;
mod plot;
mod progress;
mod record;
mod report;
mod run;
pub mod scenario;
mod sim;
mod watch;

pub use board::Board;
pub use event::{Event, Kind};
pub use folder::RunFolder;
pub use watch::Watch;

use args::{Cli, Command};
use clap::Parser;
use std::ffi::OsString;
use std::process::ExitCode;

/// The program: `args[0]` is its name. A first argument `node` makes it a node.
#[must_use]
pub fn main_from(args: Vec<OsString>) -> ExitCode {
    if args.get(1).is_some_and(|first| first == node::ENTRY) {
        return node::entry(&args[2..]);
    }
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(2)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    let done = match cli.command {
        None => run::main(&cli.run),
        Some(Command::Faults(args)) => scenario::main(&args),
        Some(Command::Sim(args)) => sim::main(&args),
        Some(Command::Bench(args)) => bench::main(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&format!("error: {}", hanzod::explain::explain(&error)));
            ExitCode::FAILURE
        }
    }
}
