//! Commands that move content: add, get, ls, export, import, provide, find.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cid::Cid;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::{CommandError, Meter, Moved, PATIENCE};
use crate::content::bitswap::Offline;
use crate::content::car::{CarError, Imported};
use crate::content::service::{blocking, check_asker};
use crate::content::store::{Hold, Store, StoreError};
use crate::content::unixfs::{self, BlockSink, Layout, Limits, ReadError};
use crate::content::{Content, ContentPath, Fetch, FetchRequest, Pin, Progress, block, car};

/// How long a fetch for a person may take in all; it can be interrupted before.
const FETCH_DEADLINE: Duration = Duration::from_secs(7 * 24 * 3600);

impl Content {
    pub(super) async fn command_add(
        &self,
        path: PathBuf,
        layout: Layout,
        meter: Meter,
    ) -> Result<Value, CommandError> {
        let name = path.file_name().map_or_else(
            || path.display().to_string(),
            |n| n.to_string_lossy().into_owned(),
        );
        let total = self.make_room_for(path.clone()).await?;
        let pin = Pin::Named(name.clone());
        let added = self
            .add(pin, move |store| {
                let mut sink = Metered::new(store, meter.clone(), total);
                unixfs::add_path(&mut sink, layout, &path)
            })
            .await?;
        let reason = self.announce(&[added.cid]).await;
        Ok(json!({
            "cid": added.cid.to_string(), "name": name, "bytes": added.bytes, "total_size": added.total_size,
            "announced": reason.is_none(), "reason": reason,
        }))
    }

    /// Collects what no pin reaches when the store's limit would be passed; returns the bytes to be added.
    async fn make_room_for(&self, path: PathBuf) -> Result<u64, CommandError> {
        let store = Arc::clone(self.store());
        blocking(move || {
            let total = unixfs::measure(&path)?;
            store.make_room(total)?;
            Ok::<_, CommandError>(total)
        })
        .await
    }

    pub(super) async fn command_get(
        &self,
        path: &str,
        out: PathBuf,
        meter: &Meter,
    ) -> Result<Value, CommandError> {
        let cid = self.target(path).await?;
        let store = Arc::clone(self.store());
        let _kept = store.protect(cid);
        let _recalled = store.recall();
        let fetch = self.begin_fetch(cid, Pin::No);
        let export = self.export_arriving(cid.into(), out.clone(), Limits::default(), fetch.progress());
        let (progress, bytes) = both(attend(fetch, cid, meter), export).await?;
        Ok(json!({ "cid": cid.to_string(), "path": out, "bytes": bytes, "fetched": progress.fetched }))
    }

    pub(super) async fn command_ls(&self, path: &str) -> Result<Value, CommandError> {
        let entries = self.on_demand(PATIENCE).ls(path.parse()?).await?;
        let row = |entry: unixfs::Entry| json!({ "name": entry.name, "cid": entry.cid.to_string(), "size": entry.declared_size });
        Ok(entries.into_iter().map(row).collect())
    }

    pub(super) async fn command_export(
        &self,
        path: &str,
        out: PathBuf,
        meter: Meter,
    ) -> Result<Value, CommandError> {
        let root = self.target(path).await?;
        let store = Arc::clone(self.store());
        let _kept = store.protect(root);
        self.fetch_for_people(root, Pin::No, &meter).await?;
        let (store, target) = (Arc::clone(&store), out.clone());
        let written = blocking(move || car::write_file(&store, root, &target)).await?;
        Ok(json!({ "root": root.to_string(), "blocks": written.blocks, "bytes": written.bytes, "path": out }))
    }

    pub(super) async fn command_import(&self, file: PathBuf, meter: Meter) -> Result<Value, CommandError> {
        let name = file.file_name().map_or_else(
            || file.display().to_string(),
            |n| n.to_string_lossy().into_owned(),
        );
        let (store, pin_name) = (Arc::clone(self.store()), name.clone());
        let (read, lacking) = blocking(move || take_in(&store, &file, &pin_name, &meter)).await?;
        self.added();
        let fetched = self.complete(&read.roots, &lacking, &name).await?;
        let reason = self.announce(&read.roots).await;
        let roots: Vec<String> = read.roots.iter().map(Cid::to_string).collect();
        Ok(json!({
            "roots": roots, "blocks": read.blocks, "bytes": read.bytes, "fetched": fetched,
            "announced": reason.is_none(), "reason": reason,
        }))
    }

