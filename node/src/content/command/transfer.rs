//! Commands that move content: add, get, ls, export, import, provide, find.

use std::path::PathBuf;
use std::sync::Arc;

use cid::Cid;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

use super::{CommandError, Meter, Moved, PATIENCE};
use crate::content::service::blocking;
use crate::content::store::{Store, StoreError};
use crate::content::unixfs::{self, AddError, BlockSink, Layout, Limits, ReadError};
use crate::content::{Content, ContentPath, Fetch, FetchRequest, Pin, Progress, block, car};

/// How long a fetch for a person may take in all; it can be interrupted before.
const FETCH_DEADLINE: std::time::Duration = std::time::Duration::from_secs(7 * 24 * 3600);

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
                let mut sink = Metered::new(store, meter, total);
                unixfs::add_path(&mut sink, layout, &path)
            })
            .await?;
        let announced = self.provide(added.cid).await;
        let reason = match &announced {
            Ok(announcement) => announcement.reason(),
            Err(offline) => Some(offline.to_string()),
        };
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
            if total > store.room().map_err(AddError::from)?.limit {
                store.gc().map_err(AddError::from)?;
            }
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
        let store = Arc::clone(self.store());
        let name = file.file_name().map_or_else(
            || file.display().to_string(),
            |n| n.to_string_lossy().into_owned(),
        );
        let read = blocking(move || {
            let _no_collection = store.adding();
            let read = car::read_file(&store, &file, |bytes, total| {
                _ = meter.send_replace(Moved {
                    bytes,
                    total: Some(total),
                });
            })?;
            for root in &read.roots {
                store.pin(root, &name)?;
            }
            Ok::<_, CommandError>(read)
        })
        .await?;
        self.added();
        for root in &read.roots {
            // Without a network there is nobody to tell; the next start of the node does.
            let _ = self.provide(*root).await;
        }
        let roots: Vec<String> = read.roots.iter().map(Cid::to_string).collect();
        Ok(json!({ "roots": roots, "blocks": read.blocks, "bytes": read.bytes }))
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

/// Waits for a fetch and tells how far it is, until nothing has come for [`PATIENCE`].
async fn attend(fetch: Fetch, root: Cid, meter: &Meter) -> Result<Progress, CommandError> {
    let moving = fetch.progress();
    tokio::select! {
        done = fetch.finish() => Ok(done?),
        () = stalled(moving, meter) => Err(CommandError::Stalled { cid: root, patience: PATIENCE }),
    }
}

/// Ends when blocks are missing and none has come for [`PATIENCE`].
async fn stalled(mut moving: watch::Receiver<Progress>, meter: &Meter) {
    loop {
        match timeout(PATIENCE, moving.changed()).await {
            Ok(Ok(())) => {
                let now = *moving.borrow_and_update();
                meter.send_replace(Moved {
                    bytes: now.bytes,
                    total: now.declared,
                });
            }
            // A fetch that has ended is heard of by its own result.
            Ok(Err(_)) => return std::future::pending().await,
            Err(_) => {
                let now = *moving.borrow();
                // With everything here it is the disk that is waited for.
                if now.blocks == 0 || now.pending > 0 {
                    return;
                }
            }
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
                bytes: 0,
                total: Some(total),
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
