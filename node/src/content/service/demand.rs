//! Reading what may not be here yet: missing blocks are fetched on the way.

use std::time::Duration;

use cid::Cid;
use tokio::time::timeout;

use super::{Content, FetchError, blocking};
use crate::content::bitswap::{Arrival, Session};
use crate::content::block::MAX_BLOCK;
use crate::content::store::Store;
use crate::content::unixfs::{self, ContentPath, Entry, FileCursor, Limits, ReadError, Resolved, Walked};

/// Blocks asked for at once.
const AT_ONCE: usize = 256;

/// Why content could not be read, held or not.
#[derive(Debug, thiserror::Error)]
pub enum DemandError {
    /// It makes no sense, or the store failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A block is missing and did not come.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// A block is missing and nobody sent it.
    #[error("nobody has sent block {cid} for {} s: no peer that can be reached has it", patience.as_secs())]
    Nobody {
        /// The block.
        cid: Cid,
        /// How long it was waited for.
        patience: Duration,
    },
}

impl DemandError {
    /// Whether the content itself is refused.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Read(error) => error.is_refusal(),
            Self::Fetch(error) => error.is_refusal(),
            Self::Nobody { .. } => false,
        }
    }

    /// Whether the store has no room for a block.
    fn is_full(&self) -> bool {
        matches!(self, Self::Fetch(FetchError::Store(error)) if error.is_full())
    }
}

/// Reads paths, fetching the blocks that are missing one by one.
#[derive(Debug)]
pub struct Demand {
    content: Content,
    /// How long one block is waited for.
    patience: Duration,
    /// Opened when something is missing.
    session: Option<Session>,
}

impl Content {
    /// A reader that waits up to `patience` for each block that is missing.
    #[must_use]
    pub fn on_demand(&self, patience: Duration) -> Demand {
        Demand {
            content: self.clone(),
            patience,
            session: None,
        }
    }
}

impl Demand {
    /// What a path leads to.
    ///
    /// # Errors
    /// [`DemandError`].
    pub async fn resolve(&mut self, path: ContentPath) -> Result<Resolved, DemandError> {
        let root = path.root;
        self.read(root, move |store| unixfs::resolve(store, &path)).await
    }

    /// A path from its root to its end, block by block.
    ///
    /// # Errors
    /// [`DemandError`].
    pub(crate) async fn walk(&mut self, path: ContentPath) -> Result<Walked, DemandError> {
        let root = path.root;
        self.read(root, move |store| unixfs::walk(store, &path)).await
    }

    /// The entries of a directory.
    ///
    /// # Errors
    /// [`DemandError`].
    pub async fn ls(&mut self, path: ContentPath) -> Result<Vec<Entry>, DemandError> {
        let root = path.root;
        self.read(root, move |store| {
            let directory = unixfs::resolve(store, &path)?;
            unixfs::list(store, &directory.cid)
        })
        .await
    }

    /// The size of a file in bytes, within the limit of what is ever read out.
    ///
    /// # Errors
    /// [`DemandError`].
    pub async fn file_size(&mut self, path: ContentPath) -> Result<u64, DemandError> {
        Ok(self.open_file(path).await?.size())
    }

    /// The start of a file, within the limit of what is ever read out.
    ///
    /// # Errors
    /// [`DemandError`].
    pub async fn open_file(&mut self, path: ContentPath) -> Result<FileCursor, DemandError> {
        let (cid, limit) = (path.root, Limits::default().bytes);
        let cursor = self
            .read(cid, move |store| FileCursor::open(store, &path))
            .await?;
        if cursor.size() <= limit {
            return Ok(cursor);
        }
        let what = "bytes";
        Err(ReadError::OverLimit { cid, limit, what }.into())
    }

    /// Fetches one block.
    ///
    /// # Errors
    /// [`DemandError::Fetch`], [`DemandError::Nobody`].
    pub async fn block(&mut self, cid: Cid) -> Result<(), DemandError> {
        self.blocks(&[cid]).await
    }

    /// Fetches one block unless it is here.
    ///
    /// # Errors
    /// As [`Demand::block`].
    pub(crate) async fn if_absent(&mut self, cid: Cid) -> Result<(), DemandError> {
        let store = self.content.store.clone();
        if blocking(move || store.has(&cid)).await {
            return Ok(());
        }
        self.block(cid).await
    }

    /// Fetches several blocks at once.
    async fn blocks(&mut self, cids: &[Cid]) -> Result<(), DemandError> {
        for some in cids.chunks(AT_ONCE) {
            match self.some_blocks(some).await {
                Err(error) if error.is_full() => {
                    let store = self.content.store.clone();
                    let needed = (some.len() * MAX_BLOCK) as u64;
                    if blocking(move || store.gc_soon(needed))
                        .await
                        .map_err(FetchError::from)?
                        .is_none()
                    {
                        return Err(error);
                    }
                    let held = |cid: &Cid| self.content.store.has(cid);
                    let missing: Vec<Cid> = some.iter().copied().filter(|cid| !held(cid)).collect();
                    self.some_blocks(&missing).await?;
                }
                done => done?,
            }
        }
        Ok(())
    }

    async fn some_blocks(&mut self, cids: &[Cid]) -> Result<(), DemandError> {
        let Some(cid) = cids.first().copied() else {
            return Ok(());
        };
        let offline = |reason| FetchError::Offline { root: cid, reason };
        let session = match &mut self.session {
            Some(session) => session,
            none => none.insert(self.content.fetcher.open(Vec::new()).await.map_err(offline)?),
        };
        session
            .want(cids.iter().copied().map(Into::into).collect())
            .await
            .map_err(offline)?;
        for _ in cids {
            match timeout(self.patience, session.next()).await {
                Ok(Ok(Arrival::Stored { .. })) => {}
                Ok(Ok(Arrival::Failed { error, .. })) => {
                    self.session = None;
                    return Err(FetchError::Store(error).into());
                }
                Ok(Err(reason)) => return Err(offline(reason).into()),
                Err(_) => {
                    // What still comes for it must not be taken for the next block.
                    self.session = None;
                    return Err(DemandError::Nobody {
                        cid,
                        patience: self.patience,
                    });
                }
            }
        }
        Ok(())
    }

    /// Repeats `work` until no block is missing. What is under `root` is not collected meanwhile.
    async fn read<T: Send + 'static>(
        &mut self,
        root: Cid,
        work: impl Fn(&Store) -> Result<T, ReadError> + Clone + Send + 'static,
    ) -> Result<T, DemandError> {
        let store = self.content.store.clone();
        let _kept = store.protect(root);
        loop {
            let (store, work) = (self.content.store.clone(), work.clone());
            match blocking(move || work(&store)).await {
                Ok(found) => return Ok(found),
                Err(error) => match error.missing_blocks().as_slice() {
                    [] => return Err(error.into()),
                    missing => self.blocks(missing).await?,
                },
            }
        }
    }
}