    /// Fetches what a CAR lacked and pins its roots. Returns the bytes that came.
    async fn complete(&self, roots: &[Cid], lacking: &[(Cid, u64)], name: &str) -> Result<u64, CommandError> {
        if lacking.is_empty() {
            return Ok(0);
        }
        let _kept: Vec<Hold> = roots.iter().map(|root| self.store().hold(*root)).collect();
        let (meter, _) = watch::channel(Moved::default());
        let mut fetched = 0;
        for (root, missing) in lacking {
            match self.fetch_for_people(*root, Pin::No, &meter).await {
                Ok(progress) => fetched += progress.fetched,
                Err(error) if error.is_refusal() => return Err(error),
                Err(reason) => {
                    return Err(CommandError::Incomplete {
                        root: *root,
                        missing: *missing,
                        reason: Box::new(reason),
                    });
                }
            }
        }
        for root in roots {
            self.pin(*root, name.to_owned()).await?;
        }
        Ok(fetched)
    }

    /// Announces what has just been pinned. Says why one of the roots is not announced, if so.
    pub(super) async fn announce(&self, roots: &[Cid]) -> Option<String> {
        let mut reason = None;
        for root in roots {
            match self.provide(*root).await {
                Ok(announcement) => reason = reason.or_else(|| announcement.reason()),
                Err(Offline) => {
                    return Some(
                        "no node runs here that is connected to a network; the next one that is started (`hanzod run`) \
                         announces what is pinned"
                            .to_owned(),
                    );
                }
            }
        }
        reason
    }

    pub(super) async fn command_provide(&self, cid: &str) -> Result<Value, CommandError> {
        let cid = parse_cid(cid)?;
        if !self.store().has(&cid) {
            return Err(StoreError::Missing { cid }.into());
        }
        let announcement = self.provide(cid).await?;
        let reason = announcement.reason();
        Ok(json!({ "cid": cid.to_string(), "announced": announcement.is_begun(), "reason": reason }))
    }

    pub(super) async fn command_find(&self, cid: &str) -> Result<Value, CommandError> {
        let cid = parse_cid(cid)?;
        let providers = self.find(cid).await?;
        let providers: Vec<String> = providers.iter().map(ToString::to_string).collect();
        Ok(json!({ "cid": cid.to_string(), "providers": providers }))
    }

    /// What a path leads to, fetching the directories on the way. Blocks of other codecs have no paths inside.
    pub(super) async fn target(&self, path: &str) -> Result<Cid, CommandError> {
        let path: ContentPath = path.parse()?;
        block::check_supported(&path.root).map_err(StoreError::from)?;
        if path.names.is_empty() {
            return Ok(path.root);
        }
        Ok(self.on_demand(PATIENCE).resolve(path).await?.cid)
    }

    /// Fetches everything under a root, until nothing has come for [`PATIENCE`].
    pub(crate) async fn fetch_for_people(
        &self,
        root: Cid,
        pin: Pin,
        meter: &Meter,
    ) -> Result<Progress, CommandError> {
        attend(self.begin_fetch(root, pin), root, meter).await
    }

    fn begin_fetch(&self, root: Cid, pin: Pin) -> Fetch {
        self.fetch_dag(FetchRequest {
            root,
            providers: Vec::new(),
            deadline: FETCH_DEADLINE,
            pin,
        })
    }
}

/// How long a fetch for a person waits for anything at all, and how often it is told that it waits.
#[derive(Clone, Copy)]
struct Patience {
    limit: Duration,
    tell_every: Duration,
}

/// Waits for a fetch and tells how far it is, until nothing has come for [`PATIENCE`].
async fn attend(fetch: Fetch, root: Cid, meter: &Meter) -> Result<Progress, CommandError> {
    let moving = fetch.progress();
    let patience = Patience {
        limit: PATIENCE,
        tell_every: Duration::from_secs(1),
    };
    tokio::select! {
        done = fetch.finish() => Ok(done?),
        blocks = stalled(moving, meter, patience) => {
            Err(CommandError::Stalled { cid: root, patience: PATIENCE, blocks })
        }
    }
}

/// Ends when blocks are missing and none has come for as long as the patience lasts; with the blocks that are here. Tells
/// how far it is whenever that changes, and now and then when it does not: whoever looks on sees that it goes on.
async fn stalled(mut moving: watch::Receiver<Progress>, meter: &Meter, patience: Patience) -> u64 {
    let mut since = Instant::now();
    loop {
        let changed = match timeout(patience.tell_every, moving.changed()).await {
            // A fetch that has ended is heard of by its own result.
            Ok(Err(_)) => return std::future::pending().await,
            Ok(Ok(())) => true,
            Err(_) => false,
        };
        let now = *moving.borrow_and_update();
        meter.send_replace(Moved {
            bytes: now.bytes,
            total: now.total(),
            held: now.bytes.saturating_sub(now.fetched),
        });
        // With everything here it is the disk that is waited for.
        let waits = now.blocks == 0 || now.pending > 0;
        if changed || !waits {
            since = Instant::now();
        } else if since.elapsed() >= patience.limit {
            return now.blocks;
        }
    }
}

