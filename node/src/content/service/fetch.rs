//! Fetching everything under a root, from what is on disk and from peers.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use cid::Cid;
use libp2p::PeerId;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

use super::{Content, FetchError, Pin, blocking, keep, room};
use crate::content::bitswap::{Arrival, Offline, Session, Wanted};
use crate::content::block::check_supported;
use crate::content::store::{Store, StoreError};
use crate::content::unixfs::{self, NodeError};

/// How long after a fetch without a pin its blocks are flushed.
const FLUSH_AFTER: Duration = Duration::from_secs(1);
/// Blocks wanted at once.
const WINDOW: usize = 512;
/// Blocks looked up on disk at once.
const BATCH: usize = 64;
/// Blocks under one root: a terabyte in chunks of 256 KiB.
const MAX_BLOCKS: usize = 4 << 20;

/// What to fetch.
#[derive(Debug, Clone)]
pub struct FetchRequest {
    /// The root.
    pub root: Cid,
    /// Who is known to have it. More are looked for when they do not do.
    pub providers: Vec<PeerId>,
    /// How long it may take in all.
    pub deadline: Duration,
    /// Whether it is kept when it is complete.
    pub pin: Pin,
}

/// How far a fetch is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Progress {
    /// Blocks held.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of them that came from peers in this fetch.
    pub fetched: u64,
    /// Blocks known to be missing still; more may become known.
    pub pending: u64,
    /// Bytes of everything under the root as it declares, once it is held and there is room.
    pub declared: Option<u64>,
    /// Bytes of those that are known to stand more than once, and are held once.
    pub repeated: u64,
}

impl Progress {
    /// Bytes that there will be in the end, as far as that is known.
    #[must_use]
    pub fn total(&self) -> Option<u64> {
        let distinct = |declared: u64| declared.saturating_sub(self.repeated).max(self.bytes);
        self.declared.map(distinct)
    }
}

/// A fetch under way. Dropping it ends it; what arrived stays.
#[derive(Debug)]
#[must_use]
pub struct Fetch {
    progress: watch::Receiver<Progress>,
    task: Option<JoinHandle<Result<Progress, FetchError>>>,
}

impl Content {
    /// Fetches everything under a root: reads what is on disk, asks peers for the rest, and goes on from there after
    /// an interruption. A root that is no UnixFS node is fetched alone.
    pub fn fetch_dag(&self, request: FetchRequest) -> Fetch {
        let (sender, progress) = watch::channel(Progress::default());
        Fetch {
            progress,
            task: Some(tokio::spawn(run(self.clone(), request, sender))),
        }
    }
}

