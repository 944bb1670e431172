//! Announcing what is pinned: when the node has met the network, and again before the records that others keep expire.

use crate::content::Content;
use crate::net::NetHandle;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Records live for 48 hours on most IPFS nodes, and the peers that keep them come and go.
const EVERY: Duration = Duration::from_secs(12 * 3600);
/// How often it is looked whether there is anybody to tell.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Between two announcements, each a walk through the DHT.
const PAUSE: Duration = Duration::from_millis(50);

/// Runs until the node stops.
pub(crate) async fn run(content: Content, net: NetHandle, stop: CancellationToken) {
    let announce = async {
        loop {
            while !net.peers().await.is_ok_and(|peers| !peers.is_empty()) {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            match all(&content).await {
                Ok(count) => tracing::debug!(count, "announced what is pinned"),
                Err(error) => {
                    tracing::warn!(%error, "what is pinned could not be announced; it is tried again later")
                }
            }
            tokio::time::sleep(EVERY).await;
        }
    };
    tokio::select! {
        () = announce => {}
        () = stop.cancelled() => {}
    }
}

async fn all(content: &Content) -> anyhow::Result<usize> {
    let pins = content.pins().await?;
    for (root, _) in &pins {
        content.provide(*root).await?;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(pins.len())
}
