//! `hanzod init`.

use super::Context;
use crate::config;
use crate::files::{self, Access};
use crate::home::HomeError;
use crate::identity::NodeIdentity;
use crate::runtime::Network;
use serde_json::json;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The genesis file of the network that the node belongs to
    #[arg(long, value_name = "FILE")]
    genesis: PathBuf,
}

pub(super) fn main(context: &Context, args: &Args) -> anyhow::Result<()> {
    let home = &context.home;
    let network = Network::load(&args.genesis)?;
    if home.is_initialised() {
        return Err(HomeError::AlreadyInitialised(home.root().to_path_buf()).into());
    }
    home.create()?;
    let _lock = home.lock()?;
    let text = files::read(&args.genesis, gym_protocol::genesis::MAX_FILE as u64)?;
    files::write_atomic(&home.genesis(), &text, Access::Everyone)?;
    if !home.config().exists() {
        files::write_new(&home.config(), config::TEMPLATE.as_bytes(), Access::Everyone)?;
    }
    let identity = NodeIdentity::create(home, network.hash)?;
    let value = json!({
        "home": home.root(),
        "peer": identity.peer().to_string(),
        "record": identity.record_hash().to_hex(),
        "network": network.genesis.network,
        "genesis": network.hash.to_hex(),
    });
    context.output.show(&value, |_| {
        format!(
            "home     {}\npeer     {}\nrecord   {}\nnetwork  {} ({})\nnext: look at config.toml, then\nhanzod run --home {} --role ROLE --bootstrap ADDRESS",
            home.root().display(),
            identity.peer(),
            identity.record_hash(),
            network.genesis.network,
            network.hash.short(),
            home.root().display(),
        )
    });
    Ok(())
}
