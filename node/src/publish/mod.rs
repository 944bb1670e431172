//! Publishing checkpoints outside the network: to an IPFS node of the operator's, to the Hugging Face Hub.
//!
//! One task does it beside everything else: it takes the newest checkpoint there is, tries until it is published or a
//! newer one has come, and tells how it went. Training never waits for it.

mod config;
mod kubo;
#[cfg(test)]
mod tests;

pub use config::{Config, ConfigError};

use crate::content::unixfs::Limits;
use crate::content::{Cid, Content, car};
use crate::hub::{self, Hub, Repo};
use gym_protocol::ids::CidBytes;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// The pause after a failure; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(15 * 60);

/// A closed round's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub(crate) job: CidBytes,
    pub(crate) round: u64,
    pub(crate) root: Cid,
}

/// What became of a publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) checkpoint: Checkpoint,
    /// Where: `ipfs` or `hub`.
    pub(crate) place: &'static str,
    /// Under which address people find it, or why it is tried again later.
    pub(crate) result: Result<String, String>,
}

/// Takes checkpoints to be published.
#[derive(Clone, Debug)]
pub(crate) struct Publication(watch::Sender<Option<Checkpoint>>);

impl Publication {
    /// The newest counts; what waits behind it is left out.
    pub(crate) fn offer(&self, checkpoint: Checkpoint) {
        self.0.send_replace(Some(checkpoint));
    }
}

/// What the task works with.
#[derive(Debug)]
pub(crate) struct Publishing {
    config: Config,
    content: Content,
    /// For directories and files on their way out.
    scratch: PathBuf,
    newest: watch::Receiver<Option<Checkpoint>>,
    outcomes: mpsc::Sender<Outcome>,
}

/// The two ends: what takes checkpoints, and the task's work, to be [run](Publishing::run).
pub(crate) fn new(
    config: Config,
    content: Content,
    scratch: PathBuf,
    outcomes: mpsc::Sender<Outcome>,
) -> (Publication, Publishing) {
    let (sender, newest) = watch::channel(None);
    let publishing = Publishing {
        config,
        content,
        scratch,
        newest,
        outcomes,
    };
    (Publication(sender), publishing)
}

impl Publishing {
    /// Runs until the node stops. What a killed process left behind is removed first.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        if self.config == Config::default() {
            return;
        }
        // Nothing there is the usual case.
        let _ = tokio::fs::remove_dir_all(&self.scratch).await;
        tokio::select! {
            () = self.publish_all() => {}
            () = stop.cancelled() => {}
        }
    }

    async fn publish_all(&mut self) {
        let mut last = None;
        while self.newest.changed().await.is_ok() {
            let newest = self.newest.borrow_and_update().clone();
            // A node of several roles hears of a checkpoint several times.
            let Some(checkpoint) = newest.filter(|newest| last.as_ref() != Some(newest)) else {
                continue;
            };
            last = Some(checkpoint.clone());
            if let Some(url) = self.config.ipfs_url.clone() {
                self.until_done(&checkpoint, Place::Ipfs(url)).await;
            }
            if let Some(repo) = self.config.hub_repo.clone() {
                self.until_done(&checkpoint, Place::Hub(repo)).await;
            }
        }
    }

    /// Tries until it is done, or there is something newer.
    async fn until_done(&mut self, checkpoint: &Checkpoint, place: Place) {
        let mut pause = FIRST_PAUSE;
        loop {
            let result = self.attempt(checkpoint.clone(), place.clone()).await;
            let is_done = result.is_ok();
            if let Err(why) = &result {
                tracing::warn!(
                    round = checkpoint.round,
                    place = place.name(),
                    ?pause,
                    "not published, tried again: {why}"
                );
            }
            let outcome = Outcome {
                checkpoint: checkpoint.clone(),
                place: place.name(),
                result,
            };
            // Nobody listens only when the node stops.
            let _ = self.outcomes.send(outcome).await;
            if is_done || self.newest.has_changed().unwrap_or(true) {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            if self.newest.has_changed().unwrap_or(true) {
                return;
            }
        }
    }

    async fn attempt(&self, checkpoint: Checkpoint, place: Place) -> Result<String, String> {
        let (store, config) = (self.content.store().clone(), self.config.clone());
        let scratch = self
            .scratch
            .join(format!("{}-{}", checkpoint.round, place.name()));
        let work = tokio::task::spawn_blocking(move || {
            let sent = std::fs::create_dir_all(&scratch)
                .map_err(|e| format!("cannot create {}: {e}", scratch.display()))
                .and_then(|()| place.send(&store, &checkpoint, &config, &scratch));
            // What is left is removed at the next start.
            let _ = std::fs::remove_dir_all(&scratch);
            sent
        });
        work.await
            .unwrap_or_else(|e| Err(format!("publishing was cut off: {e}")))
    }
}

/// Where a checkpoint goes.
#[derive(Clone, Debug)]
enum Place {
    Ipfs(String),
    Hub(Repo),
}

impl Place {
    fn name(&self) -> &'static str {
        match self {
            Self::Ipfs(_) => "ipfs",
            Self::Hub(_) => "hub",
        }
    }

    fn send(
        &self,
        store: &crate::content::Store,
        checkpoint: &Checkpoint,
        config: &Config,
        scratch: &Path,
    ) -> Result<String, String> {
        match self {
            Self::Ipfs(url) => {
                let file = scratch.join("checkpoint.car");
                car::write_file(store, checkpoint.root, &file).map_err(|e| e.to_string())?;
                kubo::import(url, &file, checkpoint.root).map_err(|e| e.to_string())
            }
            Self::Hub(repo) => {
                let dir = scratch.join("checkpoint");
                crate::content::unixfs::export(store, &checkpoint.root.into(), &dir, Limits::default())
                    .map_err(|e| e.to_string())?;
                let server = Hub::new(&config.hub_endpoint).map_err(|e| e.to_string())?;
                let summary = format!(
                    "Round {} of job {} ({})",
                    checkpoint.round, checkpoint.job, checkpoint.root
                );
                let pushed = hub::push(&server, repo, &dir, &summary, config.hub_visibility);
                pushed.map(|pushed| pushed.url).map_err(|e| e.to_string())
            }
        }
    }
}
