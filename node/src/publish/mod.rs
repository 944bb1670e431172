//! Publishing checkpoints outside the network: to an IPFS node of the operator's, to the Hugging Face Hub.
//!
//! Each place has a loop of its own beside everything else: it takes the newest checkpoint there is, tries until it is published
//! or a newer one has come, and tells how it went. Neither training nor another place waits for it. What waits when the node
//! stops is taken up again at the next start.

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
use std::collections::{BTreeMap, BTreeSet};
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

/// Checkpoints that must stay for publication's sake, by place.
#[derive(Clone, Debug, Default)]
struct Uses {
    under_way: BTreeMap<&'static str, Cid>,
    last: BTreeMap<&'static str, Cid>,
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
        let used = offered
            .into_iter()
            .chain(uses.under_way.into_values())
            .chain(uses.last.into_values());
        used.collect::<BTreeSet<Cid>>().into_iter().collect()
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
    first_pause: Duration,
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
        under_way: waiting
            .iter()
            .flat_map(|waiting| {
                config
                    .lacking(waiting)
                    .map(|place| (place, waiting.checkpoint.root))
            })
            .collect(),
        last: BTreeMap::new(),
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
        first_pause: FIRST_PAUSE,
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
        let waiting = self.waiting.take().and_then(|waiting| self.take_up(waiting));
        let loops = self.config.places().into_iter().map(|place| {
            let lacks = |waiting: &Pending| self.config.lacking(waiting).any(|name| name == place.name());
            let first = waiting.clone().filter(lacks).map(|waiting| waiting.checkpoint);
            self.publish_to(place, first)
        });
        futures::future::join_all(loops).await;
    }

    /// What an earlier run of the node left, unless its content is gone.
    fn take_up(&self, waiting: Pending) -> Option<Pending> {
        let Checkpoint { round, root, .. } = waiting.checkpoint;
        if self.content.store().has(&root) {
            tracing::info!(round, %root, "was to be published when the node stopped: taken up again");
            return Some(waiting);
        }
        tracing::warn!(round, %root, "was to be published when the node stopped, and is not in the store any longer");
        self.journal.clear();
        self.uses.send_modify(|uses| uses.under_way.clear());
        None
    }

    /// Brings checkpoints to one place, `next` first and then the newest there is each time.
    async fn publish_to(&self, place: Place, mut next: Option<Checkpoint>) {
        let places = self.config.places();
        let names: Vec<&str> = places.iter().map(Place::name).collect();
        let (mut newest, mut last) = (self.newest.clone(), None);
        loop {
            if next.is_none() {
                if newest.changed().await.is_err() {
                    return;
                }
                next = newest.borrow_and_update().clone();
            }
            let Some(checkpoint) = next.take() else { continue };
            if last.as_ref() == Some(&checkpoint) {
                continue;
            }
            self.uses.send_modify(|uses| {
                uses.under_way.insert(place.name(), checkpoint.root);
            });
            match self.until_done(&checkpoint, &place, &mut newest).await {
                Ended::Published => {
                    self.journal.finish(&checkpoint, place.name(), &names);
                    self.uses.send_modify(|uses| {
                        uses.last.insert(place.name(), checkpoint.root);
                    });
                    last = Some(checkpoint);
                }
                Ended::Overtaken => next = newest.borrow_and_update().clone(),
            }
            self.uses.send_modify(|uses| {
                uses.under_way.remove(place.name());
            });
        }
    }

    /// Tries until it is done, or there is something newer, which no pause waits for.
    async fn until_done(
        &self,
        checkpoint: &Checkpoint,
        place: &Place,
        newest: &mut watch::Receiver<Option<Checkpoint>>,
    ) -> Ended {
        let mut pause = self.first_pause;
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
            tokio::select! {
                changed = newest.changed() => match changed {
                    Ok(()) => return Ended::Overtaken,
                    // The node stops; what is under way is still tried.
                    Err(_) => tokio::time::sleep(pause).await,
                },
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
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

    /// The places that do not have what waits.
    fn lacking(&self, waiting: &Pending) -> impl Iterator<Item = &'static str> {
        let places = self.places().into_iter().map(|place| place.name());
        places.filter(|name| !waiting.done.iter().any(|done| done == name))
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
