//! Reading and exporting what is held.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cid::Cid;
use tokio::sync::mpsc;

use super::{Content, Demand, DemandError, blocking};
use crate::content::store::Store;
use crate::content::unixfs::{self, ContentPath, Entry, FileCursor, FileReader, Limits, ReadError, Resolved};

/// Blocks read ahead of whoever takes them.
const READ_AHEAD: usize = 4;
/// Blocks that are read for streams at the same time.
pub(super) const READERS: usize = 64;
/// How long a reader may pause before its stream is ended.
pub(crate) const SLOWEST_READER: Duration = Duration::from_secs(30 * 60);

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
    /// up to `patience`. However slow the reader, no thread waits for it: one that takes nothing for [`SLOWEST_READER`] is
    /// given up.
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
        let cursor = demand.open_file(path).await?;
        let size = cursor.size();
        let (sender, chunks) = mpsc::channel(READ_AHEAD);
        let pump = Pump {
            content: self.clone(),
            demand,
            cursor: cursor.skip_bytes(bytes.start),
            left: bytes.end.saturating_sub(bytes.start),
        };
        tokio::spawn(pump.run(sender));
        Ok(FileStream { size, chunks })
    }

    /// As [`blocking`], at most [`READERS`] at a time: many readers leave threads to others.
    pub(crate) async fn reading<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> T + Send + 'static,
    ) -> T {
        // Nobody closes it.
        let _turn = self.readers.acquire().await;
        let store = Arc::clone(&self.store);
        blocking(move || work(&store)).await
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

/// Sends a part of a file.
struct Pump {
    content: Content,
    demand: Demand,
    cursor: FileCursor,
    left: u64,
}

impl Pump {
    /// Until it ends, fails, or nobody listens.
    async fn run(mut self, sender: mpsc::Sender<Result<Bytes, DemandError>>) {
        loop {
            let next = tokio::select! {
                next = self.next() => next.transpose(),
                () = sender.closed() => return,
            };
            let Some(next) = next else { return };
            let is_last = next.is_err();
            let sent = sender.send_timeout(next, SLOWEST_READER).await;
            if is_last || sent.is_err() {
                return;
            }
        }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, DemandError> {
        while self.left > 0 {
            let mut cursor = std::mem::take(&mut self.cursor);
            let read = self
                .content
                .reading(move |store| (cursor.next_bytes(store), cursor));
            let (read, cursor) = read.await;
            self.cursor = cursor;
            match read {
                Ok(Some(mut chunk)) => {
                    chunk.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
                    self.left -= chunk.len() as u64;
                    return Ok(Some(chunk));
                }
                Ok(None) => return Ok(None),
                Err(error) => match error.missing_block() {
                    Some(cid) => self.demand.block(cid).await?,
                    None => return Err(error.into()),
                },
            }
        }
        Ok(None)
    }
}

fn over_limit(cid: Cid, limit: u64) -> ReadError {
    ReadError::OverLimit {
        cid,
        limit,
        what: "bytes",
    }
}
