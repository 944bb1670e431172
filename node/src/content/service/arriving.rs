//! Writing content out while it is still being fetched.

use std::path::PathBuf;
use std::sync::Arc;

use cid::Cid;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::{Content, Progress, blocking};
use crate::content::store::Store;
use crate::content::unixfs::{self, Absent, ContentPath, Limits, ReadError};

impl Content {
    /// As [`Content::export`], beginning while a fetch goes on: `progress` is the fetch's, which ends with it. Blocks that
    /// are missing are waited for until then. Nothing is looked at before the fetch has found room for what its root
    /// declares.
    ///
    /// # Errors
    /// [`ReadError`]; [`ReadError::missing_block`] when the fetch ended too early.
    pub async fn export_arriving(
        &self,
        path: ContentPath,
        target: PathBuf,
        limits: Limits,
        mut progress: watch::Receiver<Progress>,
    ) -> Result<u64, ReadError> {
        if progress.wait_for(|now| now.declared.is_some()).await.is_err() {
            return Err(ReadError::Missing { cid: path.root });
        }
        let (store, runtime) = (Arc::clone(&self.store), Handle::current());
        blocking(move || {
            let mut waiter = Waiter {
                store: &store,
                runtime,
                progress,
            };
            let wait = |missing: &[Cid]| waiter.wait(missing);
            unixfs::export_arriving(&store, &path, &target, limits, wait)
        })
        .await
    }
}

struct Waiter<'a> {
    store: &'a Store,
    runtime: Handle,
    progress: watch::Receiver<Progress>,
}

impl Waiter<'_> {
    /// Waits until all of these blocks are there, or one will not come because the fetch has ended.
    fn wait(&mut self, missing: &[Cid]) -> Absent {
        let mut left = missing;
        loop {
            let ended = self.progress.has_changed().is_err();
            // What came is not looked for again.
            let came = left.iter().take_while(|cid| self.store.has(cid)).count();
            left = &left[came..];
            if left.is_empty() {
                return Absent::TryAgain;
            }
            if ended {
                return Absent::GiveUp;
            }
            // An error says that the fetch has ended, which the next look takes in.
            let _ = self.runtime.block_on(self.progress.changed());
        }
    }
}
