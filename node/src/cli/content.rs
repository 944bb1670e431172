//! `hanzod content add | get | ls`.

use super::Context;
use super::job::segment;
use super::output::{table, text};
use crate::api::Client;
use clap::Subcommand;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Add a file or directory to the running node's store, pin it, announce it, and print its CID
    Add {
        /// The file or directory
        path: PathBuf,
    },
    /// Fetch a CID from whoever has it and write it to a file or directory
    Get {
        /// The CID
        cid: String,
        /// Where to write it [default: the CID, in the current directory]
        #[arg(long, short, value_name = "PATH")]
        out: Option<PathBuf>,
    },
    /// List the pinned content
    Ls,
}

pub(super) fn main(context: &Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Add { path } => add(context, &path),
        Command::Get { cid, out } => get(context, &cid, out.as_deref()),
        Command::Ls => ls(context),
    }
}

fn add(context: &Context, path: &Path) -> anyhow::Result<()> {
    // The node has its own current directory.
    let absolute = std::path::absolute(path)?;
    let added = Client::connect(&context.home)?.post("/v1/content", &json!({ "path": absolute }))?;
    context.output.show(&added, |added| text(added, "cid"));
    Ok(())
}

fn get(context: &Context, cid: &str, out: Option<&Path>) -> anyhow::Result<()> {
    let cid = segment(cid)?;
    let out = std::path::absolute(out.unwrap_or(Path::new(cid)))?;
    let got =
        Client::connect(&context.home)?.post(&format!("/v1/content/{cid}/get"), &json!({ "path": out }))?;
    context.output.show(&got, |_| format!("wrote {}", out.display()));
    Ok(())
}

fn ls(context: &Context) -> anyhow::Result<()> {
    let pins = Client::connect(&context.home)?.get("/v1/content")?;
    context.output.show(&pins, |pins| {
        let row = |pin: &Value| vec![text(pin, "cid"), text(pin, "name")];
        let rows: Vec<_> = pins.as_array().into_iter().flatten().map(row).collect();
        table(&["CID", "NAME"], &rows)
    });
    Ok(())
}