impl Fetch {
    /// How far it is now; changes can be awaited on the receiver.
    #[must_use]
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.clone()
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// [`FetchError`].
    pub async fn finish(mut self) -> Result<Progress, FetchError> {
        let Some(task) = self.task.as_mut() else {
            return std::future::pending().await;
        };
        let ended = task.await;
        self.task = None;
        match ended {
            Ok(result) => result,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // Cancelled: the runtime is shutting down and drops this task too.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

async fn run(
    content: Content,
    request: FetchRequest,
    sender: watch::Sender<Progress>,
) -> Result<Progress, FetchError> {
    let store = Arc::clone(&content.store);
    let _kept = store.protect(request.root);
    let deadline = Instant::now() + request.deadline;
    let mut walk = Walk {
        content: &content,
        request: &request,
        session: None,
        frontier: Vec::new(),
        seen: HashSet::new(),
        wanted: 0,
        progress: Progress::default(),
        sender,
    };
    match timeout_at(deadline, walk.run()).await {
        Ok(ended) => ended?,
        Err(_) => return Err(walk.too_late()),
    }
    let progress = walk.progress;
    finish(Arc::clone(&store), request.root, request.pin.clone()).await?;
    Ok(progress)
}

/// What is pinned is durable before it is said to be there. Other content may be collected at any time; it is flushed a
/// little later, and nobody waits for it.
async fn finish(store: Arc<Store>, root: Cid, pin: Pin) -> Result<(), FetchError> {
    if pin == Pin::No {
        drop(tokio::spawn(flush_later(store)));
        return Ok(());
    }
    Ok(blocking(move || keep(&store, &root, &pin)).await?)
}

/// Whoever reads what was fetched comes first at the disk.
async fn flush_later(store: Arc<Store>) {
    sleep(FLUSH_AFTER).await;
    if let Err(error) = blocking(move || store.flush()).await {
        tracing::warn!(%error, "fetched blocks may not outlast a power failure");
    }
}

/// The way through the graph: what is still to be looked at, deepest first, so that little is remembered.
struct Walk<'a> {
    content: &'a Content,
    request: &'a FetchRequest,
    /// Opened when something is missing.
    session: Option<Session>,
    frontier: Vec<Wanted>,
    seen: HashSet<Cid>,
    wanted: usize,
    progress: Progress,
    sender: watch::Sender<Progress>,
}

/// What looking up a batch found.
#[derive(Default)]
struct Found {
    cids: Vec<Cid>,
    bytes: u64,
    /// In the order of their parents, each with the bytes of everything under it as declared.
    links: Vec<(Wanted, u64)>,
    missing: Vec<Wanted>,
    /// What the root declares, when it is among them.
    declared: Option<u64>,
}

impl Walk<'_> {
    async fn run(&mut self) -> Result<(), FetchError> {
        self.visit(vec![(self.request.root.into(), 0)])?;
        loop {
            while !self.frontier.is_empty() && self.wanted + BATCH <= WINDOW {
                self.look_up().await?;
            }
            if self.wanted == 0 {
                return Ok(());
            }
            let Some(session) = &mut self.session else {
                return Ok(());
            };
            let arrival = session
                .next()
                .await
                .map_err(|reason| offline(self.request.root, reason))?;
            match arrival {
                Arrival::Stored { cid, size } => self.on_stored(cid, size)?,
                Arrival::Failed { cid, error } => self.on_failed(cid, error).await?,
            }
        }
    }

    async fn look_up(&mut self) -> Result<(), FetchError> {
        let batch = self.frontier.split_off(self.frontier.len().saturating_sub(BATCH));
        let (store, root) = (Arc::clone(&self.content.store), self.request.root);
        let is_kept = self.request.pin != Pin::No;
        let found = blocking(move || {
            let found = look_up(&store, root, batch)?;
            if is_kept {
                found.cids.iter().for_each(|cid| store.flush_found(cid));
            }
            Ok::<_, FetchError>(found)
        })
        .await?;
        self.progress.blocks += found.cids.len() as u64;
        self.progress.bytes += found.bytes;
        if let Some(declared) = found.declared {
            // Nothing is waited for but the disk, which may take long to collect.
            self.sender.send_replace(Progress {
                pending: 0,
                ..self.progress
            });
            room::make(Arc::clone(&self.content.store), root, declared).await?;
            self.progress.declared = Some(declared);
        }
        self.visit(found.links)?;
        self.want(found.missing).await?;
        self.report();
        Ok(())
    }

    async fn want(&mut self, blocks: Vec<Wanted>) -> Result<(), FetchError> {
        if blocks.is_empty() {
            return Ok(());
        }
        self.wanted += blocks.len();
        let root = self.request.root;
        if self.session.is_none() {
            let opened = self.content.fetcher.open(self.request.providers.clone()).await;
            self.session = Some(opened.map_err(|reason| offline(root, reason))?);
        }
        match &self.session {
            Some(session) => session.want(blocks).await.map_err(|reason| offline(root, reason)),
            None => Ok(()),
        }
    }

    /// Others may have taken the room that there was, or the root may declare too little: a block that met a full store is
    /// asked for again when collection has made room for more.
    async fn on_failed(&mut self, cid: Cid, error: Arc<StoreError>) -> Result<(), FetchError> {
        self.wanted -= 1;
        match error.lacks() {
            Some(needed) if room::make_some(Arc::clone(&self.content.store), needed).await? => {
                self.want(vec![cid.into()]).await
            }
            _ => Err(FetchError::Store(error)),
        }
    }

    fn on_stored(&mut self, cid: Cid, size: u64) -> Result<(), FetchError> {
        self.wanted -= 1;
        self.progress.fetched += size;
        if unixfs::may_have_links(&cid) {
            // Looked up like what was there before, which counts it and finds its links.
            self.frontier.push(cid.into());
        } else {
            self.progress.blocks += 1;
            self.progress.bytes += size;
            // A root without links is all there is, and here.
            if cid == self.request.root {
                self.progress.declared = Some(size);
            }
        }
        self.report();
        Ok(())
    }

    /// Puts links on the frontier so that the first is looked at first.
    fn visit(&mut self, links: Vec<(Wanted, u64)>) -> Result<(), FetchError> {
        let start = self.frontier.len();
        for (link, declared) in links {
            check_supported(&link.cid)?;
            if self.seen.insert(link.cid) {
                self.frontier.push(link);
            } else {
                self.progress.repeated = self.progress.repeated.saturating_add(declared);
            }
        }
        self.frontier[start..].reverse();
        if self.seen.len() > MAX_BLOCKS {
            return Err(FetchError::TooManyBlocks {
                root: self.request.root,
                limit: MAX_BLOCKS,
            });
        }
        Ok(())
    }

    fn report(&mut self) {
        self.progress.pending = (self.wanted + self.frontier.len()) as u64;
        self.sender.send_replace(self.progress);
    }

    fn too_late(&self) -> FetchError {
        FetchError::Deadline {
            root: self.request.root,
            after: self.request.deadline,
            blocks: self.progress.blocks,
            wanted: self.wanted,
        }
    }
}

/// Reads a batch, whose last is next in order; a damaged block counts as missing.
fn look_up(store: &Store, root: Cid, batch: Vec<Wanted>) -> Result<Found, FetchError> {
    let mut found = Found::default();
    for wanted in batch.into_iter().rev() {
        let cid = wanted.cid;
        match store.get(&cid) {
            Ok(Some(block)) => {
                found.cids.push(cid);
                found.bytes += block.len() as u64;
                let links =
                    unixfs::sized_links(&cid, &block).map_err(|reason| bad_node(root, cid, reason))?;
                let wanted = |link: unixfs::SizedLink| {
                    (
                        Wanted {
                            cid: link.cid,
                            size: link.block_size(),
                        },
                        link.declared,
                    )
                };
                found.links.extend(links.into_iter().map(wanted));
                if cid == root {
                    let declared = unixfs::declared_size(&cid, &block);
                    found.declared = Some(declared.map_err(|reason| bad_node(root, cid, reason))?);
                }
            }
            Ok(None) | Err(StoreError::Corrupt { .. }) => found.missing.push(wanted),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

fn bad_node(root: Cid, cid: Cid, reason: NodeError) -> FetchError {
    FetchError::Node { root, cid, reason }
}

fn offline(root: Cid, reason: Offline) -> FetchError {
    FetchError::Offline { root, reason }
}
