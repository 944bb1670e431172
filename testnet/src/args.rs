//! The command line.

use crate::scenario::{self, Scenario, Set};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

const ABOUT: &str = "\
A whole GYM network on this machine: one bootstrap node, one orchestrator, one
validator and four workers, each a process of its own, train the sample model
together and show what came of it.";

#[derive(Debug, Parser)]
#[command(name = "testnet", version, about = "A whole GYM network on this machine", long_about = ABOUT)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the survival scenarios: killed, silent and lying workers
    Faults(FaultArgs),
    /// Play a scenario file in the simulator: up to thousands of members on a virtual clock
    Sim(SimArgs),
    /// Measure the speed of the node's own code
    Bench(crate::bench::BenchArgs),
}

/// The run without a command.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// End with one JSON object on the last line of standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// The job file to submit [default: the sample job]
    #[arg(long, value_name = "FILE")]
    pub(crate) job: Option<PathBuf>,
    /// Workers to start
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub(crate) workers: usize,
    /// The job's seed in place of the file's
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// The job's rounds in place of the file's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rounds: Option<u64>,
    /// The ring's precision in place of the file's: f32, bf16, q8 or q4
    #[arg(long, value_name = "WIRE", value_parser = ["f32", "bf16", "q8", "q4"])]
    pub(crate) wire: Option<String>,
    /// Where homes, logs and results go; it must not exist [default: a new folder beside the build's output]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Give up after this many seconds
    #[arg(long, default_value_t = 3600, value_name = "SECONDS")]
    pub(crate) timeout: u64,
}

/// `testnet faults`.
#[derive(Debug, Args)]
pub(crate) struct FaultArgs {
    /// Scenarios to run [default: those on loopback]
    #[arg(value_name = "SCENARIO")]
    pub(crate) names: Vec<String>,
    /// The short ones in network namespaces (Linux, root)
    #[arg(long, conflicts_with_all = ["names", "all"])]
    pub(crate) quick: bool,
    /// Every one
    #[arg(long, conflicts_with = "names")]
    pub(crate) all: bool,
    /// End with one JSON array on the last line of standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// Only list them: every one, or those that --quick or names choose
    #[arg(long)]
    pub(crate) list: bool,
}

impl FaultArgs {
    /// The scenarios asked for that exist.
    pub(crate) fn chosen(&self) -> Vec<&'static Scenario> {
        let wanted = |s: &&Scenario| {
            if self.names.is_empty() {
                self.all
                    || self.list && !self.quick
                    || (s.set == Set::Quick) == self.quick && s.set != Set::Long
            } else {
                self.names.iter().any(|name| name == s.name)
            }
        };
        scenario::ALL.iter().filter(wanted).collect()
    }

    /// Names that no scenario has.
    pub(crate) fn unknown(&self) -> impl Iterator<Item = &str> {
        let known = |name: &&str| scenario::ALL.iter().any(|s| s.name == *name);
        self.names
            .iter()
            .map(String::as_str)
            .filter(move |name| !known(name))
    }
}

/// `testnet sim`.
#[derive(Debug, Args)]
pub(crate) struct SimArgs {
    /// The scenario, as those under testnet/scenarios
    #[arg(value_name = "SCENARIO.toml")]
    pub(crate) scenario: PathBuf,
    /// End with one JSON object on the last line of standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// The seed in place of the file's
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn a_list_leaves_nothing_out_unless_asked_to() {
        let chosen = |line: &str| {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            match cli.command {
                Some(Command::Faults(args)) => args.chosen().len(),
                _ => unreachable!(),
            }
        };
        assert_eq!(chosen("testnet faults --list"), scenario::ALL.len());
        assert!(chosen("testnet faults --list --quick") < scenario::ALL.len());
        assert!(chosen("testnet faults") < scenario::ALL.len());
    }

    #[test]
    fn values_that_no_job_takes_are_refused_at_once() {
        for line in ["testnet --wire q9", "testnet --rounds 0"] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
