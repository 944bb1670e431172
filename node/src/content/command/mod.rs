//! What people ask of content, as values: the API takes them as JSON, and the command line runs them itself on the store
//! when no node does.

mod error;
mod keep;
mod transfer;

pub use error::CommandError;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;

use super::Content;
use super::unixfs::Layout;

/// A block or a whole fetch that gets nothing for this long is given up.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A question or an order. Paths on disk are absolute: the node has its own current directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    /// Add a file or directory, pin it, and announce it where there is a network. Answers `cid`, `bytes`, `total_size`,
    /// `announced`, and the `reason` why it is not, if so.
    Add {
        /// The file or directory.
        path: PathBuf,
        /// How files are cut.
        #[serde(default)]
        layout: Layout,
    },
    /// Fetch what a path leads to and write it to disk. Answers `cid`, `path`, `bytes`, `fetched`.
    Get {
        /// `CID`, `CID/name/...`, `/ipfs/CID/...` or `ipfs://CID/...`.
        path: String,
        /// Where to; must not exist.
        out: PathBuf,
    },
    /// The pinned roots: an array of `cid`, `name`, `since`, one for each name.
    Pins,
    /// The entries of a directory: an array of `name`, `cid`, `size`.
    Ls {
        /// As in `Get`.
        path: String,
    },
    /// Fetch everything under a path, keep it and announce it. Answers `cid`, `name`, `fetched`, `announced`, and the
    /// `reason` why it is not, if so.
    Pin {
        /// As in `Get`.
        path: String,
        /// What it is for [default: the path's last name].
        name: Option<String>,
    },
    /// Let collection take a root again. Answers `cid`.
    Unpin {
        /// The root.
        cid: String,
    },
    /// Remove what no pin reaches. Answers `removed`, `freed`, `kept`, `missing`.
    Gc,
    /// Sizes and limits: `blocks`, `bytes`, `limit`, `pins`, `disk_free`.
    Stat,
    /// Read every block, remove damaged ones, and look for pins that are not whole: `good`, `removed`, `incomplete`,
    /// `repaired`, `failed` (`cid` and `error` of pins that could not be), `unreadable` (why blocks could neither be read
    /// nor removed).
    Verify {
        /// What to do about blocks that are missing under pins.
        #[serde(default)]
        missing: Missing,
    },
    /// Announce a root. Answers `cid`, `announced`, and the `reason` why it is not, if so.
    Provide {
        /// The root.
        cid: String,
    },
    /// Who announced a CID. Answers `cid`, `providers`.
    Find {
        /// The CID.
        cid: String,
    },
    /// Write everything under a path to a CAR file. Answers `root`, `blocks`, `bytes`, `path`.
    Export {
        /// As in `Get`.
        path: String,
        /// Where to; must not exist.
        out: PathBuf,
    },
    /// Take the blocks of a CAR file in, fetch what it lacks under its roots, pin those and announce them. Answers `roots`,
    /// `blocks`, `bytes`, `fetched`, `announced` (all of them), and the `reason` why one is not, if so.
    Import {
        /// The file.
        file: PathBuf,
    },
}

/// What verification does about blocks that are missing under pins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Missing {
    /// Tell.
    #[default]
    Tell,
    /// Fetch them again.
    Fetch,
}

/// How far a command is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Bytes dealt with.
    pub bytes: u64,
    /// Of this many, once that is known.
    pub total: Option<u64>,
    /// Of the bytes dealt with, those that were here before.
    #[serde(default)]
    pub held: u64,
}

/// Told how far a command is.
pub type Meter = watch::Sender<Moved>;

impl Content {
    /// Does what a command says.
    ///
    /// # Errors
    /// [`CommandError`].
    pub async fn run(&self, command: Command, meter: Meter) -> Result<Value, CommandError> {
        match command {
            Command::Add { path, layout } => self.command_add(path, layout, meter).await,
            Command::Get { path, out } => self.command_get(&path, out, &meter).await,
            Command::Pins => self.command_pins().await,
            Command::Ls { path } => self.command_ls(&path).await,
            Command::Pin { path, name } => self.command_pin(&path, name, &meter).await,
            Command::Unpin { cid } => self.command_unpin(&cid).await,
            Command::Gc => self.command_gc().await,
            Command::Stat => self.command_stat().await,
            Command::Verify { missing } => self.command_verify(missing, &meter).await,
            Command::Provide { cid } => self.command_provide(&cid).await,
            Command::Find { cid } => self.command_find(&cid).await,
            Command::Export { path, out } => self.command_export(&path, out, meter).await,
            Command::Import { file } => self.command_import(file, meter).await,
        }
    }
}
