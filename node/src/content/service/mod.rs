//! The handle to content that the rest of the node holds.

mod arriving;
mod asker;
mod demand;
mod error;
mod fetch;
mod read;
mod room;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use cid::Cid;
use libp2p::PeerId;
use tokio::sync::Semaphore;

use super::bitswap::{self, Announcement, Fetcher, Offline};
use super::store::{self, GcReport, PinRecord, Presence, Stat, Store, StoreError, VerifyReport};
use super::unixfs::{self, AddError, Added, Layout};
pub(in crate::content) use asker::{blocking, check_asker};
pub use demand::{Demand, DemandError};
pub use error::FetchError;
pub use fetch::{Fetch, FetchRequest, Progress};
pub use read::FileStream;
pub(crate) use read::SLOWEST_READER;

/// Where content is kept and how it travels.
#[derive(Debug, Clone)]
pub struct Config {
    /// The store's directory.
    pub root: PathBuf,
    /// Bytes of blocks it may hold.
    pub limit: u64,
    /// How added files are cut.
    pub layout: Layout,
    /// Deadlines of the exchange.
    pub bitswap: bitswap::Config,
}

/// Whether collection may take what is added or fetched.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Pin {
    /// It may.
    #[default]
    No,
    /// It is kept until it is unpinned; the name is for people.
    Named(String),
}

/// Opens the store and makes the behaviour that exchanges its blocks. Without a swarm, drop the behaviour: everything
/// but fetching works.
///
/// # Errors
/// [`StoreError::Io`] with the path.
pub fn open(config: Config) -> Result<(Content, bitswap::Behaviour), StoreError> {
    let store = Arc::new(Store::open(store::Config {
        root: config.root,
        limit: config.limit,
    })?);
    let (behaviour, fetcher) = bitswap::Behaviour::new(Arc::clone(&store), config.bitswap);
    Ok((
        Content {
            store,
            fetcher,
            layout: config.layout,
            readers: Arc::new(Semaphore::new(read::READERS)),
        },
        behaviour,
    ))
}

/// Adds, fetches, reads and keeps content. Clones share one store. Must be used inside a tokio runtime.
#[derive(Debug, Clone)]
pub struct Content {
    store: Arc<Store>,
    fetcher: Fetcher,
    layout: Layout,
    /// Turns at reading for streams.
    readers: Arc<Semaphore>,
}

impl Content {
    /// The store underneath, whose calls block.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Adds one file, of any size.
    ///
    /// # Errors
    /// [`AddError`], naming the path; what was stored before it is reused by the next try.
    pub async fn add_file(&self, path: PathBuf, pin: Pin) -> Result<Added, AddError> {
        let layout = self.layout;
        self.add(pin, move |mut store| {
            let file = std::fs::File::open(&path).map_err(|source| AddError::Read {
                path: path.clone(),
                source,
            })?;
            unixfs::add_reader(&mut store, layout, &path, file)
        })
        .await
    }

    /// Adds a file or a directory with everything under it, names that begin with a dot aside.
    ///
    /// # Errors
    /// [`AddError`], naming the path; what was stored before it is reused by the next try.
    pub async fn add_dir(&self, path: PathBuf, pin: Pin) -> Result<Added, AddError> {
        let layout = self.layout;
        self.add(pin, move |mut store| unixfs::add_path(&mut store, layout, &path))
            .await
    }

    /// Adds a directory given as names (`/` for subdirectories) and bytes. Equal maps give equal CIDs.
    ///
    /// # Errors
    /// [`AddError`], naming the file.
    pub async fn add_map(&self, files: BTreeMap<String, Vec<u8>>, pin: Pin) -> Result<Added, AddError> {
        let layout = self.layout;
        self.add(pin, move |mut store| unixfs::add_map(&mut store, layout, &files))
            .await
    }

    /// Adds bytes as one file.
    ///
    /// # Errors
    /// [`AddError::Store`].
    pub async fn add_bytes(&self, bytes: Vec<u8>, pin: Pin) -> Result<Added, AddError> {
        let layout = self.layout;
        let label = PathBuf::from("bytes in memory");
        self.add(pin, move |mut store| {
            unixfs::add_reader(&mut store, layout, &label, bytes.as_slice())
        })
        .await
    }

