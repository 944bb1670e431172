//! The content store behind the API.

use super::{Answer, ApiError, ContentApi};
use crate::content::unixfs::Limits;
use crate::content::{Content, ContentPath, FetchRequest, Pin, Progress};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;

/// How long a fetch may take in all; the command line can be interrupted before.
const FETCH_DEADLINE: Duration = Duration::from_secs(12 * 3600);
/// A fetch that gets nothing for this long is given up.
const STALLED: Duration = Duration::from_secs(60);

impl ContentApi for Content {
    fn add(&self, path: PathBuf) -> Answer<'_> {
        Box::pin(async move {
            let name = path.file_name().map_or_else(
                || path.display().to_string(),
                |n| n.to_string_lossy().into_owned(),
            );
            let pin = Pin::Named(name);
            let added = self
                .add_dir(path, pin)
                .await
                .map_err(|e| ApiError::BadRequest(e.to_string()))?;
            self.provide(added.cid)
                .await
                .map_err(|e| ApiError::Unavailable(e.to_string()))?;
            Ok(json!({ "cid": added.cid.to_string(), "bytes": added.bytes, "total_size": added.total_size }))
        })
    }

    fn get(&self, cid: String, path: PathBuf) -> Answer<'_> {
        Box::pin(async move {
            let source: ContentPath = cid.parse().map_err(|e| bad(&e))?;
            let request = FetchRequest {
                root: source.root,
                providers: Vec::new(),
                deadline: FETCH_DEADLINE,
                pin: Pin::No,
            };
            let fetch = self.fetch_dag(request);
            let stalled = stalled(fetch.progress());
            let progress = tokio::select! {
                done = fetch.finish() => done.map_err(|e| ApiError::NotFound(e.to_string()))?,
                () = stalled => return Err(ApiError::NotFound(format!(
                    "nobody has sent anything of {cid} for {} s: no peer that can be reached has it; what has arrived is kept",
                    STALLED.as_secs()
                ))),
            };
            let bytes = self
                .export(source, path.clone(), Limits::default())
                .await
                .map_err(|e| bad(&e))?;
            Ok(json!({ "path": path, "bytes": bytes, "fetched": progress.fetched }))
        })
    }

    fn list(&self) -> Answer<'_> {
        Box::pin(async move {
            let pins = self.pins().await.map_err(|e| ApiError::Internal(e.to_string()))?;
            let pins = pins
                .into_iter()
                .map(|(cid, pin)| json!({ "cid": cid.to_string(), "name": pin.name, "since": pin.since }));
            Ok(Value::Array(pins.collect()))
        })
    }
}

/// Ends when a fetch has not moved for [`STALLED`].
async fn stalled(mut progress: watch::Receiver<Progress>) {
    while tokio::time::timeout(STALLED, progress.changed())
        .await
        .is_ok_and(|moved| moved.is_ok())
    {}
    // A fetch that has ended is heard of by its own result.
    if progress.has_changed().is_err() {
        std::future::pending::<()>().await;
    }
}

fn bad(error: &dyn std::error::Error) -> ApiError {
    ApiError::BadRequest(error.to_string())
}
