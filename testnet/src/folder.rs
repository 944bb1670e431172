//! The folder of one run: homes, genesis, results.

use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use time::OffsetDateTime;
use time::macros::format_description;

/// Where a run keeps everything.
#[derive(Clone, Debug)]
pub struct RunFolder {
    root: PathBuf,
}

impl RunFolder {
    /// A new folder at `given`, or one named by time and process beside the build's output (in the system's folder for
    /// temporary files when the program was installed).
    ///
    /// # Errors
    /// When it exists or cannot be made.
    pub fn create(given: Option<&Path>) -> anyhow::Result<Self> {
        let root = match given {
            Some(path) => std::path::absolute(path)?,
            None => runs()?.join(stamp()?),
        };
        if root.exists() {
            bail!("{} exists; give another --dir, or move it away", root.display());
        }
        std::fs::create_dir_all(&root)
            .with_context(|| format!("making the run folder {}", root.display()))?;
        Ok(Self { root })
    }

    /// The folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The network's genesis file.
    #[must_use]
    pub fn genesis(&self) -> PathBuf {
        self.root.join("genesis.toml")
    }

    /// A node's home.
    #[must_use]
    pub fn home(&self, name: &str) -> PathBuf {
        self.root.join("nodes").join(name)
    }

    /// The job file as submitted.
    #[must_use]
    pub fn job(&self) -> PathBuf {
        self.root.join("job.toml")
    }

    /// One JSON object a line: steps, rounds, reports.
    #[must_use]
    pub fn metrics(&self) -> PathBuf {
        self.root.join("metrics.jsonl")
    }

    /// The reward plot.
    #[must_use]
    pub fn plot(&self) -> PathBuf {
        self.root.join("reward.png")
    }

    /// The result as JSON.
    #[must_use]
    pub fn result(&self) -> PathBuf {
        self.root.join("result.json")
    }
}

fn runs() -> anyhow::Result<PathBuf> {
    let exe = std::env::current_exe().context("finding this program's own file")?;
    let profile = exe
        .parent()
        .filter(|dir| dir.ends_with("release") || dir.ends_with("debug"));
    Ok(match profile.and_then(Path::parent) {
        Some(target) => target.join("testnet"),
        None => std::env::temp_dir().join("gym-testnet"),
    })
}

fn stamp() -> anyhow::Result<String> {
    let format = format_description!("[year][month][day]-[hour][minute][second]");
    let now = OffsetDateTime::now_utc()
        .format(&format)
        .context("the system's clock")?;
    Ok(format!("{now}-{}", std::process::id()))
}