/// Waits for a fetch and for the export of what arrives. Whichever fails ends the other; that a block is missing is only
/// how the export learns that the fetch failed.
async fn both(
    fetch: impl Future<Output = Result<Progress, CommandError>>,
    export: impl Future<Output = Result<u64, ReadError>>,
) -> Result<(Progress, u64), CommandError> {
    tokio::pin!(fetch, export);
    tokio::select! {
        fetched = &mut fetch => {
            // When the fetch failed the export notices, and cleans up before anybody is told.
            let exported = export.await;
            Ok((fetched?, exported?))
        }
        exported = &mut export => match exported {
            Err(error) if error.missing_block().is_none() => Err(error.into()),
            exported => {
                let fetched = fetch.await?;
                Ok((fetched, exported?))
            }
        },
    }
}

/// Takes a CAR's blocks in. Pins its roots if all of them are whole, else says which lack how many blocks.
fn take_in(
    store: &Store,
    file: &Path,
    name: &str,
    meter: &Meter,
) -> Result<(Imported, Vec<(Cid, u64)>), CommandError> {
    let told = |bytes, total| {
        _ = meter.send_replace(Moved {
            bytes,
            total: Some(total),
            ..Moved::default()
        });
    };
    // What it is made of takes no more room than the file.
    let size = std::fs::metadata(file).map_or(0, |found| found.len());
    store.make_room(size)?;
    let once = || {
        let _no_collection = store.adding();
        let read = car::read_file(store, file, told)?;
        let mut lacking = Vec::new();
        for root in &read.roots {
            let missing = store.missing_under(*root)?;
            if missing > 0 {
                lacking.push((*root, missing));
            }
        }
        check_asker()?;
        for root in read.roots.iter().filter(|_| lacking.is_empty()) {
            store.pin(root, name)?;
        }
        Ok((read, lacking))
    };
    store.with_room(
        once,
        |error| matches!(error, CommandError::Car(CarError::Store(error)) if error.is_full()),
    )
}

pub(super) fn parse_cid(text: &str) -> Result<Cid, CommandError> {
    text.parse().map_err(|_| CommandError::NoCid {
        text: text.to_owned(),
    })
}

/// The store, counting file bytes as they pass.
struct Metered<'a> {
    store: &'a Store,
    meter: Meter,
    moved: Moved,
}

impl<'a> Metered<'a> {
    fn new(store: &'a Store, meter: Meter, total: u64) -> Self {
        Self {
            store,
            meter,
            moved: Moved {
                total: Some(total),
                ..Moved::default()
            },
        }
    }
}

impl BlockSink for Metered<'_> {
    fn put(&mut self, cid: &Cid, data: &[u8]) -> Result<(), StoreError> {
        self.store.put_hashed(cid, data)?;
        if !unixfs::may_have_links(cid) {
            self.moved.bytes += data.len() as u64;
            self.meter.send_replace(self.moved);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patience() -> Patience {
        Patience {
            limit: Duration::from_millis(50),
            tell_every: Duration::from_millis(1),
        }
    }

    #[tokio::test]
    async fn a_fetch_of_what_nobody_has_is_told_of_while_it_waits_and_given_up() {
        let (_fetch, moving) = watch::channel(Progress::default());
        let (meter, mut told) = watch::channel(Moved::default());
        let waiting = stalled(moving, &meter, patience());
        tokio::pin!(waiting);
        tokio::select! {
            _ = &mut waiting => panic!("given up before a word was said"),
            heard = told.changed() => heard.unwrap(),
        }
        let blocks = waiting.await;
        let words = CommandError::Stalled {
            cid: "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"
                .parse()
                .unwrap(),
            patience: PATIENCE,
            blocks,
        };
        assert!(words.to_string().ends_with("nothing of it is here"), "{words}");
    }

    #[tokio::test]
    async fn what_has_arrived_is_said_to_be_kept() {
        let some = Progress {
            blocks: 3,
            pending: 1,
            ..Progress::default()
        };
        let (_fetch, moving) = watch::channel(some);
        let (meter, _told) = watch::channel(Moved::default());
        assert_eq!(stalled(moving, &meter, patience()).await, 3);
    }
}
