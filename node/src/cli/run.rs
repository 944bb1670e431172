//! `hanzod run`.

use super::{Context, output};
use crate::config::{Config, DeviceChoice};
use crate::job::Fault;
use crate::logging;
use crate::net::{self, Mdns, Reachability};
use crate::role::Role;
use crate::runtime::Node;
use anyhow::Context as _;
use gym_training::memory::MemoryLimit;
use libp2p::Multiaddr;
use serde_json::json;
use std::net::SocketAddr;

/// Flags override the environment, which overrides config.toml.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What the node does (repeatable); with none it only stores and serves content
    #[arg(
        long = "role",
        env = "HANZOD_ROLE",
        value_delimiter = ',',
        value_name = "ROLE"
    )]
    roles: Vec<Role>,
    /// Where tensors live: auto, cpu or cuda:N
    #[arg(long, env = "HANZOD_DEVICE", value_name = "DEVICE")]
    device: Option<DeviceChoice>,
    /// Memory that a job may use, such as 8GiB, or auto for three quarters of what is free: larger batches are split
    #[arg(long, env = "HANZOD_MEMORY_LIMIT", value_name = "SIZE")]
    memory_limit: Option<MemoryLimit>,
    /// An address to listen on, such as /ip4/0.0.0.0/tcp/4011 or /ip4/0.0.0.0/udp/4011/quic-v1; port 0 is any free
    /// one (repeatable)
    #[arg(long, env = "HANZOD_LISTEN", value_delimiter = ',', value_name = "MULTIADDR")]
    listen: Vec<Multiaddr>,
    /// An address to join through, ending in /p2p/PEER (repeatable); the genesis file's are added
    #[arg(
        long,
        env = "HANZOD_BOOTSTRAP",
        value_delimiter = ',',
        value_name = "MULTIADDR",
        value_parser = bootstrap_address
    )]
    bootstrap: Vec<Multiaddr>,
    /// An address under which others reach this node, when it cannot see it itself (repeatable)
    #[arg(
        long,
        env = "HANZOD_EXTERNAL",
        value_delimiter = ',',
        value_name = "MULTIADDR"
    )]
    external: Vec<Multiaddr>,
    /// Whether others can reach this node: found out, or known
    #[arg(long, env = "HANZOD_REACHABILITY", value_name = "HOW")]
    reachability: Option<Reachability>,
    /// Look for peers on the local network
    #[arg(long, env = "HANZOD_MDNS", value_name = "ON|OFF")]
    mdns: Option<Mdns>,
    /// Where the local API listens, loopback only
    #[arg(long, env = "HANZOD_API_LISTEN", value_name = "ADDRESS:PORT")]
    api_listen: Option<SocketAddr>,
    /// What goes to the log file: error, warn, info, debug, trace, or directives such as info,hanzod=debug
    #[arg(long, env = "HANZOD_LOG", value_name = "LEVEL")]
    log: Option<String>,
    /// A fault to commit, KIND@ROUND (repeatable): for scenarios that test how others take it
    #[arg(long = "fault", hide = true, value_name = "KIND@ROUND")]
    faults: Vec<Fault>,
}

/// A bootstrap address; the error shows a right one.
fn bootstrap_address(text: &str) -> Result<Multiaddr, String> {
    const FORM: &str = "write /ip4/ADDRESS/tcp/PORT/p2p/PEER, the address in full, as you were given it";
    let address: Multiaddr = text.parse().map_err(|error| format!("{error}: {FORM}"))?;
    match net::peer_of(&address) {
        Some(_) => Ok(address),
        None => Err(format!("it does not end in /p2p/PEER: {FORM}")),
    }
}

impl Args {
    fn apply(self, config: &mut Config) {
        config.override_roles(&self.roles);
        replace_list(&mut config.network.listen, self.listen);
        replace_list(&mut config.network.bootstrap, self.bootstrap);
        replace_list(&mut config.network.external, self.external);
        replace(&mut config.training.device, self.device);
        replace(&mut config.training.memory_limit, self.memory_limit);
        replace(&mut config.network.reachability, self.reachability);
        replace(&mut config.network.mdns, self.mdns);
        replace(&mut config.api.listen, self.api_listen);
        replace(&mut config.log.level, self.log);
        config.faults = self.faults;
    }
}

fn replace<T>(target: &mut T, given: Option<T>) {
    if let Some(value) = given {
        *target = value;
    }
}

fn replace_list<T>(target: &mut Vec<T>, given: Vec<T>) {
    if !given.is_empty() {
        *target = given;
    }
}

pub(super) fn main(context: Context, args: Args) -> anyhow::Result<()> {
    context.home.require_initialised()?;
    let mut config = Config::load(&context.home.config())?;
    args.apply(&mut config);
    config.check()?;
    logging::start(&config.log, &context.home)?;
    for name in super::unknown_variables(std::env::vars_os().map(|(name, _)| name)) {
        tracing::warn!("the environment variable {name} is not known and has no effect");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting tasks")?;
    let result = runtime.block_on(run(context, config));
    // A blocking task that hangs must not keep the process.
    runtime.shutdown_timeout(std::time::Duration::from_secs(5));
    result
}

async fn run(context: Context, config: Config) -> anyhow::Result<()> {
    let roles = config.roles.clone();
    let node = Node::start(context.home.clone(), config)
        .await
        // To the log file; on the terminal it is the command's last line.
        .inspect_err(|error| tracing::error!(target: logging::FILE_ALONE, "{error}"))?;
    let identity = node.identity();
    tracing::info!(peer = %identity.peer(), genesis = %identity.genesis().short(), %roles, "started");
    let value = json!({
        "peer": identity.peer().to_string(),
        "genesis": identity.genesis().to_hex(),
        "roles": roles,
        "api": node.api(),
        "pid": std::process::id(),
    });
    context.output.show(&value, |value| {
        let log = context.home.log();
        format!(
            "peer   {}\nroles  {roles}\nlog    {}",
            output::text(value, "peer"),
            log.display()
        )
    });
    node.run_until_shutdown().await;
    Ok(())
}
