//! Writing content out while it is still being fetched.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cid::Cid;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::{Content, Progress, blocking};
use crate::content::store::Store;
use crate::content::unixfs::{self, Absent, ContentPath, Limits, ReadError};

/// Tries for one piece after which the pauses between them double: a large directory's list is read anew in each.
const QUICK_TRIES: u32 = 8;
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

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
            let wait = |cid, tries| waiter.wait(cid, tries);
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
    /// Waits until a block is there, or will not come because the fetch has ended.
    fn wait(&mut self, cid: Cid, tries: u32) -> Absent {
        if let Some(doublings) = tries.checked_sub(QUICK_TRIES) {
            std::thread::sleep(Duration::from_millis(1 << doublings.min(10)).min(LONGEST_PAUSE));
        }
        loop {
            let ended = self.progress.has_changed().is_err();
            if self.store.has(&cid) {
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
