//! `testnet bench`: how fast the node's own code is, between real processes.

mod data;
mod member;
mod pipe;
mod report;
mod ring;
mod stages;
mod sums;
mod words;

use anyhow::bail;
use clap::{Args, Subcommand};
use gym_protocol::job::spec::Wire;
use std::str::FromStr as _;

/// `testnet bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// All-reduce over loopback: one process a member, sealed links on
    Ring(RingArgs),
    /// One member of it; started by `ring`
    #[command(hide = true)]
    Member,
}

/// `testnet bench ring`.
#[derive(Clone, Debug, Args)]
struct RingArgs {
    /// Processes
    #[arg(long, default_value_t = 4, value_name = "N")]
    members: u32,
    /// MiB of f32 that each member brings
    #[arg(long, default_value_t = 64, value_name = "MIB")]
    mib: usize,
    /// Precision on the wire: f32, bf16, q8 or q4
    #[arg(long, default_value = "f32", value_name = "WIRE")]
    wire: String,
    /// Whether hops are hashed and signed, as in a job
    #[arg(long, value_enum, default_value = "signed")]
    hops: words::Hops,
    /// Whether frames may take sockets of their own
    #[arg(long, value_enum, default_value = "on")]
    direct_sockets: hanzod::net::DirectSockets,
    /// Rounds that count; one more comes first, with the handshakes
    #[arg(long, default_value_t = 7, value_name = "N")]
    rounds: u32,
    /// Run member K's process through this command, {} standing for K, {+1} for K+1 (such as `ip netns exec gym{+1}`)
    #[arg(long, value_name = "COMMAND")]
    through: Option<String>,
    /// The address that member K listens on, {} standing for K, {+1} for K+1
    #[arg(long, default_value = "/ip4/127.0.0.1/tcp/0", value_name = "MULTIADDR")]
    listen: String,
    /// End with one JSON object on the last line of standard output
    #[arg(long)]
    json: bool,
}

/// Runs a benchmark.
pub(crate) fn main(args: &BenchArgs) -> anyhow::Result<()> {
    match &args.what {
        What::Ring(args) => ring::main(args),
        What::Member => member::main(),
    }
}

/// The precision of that name.
fn wire(name: &str) -> anyhow::Result<Wire> {
    match Wire::from_str(name) {
        Ok(wire) => Ok(wire),
        Err(e) => bail!("--wire: {e}"),
    }
}

/// `text` with member `slot`'s number in it: from 0 for `{}`, from 1 for `{+1}`.
fn numbered(text: &str, slot: u32) -> String {
    text.replace("{}", &slot.to_string())
        .replace("{+1}", &(slot + 1).to_string())
}

#[cfg(test)]
mod tests {
    use super::numbered;

    #[test]
    fn members_are_numbered_from_0_or_from_1() {
        assert_eq!(
            numbered("/ip4/10.77.0.{+1}/tcp/410{}", 2),
            "/ip4/10.77.0.3/tcp/4102"
        );
    }
}
