//! Reading and exporting what is held.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cid::Cid;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::{Content, DemandError, blocking};
use crate::content::store::Store;
use crate::content::unixfs::{self, ContentPath, Entry, FileReader, Limits, ReadError, Resolved};

/// Blocks read ahead of whoever takes them.
const READ_AHEAD: usize = 4;

/// A file's bytes as they are read.
#[derive(Debug)]
pub struct FileStream {
    /// The whole file's size in bytes.
    pub size: u64,
    chunks: mpsc::Receiver<Result<Bytes, DemandError>>,
}

impl FileStream {
    /// The next bytes, at most a block; nothing at the end.
    ///
    /// # Errors
    /// [`DemandError`], naming the block.
    pub async fn next(&mut self) -> Result<Option<Bytes>, DemandError> {
        self.chunks.recv().await.transpose()
    }
}

impl Content {
    /// A whole file in memory, if it has at most `limit` bytes.
    ///
    /// # Errors
    /// [`ReadError::OverLimit`], [`ReadError::Missing`] and others.
    pub async fn cat(&self, path: ContentPath, limit: u64) -> Result<Vec<u8>, ReadError> {
        let store = Arc::clone(&self.store);
        blocking(move || cat(&store, &path, limit)).await
    }

    /// A part of a file's bytes as a stream, or less when the file ends before; each block that is missing is waited for
    /// up to `patience`.
    ///
    /// # Errors
    /// [`DemandError`].
    pub async fn stream(
        &self,
        path: ContentPath,
        bytes: Range<u64>,
        patience: Duration,
    ) -> Result<FileStream, DemandError> {
        let mut demand = self.on_demand(patience);
        let size = demand.file_size(path.clone()).await?;
        let (sender, chunks) = mpsc::channel(READ_AHEAD);
        let (store, runtime) = (Arc::clone(&self.store), Handle::current());
        tokio::task::spawn_blocking(move || {
            let fetch = |cid| runtime.block_on(demand.block(cid));
            if let Err(error) = pump(&store, &path, &bytes, &sender, fetch) {
                // Whoever listened may be gone, which ends the stream as well.
                let _ = sender.blocking_send(Err(error));
            }
        });
        Ok(FileStream { size, chunks })
    }

    /// The entries of a directory.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn ls(&self, path: ContentPath) -> Result<Vec<Entry>, ReadError> {
        let store = Arc::clone(&self.store);
        blocking(move || {
            let directory = unixfs::resolve(&store, &path)?;
            unixfs::list(&store, &directory.cid)
        })
        .await
    }

    /// What a path leads to.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn resolve(&self, path: ContentPath) -> Result<Resolved, ReadError> {
        let store = Arc::clone(&self.store);
        blocking(move || unixfs::resolve(&store, &path)).await
    }

    /// Writes a file or directory to `target`, whole or not at all. Returns the bytes written.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn export(&self, path: ContentPath, target: PathBuf, limits: Limits) -> Result<u64, ReadError> {
        let store = Arc::clone(&self.store);
        blocking(move || unixfs::export(&store, &path, &target, limits)).await
    }
}

fn cat(store: &Store, path: &ContentPath, limit: u64) -> Result<Vec<u8>, ReadError> {
    let mut reader = FileReader::open(store, path)?;
    if reader.size() > limit {
        return Err(over_limit(path.root, limit));
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = reader.next_bytes()? {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// Sends a part of a file until it ends, fails, or nobody listens.
fn pump(
    store: &Store,
    path: &ContentPath,
    bytes: &Range<u64>,
    sender: &mpsc::Sender<Result<Bytes, DemandError>>,
    mut fetch: impl FnMut(Cid) -> Result<(), DemandError>,
) -> Result<(), DemandError> {
    let mut reader = FileReader::open(store, path)?.skip_bytes(bytes.start);
    let mut left = bytes.end.saturating_sub(bytes.start);
    while left > 0 {
        match reader.next_bytes() {
            Ok(Some(mut chunk)) => {
                chunk.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                left -= chunk.len() as u64;
                if sender.blocking_send(Ok(chunk)).is_err() {
                    return Ok(());
                }
            }
            Ok(None) => return Ok(()),
            Err(error) => match error.missing_block() {
                Some(cid) if !sender.is_closed() => fetch(cid)?,
                _ => return Err(error.into()),
            },
        }
    }
    Ok(())
}

fn over_limit(cid: Cid, limit: u64) -> ReadError {
    ReadError::OverLimit {
        cid,
        limit,
        what: "bytes",
    }
}
