//! Commands about what is kept: pins, unpin, gc, stat, verify.

use std::sync::Arc;

use cid::Cid;
use serde_json::{Value, json};

use super::transfer::parse_cid;
use super::{CommandError, Meter, Missing};
use crate::content::service::blocking;
use crate::content::store::{PinName, Presence};
use crate::content::{Content, Pin};

impl Content {
    pub(super) async fn command_pins(&self) -> Result<Value, CommandError> {
        let pins = self.pins().await?;
        let rows = pins.iter().flat_map(|(cid, pin)| {
            let row = |n: &PinName| json!({ "cid": cid.to_string(), "name": n.name, "since": n.since });
            pin.names.iter().map(row)
        });
        Ok(rows.collect())
    }

    pub(super) async fn command_pin(
        &self,
        path: &str,
        name: Option<String>,
        meter: &Meter,
    ) -> Result<Value, CommandError> {
        let cid = self.target(path).await?;
        let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
        let name = name.unwrap_or_else(|| last.to_owned());
        let progress = self
            .fetch_for_people(cid, Pin::Named(name.clone()), meter)
            .await?;
        let reason = self.announce(&[cid]).await;
        Ok(json!({
            "cid": cid.to_string(), "name": name, "fetched": progress.fetched,
            "announced": reason.is_none(), "reason": reason,
        }))
    }

    pub(super) async fn command_unpin(&self, cid: &str) -> Result<Value, CommandError> {
        let cid = parse_cid(cid)?;
        if self.unpin(cid).await? == Presence::Absent {
            return Err(CommandError::NotPinned { cid });
        }
        // What may be collected any moment is not announced any longer.
        let _ = self.stop_providing(cid).await;
        Ok(json!({ "cid": cid.to_string() }))
    }

    pub(super) async fn command_gc(&self) -> Result<Value, CommandError> {
        Ok(json!(self.gc().await?))
    }

    pub(super) async fn command_stat(&self) -> Result<Value, CommandError> {
        let stat = self.stat().await?;
        let store = Arc::clone(self.store());
        let room = blocking(move || store.room()).await?;
        Ok(json!({
            "blocks": stat.blocks, "bytes": stat.bytes, "limit": stat.limit, "pins": stat.pins,
            "disk_free": room.disk, "path": self.store().root(),
        }))
    }

    pub(super) async fn command_verify(
        &self,
        missing: Missing,
        meter: &Meter,
    ) -> Result<Value, CommandError> {
        let report = self.verify().await?;
        let store = Arc::clone(self.store());
        let incomplete = blocking(move || store.incomplete()).await?;
        let (mut repaired, mut failed) = (Vec::new(), Vec::new());
        if missing == Missing::Fetch {
            for root in &incomplete {
                // One that nobody has does not stand in the way of the others.
                match self.fetch_for_people(*root, Pin::No, meter).await {
                    Ok(_) => repaired.push(*root),
                    Err(error) => {
                        failed.push(json!({ "cid": root.to_string(), "error": error.to_string() }));
                    }
                }
            }
        }
        let texts = |cids: &[Cid]| cids.iter().map(Cid::to_string).collect::<Vec<_>>();
        Ok(json!({
            "good": report.good, "removed": texts(&report.removed), "incomplete": texts(&incomplete),
            "repaired": texts(&repaired), "failed": failed, "unreadable": report.failed,
        }))
    }
}
