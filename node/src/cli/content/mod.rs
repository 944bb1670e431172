//! `hanzod content ...`: with a running node through its API, else on the store of the home directly.

mod ask;
mod show;

use super::Context;
use crate::content::command::{Command as Order, Missing};
use crate::content::unixfs::Layout;
use ask::Place;
use clap::Subcommand;
use serde_json::Value;
use std::path::{Path, PathBuf};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Add a file or directory to the store, pin it, announce it, and print its CID
    Add {
        /// The file or directory; of a directory, names that begin with a dot are left out
        path: PathBuf,
        /// How files are cut: cidv1-raw-256k-174 gives the CIDs of `ipfs add --cid-version=1`, unixfs-v1-2025 those of
        /// the newer profile with chunks of 1 MiB
        #[arg(long, value_name = "NAME", default_value = "cidv1-raw-256k-174")]
        profile: Layout,
        /// As Kubo's: directories are added whole anyway
        #[arg(long, short, hide = true)]
        recursive: bool,
    },
    /// Fetch content from whoever has it and write it to a file or directory
    Get {
        /// A CID, a path under it (CID/name), or /ipfs/CID/...
        path: String,
        /// Where to write it [default: the path's last part, in the current directory]
        #[arg(long, short, value_name = "PATH")]
        out: Option<PathBuf>,
    },
    /// Write a file's bytes to standard output
    Cat {
        /// A CID, a path under it (CID/name), or /ipfs/CID/...
        path: String,
        /// Begin at this byte
        #[arg(long, default_value_t = 0, value_name = "BYTES")]
        offset: u64,
        /// Write at most this many bytes
        #[arg(long, value_name = "BYTES")]
        length: Option<u64>,
    },
    /// List the pinned content, or what is in a directory
    Ls {
        /// A CID, a path under it (CID/name), or /ipfs/CID/... [default: list the pins]
        path: Option<String>,
    },
    /// Fetch content and keep it until it is unpinned
    Pin {
        /// A CID, a path under it (CID/name), or /ipfs/CID/...
        path: String,
        /// What it is for [default: the path's last part]
        #[arg(long)]
        name: Option<String>,
    },
    /// Let collection take pinned content again
    Unpin {
        /// The CID
        cid: String,
    },
    /// Remove what no pin reaches
    Gc,
    /// Show how large the store is and how large it may become
    Stat,
    /// Read every block, remove damaged ones, and look for pins that are not whole; exit code 1 when any is not
    Verify {
        /// Fetch what is missing under pins
        #[arg(long)]
        repair: bool,
    },
    /// Announce on the network that this node has a CID (what is added or pinned is announced anyway)
    Provide {
        /// The CID
        cid: String,
    },
    /// Show which peers have announced a CID
    Find {
        /// The CID
        cid: String,
    },
    /// Write content with everything under it to a CAR file, which `ipfs dag import` and this program's `import` read
    Export {
        /// A CID, a path under it (CID/name), or /ipfs/CID/...
        path: String,
        /// Where to write it [default: CID.car in the current directory]
        #[arg(long, short, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Take a CAR file in (version 1 or 2, such as `ipfs dag export` writes), and pin its roots
    Import {
        /// The file
        file: PathBuf,
    },
}

pub(super) fn main(context: &Context, command: Command) -> anyhow::Result<()> {
    let place = Place::find(&context.home)?;
    let (order, plain) = match order(command)? {
        Asked::Order(order, plain) => (order, plain),
        Asked::Bytes { path, offset, length } => return ask::cat(&place, &path, offset, length),
    };
    let answer = place.ask(&order).map_err(|error| named(error, &order))?;
    context.output.show(&answer, plain);
    if let Order::Add { .. } | Order::Pin { .. } | Order::Import { .. } = order
        && let Some(words) = show::not_announced(&answer)
    {
        context.output.note(&words);
    }
    if let Order::Verify { .. } = order {
        return show::judge(&answer);
    }
    Ok(())
}

/// An error of a file that does not say which.
fn named(error: anyhow::Error, order: &Order) -> anyhow::Error {
    let Order::Import { file } = order else {
        return error;
    };
    let file = file.display().to_string();
    if error.to_string().contains(&file) {
        error
    } else {
        error.context(file)
    }
}

type Plain = fn(&Value) -> String;

/// What a command asks for.
enum Asked {
    /// A value, and how it is shown to people.
    Order(Order, Plain),
    /// A file's bytes as they are.
    Bytes {
        path: String,
        offset: u64,
        length: Option<u64>,
    },
}

fn order(command: Command) -> anyhow::Result<Asked> {
    let absolute = |path: &Path| std::path::absolute(path);
    let (order, plain): (Order, Plain) = match command {
        Command::Cat { path, offset, length } => return Ok(Asked::Bytes { path, offset, length }),
        Command::Add { path, profile, .. } => (
            Order::Add {
                path: absolute(&path)?,
                layout: profile,
            },
            show::cid,
        ),
        Command::Get { path, out } => {
            let out = absolute(&out.unwrap_or_else(|| last(&path).into()))?;
            (Order::Get { path, out }, show::written)
        }
        Command::Ls { path: None } => (Order::Pins, show::pins),
        Command::Ls { path: Some(path) } => (Order::Ls { path }, show::entries),
        Command::Pin { path, name } => (Order::Pin { path, name }, show::pinned),
        Command::Unpin { cid } => (Order::Unpin { cid }, show::unpinned),
        Command::Gc => (Order::Gc, show::collected),
        Command::Stat => (Order::Stat, show::stat),
        Command::Verify { repair } => {
            let missing = if repair { Missing::Fetch } else { Missing::Tell };
            (Order::Verify { missing }, show::verified)
        }
        Command::Provide { cid } => (Order::Provide { cid }, show::provided),
        Command::Find { cid } => (Order::Find { cid }, show::providers),
        Command::Export { path, out } => {
            let out = absolute(&out.unwrap_or_else(|| format!("{}.car", last(&path)).into()))?;
            (Order::Export { path, out }, show::exported)
        }
        Command::Import { file } => (
            Order::Import {
                file: absolute(&file)?,
            },
            show::imported,
        ),
    };
    Ok(Asked::Order(order, plain))
}

/// A path's last part.
fn last(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or(path)
}
