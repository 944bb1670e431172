//! `hanzod genesis new | check`.

use super::{Context, output};
use crate::files::{self, Access};
use crate::runtime::Network;
use anyhow::Context as _;
use clap::Subcommand;
use gym_protocol::genesis::{Genesis, template};
use serde_json::json;
use std::path::{Path, PathBuf};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Write a commented genesis file with the protocol's defaults
    ///
    /// Edit it (bootstrap addresses, stakes, constants) before anyone uses it: every change makes another network.
    New {
        /// The network's name: 1 to 64 of a-z, 0-9 and "-"
        #[arg(long, value_name = "NAME")]
        network: String,
        /// A bootstrap node's address, ending in /p2p/PEER (repeatable)
        #[arg(long, value_name = "MULTIADDR")]
        bootstrap: Vec<String>,
        /// Where to write it; an existing file is never replaced [default: standard output]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Check a genesis file and show its hash
    Check {
        /// The file
        file: PathBuf,
    },
}

pub(super) fn main(context: &Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::New {
            network,
            bootstrap,
            out,
        } => new(context, &network, &bootstrap, out.as_deref()),
        Command::Check { file } => check(context, &file),
    }
}

fn new(context: &Context, network: &str, bootstrap: &[String], out: Option<&Path>) -> anyhow::Result<()> {
    let created = OffsetDateTime::now_utc()
        .replace_nanosecond(0)
        .context("the system's clock")?
        .format(&Rfc3339)?;
    let text = with_bootstrap(&template(network, &created), bootstrap)?;
    let hash = Genesis::parse(&text)?.hash()?;
    let Some(path) = out else {
        output::line(text.trim_end());
        return Ok(());
    };
    files::write_new(path, text.as_bytes(), Access::Everyone)?;
    let value = json!({ "network": network, "genesis": hash.to_hex(), "file": path });
    context.output.show(&value, |_| {
        let path = path.display();
        format!("wrote {path}, genesis hash {hash}\nnext: hanzod init --genesis {path}")
    });
    Ok(())
}

/// Puts the addresses in the place of the template's empty list.
fn with_bootstrap(text: &str, bootstrap: &[String]) -> anyhow::Result<String> {
    if bootstrap.is_empty() {
        return Ok(text.to_owned());
    }
    let list = format!("bootstrap = {}", serde_json::to_string(bootstrap)?);
    let lines: Vec<&str> = text
        .lines()
        .map(|line| {
            if line.starts_with("bootstrap = ") {
                list.as_str()
            } else {
                line
            }
        })
        .collect();
    anyhow::ensure!(
        lines.contains(&list.as_str()),
        "the genesis template has no line for bootstrap addresses"
    );
    Ok(lines.join("\n") + "\n")
}

fn check(context: &Context, file: &Path) -> anyhow::Result<()> {
    let Network { genesis, hash } = Network::load(file)?;
    let value = json!({
        "network": genesis.network,
        "genesis": hash.to_hex(),
        "created": genesis.created,
        "bootstrap": genesis.bootstrap,
        "validators": genesis.validators.len(),
        "balances": genesis.balances.len(),
    });
    context.output.show(&value, |_| {
        format!(
            "{} is valid\nnetwork     {}\nhash        {hash}\ncreated     {}\nbootstrap   {} addresses\nvalidators  {}",
            file.display(),
            genesis.network,
            genesis.created,
            genesis.bootstrap.len(),
            genesis.validators.len(),
        )
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bootstrap_addresses_reach_the_file() {
        let address =
            "/ip4/192.0.2.1/tcp/4011/p2p/12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA".to_owned();
        let text = template("t", "2026-01-31T12:00:00Z");
        let genesis =
            Genesis::parse(&with_bootstrap(&text, std::slice::from_ref(&address)).unwrap()).unwrap();
        assert_eq!(genesis.bootstrap, [address]);
    }
}
