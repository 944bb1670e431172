//! Fetching from those who are known to have it, one after the other: a dead one holds nothing up for long.

use crate::content::{Content, FetchRequest, Pin};
use cid::Cid;
use libp2p::PeerId;
use std::time::Duration;
use tokio::time::timeout;

/// A provider that brings nothing for this long is left for the next.
const PATIENCE: Duration = Duration::from_secs(1);

/// Fetches everything under `root` within `deadline` for each provider; after all of them alone, from whoever has it.
///
/// # Errors
/// What the last try says.
pub(super) async fn fetch_from(
    content: &Content,
    root: Cid,
    providers: Vec<PeerId>,
    deadline: Duration,
) -> Result<(), String> {
    let request = |providers| FetchRequest {
        root,
        providers,
        deadline,
        pin: Pin::No,
    };
    for provider in &providers {
        if fetch_while_it_comes(content, request(vec![*provider])).await {
            return Ok(());
        }
    }
    let last = content.fetch_dag(request(providers)).finish().await;
    last.map(drop).map_err(|e| e.to_string())
}

/// Whether it came whole. What came stays for the next try.
async fn fetch_while_it_comes(content: &Content, request: FetchRequest) -> bool {
    let fetch = content.fetch_dag(request);
    let mut progress = fetch.progress();
    let finish = fetch.finish();
    tokio::pin!(finish);
    loop {
        tokio::select! {
            done = &mut finish => return done.is_ok(),
            changed = timeout(PATIENCE, progress.changed()) => match changed {
                Ok(Ok(())) => {}
                // It is over.
                Ok(Err(_)) => return finish.await.is_ok(),
                Err(_) => return false,
            },
        }
    }
}
