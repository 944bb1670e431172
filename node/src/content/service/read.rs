//! Reading and exporting what is held.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use cid::Cid;
use tokio::sync::mpsc;

use super::{Content, blocking};
use crate::content::store::Store;
use crate::content::unixfs::{self, ContentPath, Entry, FileReader, Limits, ReadError, Resolved};

/// Blocks read ahead of whoever takes them.
const READ_AHEAD: usize = 4;

/// A file's bytes as they are read.
#[derive(Debug)]
pub struct FileStream {
    /// The whole file's size in bytes.
    pub size: u64,
    chunks: mpsc::Receiver<Result<Bytes, ReadError>>,
}

impl FileStream {
    /// The next bytes, at most a block; nothing at the end.
    ///
    /// # Errors
    /// [`ReadError`], naming the block.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
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

    /// A file's bytes as a stream, from `start` on.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn stream(&self, path: ContentPath, start: u64) -> Result<FileStream, ReadError> {
        let (sender, chunks) = mpsc::channel(READ_AHEAD);
        let (store, opened) = (Arc::clone(&self.store), path.clone());
        let size = blocking(move || FileReader::open(&store, &opened).map(|reader| reader.size())).await?;
        let store = Arc::clone(&self.store);
        tokio::task::spawn_blocking(move || pump(&store, &path, start, &sender));
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

fn pump(store: &Store, path: &ContentPath, start: u64, sender: &mpsc::Sender<Result<Bytes, ReadError>>) {
    let opened = FileReader::open(store, path).map(|reader| reader.skip_bytes(start));
    let mut reader = match opened {
        Ok(reader) => reader,
        Err(error) => {
            // Whoever listened may be gone, which ends the stream as well.
            let _ = sender.blocking_send(Err(error));
            return;
        }
    };
    while let Some(chunk) = reader.next_bytes().transpose() {
        let is_last = chunk.is_err();
        if sender.blocking_send(chunk).is_err() || is_last {
            return;
        }
    }
}

fn over_limit(cid: Cid, limit: u64) -> ReadError {
    ReadError::OverLimit {
        cid,
        limit,
        what: "bytes",
    }
}
