//! Publishing checkpoints outside the network: to an IPFS node of the operator's, to the Hugging Face Hub.
//!
//! One task does it beside everything else: it takes the newest checkpoint there is, tries until it is published or a
//! newer one has come, and tells how it went. Training never waits for it. What waits when the node stops is taken up again at
//! the next start.

mod config;
mod journal;
mod kubo;
#[cfg(test)]
mod tests;

pub use config::{Config, ConfigError};

use self::journal::{Journal, Pending};
use crate::content::unixfs::Limits;
use crate::content::{Cid, Content, car};
use crate::hub::{self, Hub, Repo};
use gym_protocol::ids::CidBytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;
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
pub(crate) struct Publication {
    newest: watch::Sender<Option<Checkpoint>>,
    uses: watch::Receiver<Uses>,
    /// Nothing where nothing is published.
    journal: Option<Arc<Journal>>,
}

/// Checkpoints that must stay for publication's sake.
#[derive(Clone, Debug, Default)]
struct Uses {
    under_way: Option<Cid>,
    last: Option<Cid>,
}

impl Publication {
    /// The newest counts; what waits behind it is left out. A node of several roles hears of a checkpoint several times.
    pub(crate) async fn offer(&self, checkpoint: Checkpoint) {
        let is_new = self.newest.send_if_modified(|newest| {
            let is_new = newest.as_ref() != Some(&checkpoint);
            *newest = Some(checkpoint.clone());
            is_new
        });
        if let Some(journal) = self.journal.clone().filter(|_| is_new) {
            // It fails only when the node stops.
            let _ = tokio::task::spawn_blocking(move || journal.begin(&checkpoint)).await;
        }
    }

    /// The checkpoints that are being published, wait for it, or were published last.
    pub(crate) fn used(&self) -> Vec<Cid> {
        let offered = self.journal.as_ref().and_then(|_| self.newest.borrow().clone());
        let uses = self.uses.borrow().clone();
        let offered = offered.map(|checkpoint| checkpoint.root);
        offered
            .into_iter()
            .chain(uses.under_way)
            .chain(uses.last)
            .collect()
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
    uses: watch::Sender<Uses>,
    journal: Arc<Journal>,
    /// What an earlier run left.
    waiting: Option<Pending>,
    outcomes: mpsc::Sender<Outcome>,
}

/// The two ends: what takes checkpoints, and the task's work, to be [run](Publishing::run). What waits is kept in a file
/// beside `scratch`.
pub(crate) fn new(
    config: Config,
    content: Content,
    scratch: PathBuf,
    outcomes: mpsc::Sender<Outcome>,
) -> (Publication, Publishing) {
    let (sender, newest) = watch::channel(None);
    let journal = Arc::new(Journal::new(scratch.with_extension("json")));
    let publishes = config.publishes();
    let waiting = if publishes { journal.read() } else { None };
    let (uses, used) = watch::channel(Uses {
        under_way: waiting.as_ref().map(|waiting| waiting.checkpoint.root),
        last: None,
    });
    let publication = Publication {
        newest: sender,
        uses: used,
        journal: publishes.then(|| Arc::clone(&journal)),
    };
    let publishing = Publishing {
        config,
        content,
        scratch,
        newest,
        uses,
        journal,
        waiting,
        outcomes,
    };
    (publication, publishing)
}

impl Publishing {
    /// Runs until the node stops. What a killed process left behind is removed first.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        if !self.config.publishes() {
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
        if let Some(waiting) = self.waiting.take() {
            self.take_up(waiting).await;
        }
        while self.newest.changed().await.is_ok() {
            let newest = self.newest.borrow_and_update().clone();
            if let Some(checkpoint) = newest {
                self.publish(&checkpoint, &[]).await;
            }
        }
    }

    /// What an earlier run of the node left, unless its content is gone.
    async fn take_up(&mut self, waiting: Pending) {
        let Checkpoint { round, root, .. } = waiting.checkpoint;
        if self.content.store().has(&root) {
            tracing::info!(round, %root, "was to be published when the node stopped: taken up again");
            self.publish(&waiting.checkpoint, &waiting.done).await;
        } else {
            tracing::warn!(round, %root, "was to be published when the node stopped, and is not in the store any longer");
            self.journal.clear();
        }
    }

    /// Brings a checkpoint to every place but those that have it, to all at once: one that is away holds no other up.
    async fn publish(&mut self, checkpoint: &Checkpoint, done: &[String]) {
        let places = self.config.places();
        let names: Vec<&str> = places.iter().map(Place::name).collect();
        self.uses
            .send_modify(|uses| uses.under_way = Some(checkpoint.root));
        let lacking = places
            .iter()
            .filter(|place| !done.iter().any(|name| name == place.name()));
        let trials = lacking.map(|place| async {
            if self.until_done(checkpoint, place).await == Ended::Published {
                self.journal.finish(checkpoint, place.name(), &names);
                self.uses.send_modify(|uses| uses.last = Some(checkpoint.root));
            }
        });
        futures::future::join_all(trials).await;
        self.uses.send_modify(|uses| uses.under_way = None);
    }

    /// Tries until it is done, or there is something newer.
    async fn until_done(&self, checkpoint: &Checkpoint, place: &Place) -> Ended {
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
            if is_done {
                return Ended::Published;
            }
            if self.newest.has_changed().unwrap_or(true) {
                return Ended::Overtaken;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            if self.newest.has_changed().unwrap_or(true) {
                return Ended::Overtaken;
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

/// How trying ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Published,
    /// By a newer checkpoint.
    Overtaken,
}

impl Config {
    fn publishes(&self) -> bool {
        !self.places().is_empty()
    }

    fn places(&self) -> Vec<Place> {
        let ipfs = self.ipfs_url.clone().map(Place::Ipfs);
        let hub = self.hub_repo.clone().map(Place::Hub);
        ipfs.into_iter().chain(hub).collect()
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