    /// Stores one block of any codec, such as a job's DAG-CBOR.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn put_block(&self, codec: u64, data: Vec<u8>) -> Result<Cid, StoreError> {
        let store = Arc::clone(&self.store);
        let cid = blocking(move || {
            let cid = store.with_room(|| store.put_new(codec, &data), StoreError::is_full)?;
            store.flush().map(|()| cid)
        })
        .await?;
        self.fetcher.added();
        Ok(cid)
    }

    /// One block, if it is held.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`], [`StoreError::Io`].
    pub async fn get_block(&self, cid: Cid) -> Result<Option<Bytes>, StoreError> {
        let store = Arc::clone(&self.store);
        blocking(move || store.get(&cid)).await
    }

    /// Announces that this node has `cid`.
    ///
    /// # Errors
    /// [`Offline`].
    pub async fn provide(&self, cid: Cid) -> Result<Announcement, Offline> {
        self.fetcher.provide(cid).await
    }

    /// Announces it no longer.
    ///
    /// # Errors
    /// [`Offline`].
    pub async fn stop_providing(&self, cid: Cid) -> Result<(), Offline> {
        self.fetcher.stop_providing(cid).await
    }

    /// Who has announced `cid`, this node aside.
    ///
    /// # Errors
    /// [`Offline`].
    pub async fn find(&self, cid: Cid) -> Result<Vec<PeerId>, Offline> {
        self.fetcher.find(cid).await
    }

    /// Blocks were stored that peers may be waiting for.
    pub(in crate::content) fn added(&self) {
        self.fetcher.added();
    }

    /// Keeps a root and what it links to.
    ///
    /// # Errors
    /// [`StoreError::Missing`] when it is not held, [`StoreError::Io`].
    pub async fn pin(&self, cid: Cid, name: String) -> Result<(), StoreError> {
        let store = Arc::clone(&self.store);
        blocking(move || store.pin(&cid, &name)).await
    }

    /// Lets collection take a root again. Says whether it was pinned.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub async fn unpin(&self, cid: Cid) -> Result<Presence, StoreError> {
        let store = Arc::clone(&self.store);
        blocking(move || store.unpin(&cid)).await
    }

    /// Takes one name from a root's pin; collection may take it when that was the last. Says whether it is pinned still.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::BadPin`].
    pub async fn unpin_name(&self, cid: Cid, name: String) -> Result<Presence, StoreError> {
        let store = Arc::clone(&self.store);
        blocking(move || store.unpin_name(&cid, &name)).await
    }

    /// Every pinned root.
    ///
    /// # Errors
    /// [`StoreError::BadPin`], [`StoreError::Io`].
    pub async fn pins(&self) -> Result<Vec<(Cid, PinRecord)>, StoreError> {
        let store = Arc::clone(&self.store);
        blocking(move || store.pins()).await
    }

    /// Removes what no pin and no running fetch reaches.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn gc(&self) -> Result<GcReport, StoreError> {
        let store = Arc::clone(&self.store);
        blocking(move || store.gc()).await
    }

    /// Sizes and limits.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub async fn stat(&self) -> Result<Stat, StoreError> {
        let store = Arc::clone(&self.store);
        blocking(move || store.stat()).await
    }

    /// Reads every block and removes the damaged ones.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub async fn verify(&self) -> Result<VerifyReport, StoreError> {
        let store = Arc::clone(&self.store);
        blocking(move || store.verify()).await
    }

    pub(in crate::content) async fn add(
        &self,
        pin: Pin,
        work: impl Fn(&Store) -> Result<Added, AddError> + Send + 'static,
    ) -> Result<Added, AddError> {
        let store = Arc::clone(&self.store);
        let added = blocking(move || {
            let once = || {
                let _no_collection = store.adding();
                let added = work(&store)?;
                keep(&store, &added.cid, &pin)?;
                Ok::<_, AddError>(added)
            };
            store.with_room(
                once,
                |error| matches!(error, AddError::Store(error) if error.is_full()),
            )
        })
        .await?;
        self.fetcher.added();
        Ok(added)
    }
}

/// Makes what was stored durable, and pins it if asked.
fn keep(store: &Store, root: &Cid, pin: &Pin) -> Result<(), StoreError> {
    check_asker()?;
    match pin {
        Pin::No => store.flush(),
        Pin::Named(name) => store.pin(root, name),
    }
}
