//! Commits that a round needs: kept from collection from before their commitment until the round after is closed, so that
//! whoever fetches one (the orchestrator, a member who audits, a validator) finds it (PROTOCOL section 5, "Commit").

use super::commit::Files;
use crate::content::store::Hold;
use crate::content::{Cid, Content, Pin};
use gym_protocol::ids::CidBytes;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Commits held for one round: its members' own and their replicas.
const MAX_OF_ROUND: usize = 8_192;

/// What is held, by round; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds(Arc<Mutex<BTreeMap<u64, BTreeMap<Cid, Hold>>>>);

impl Holds {
    /// Holds a commit before it is fetched or added.
    pub(crate) fn hold(&self, content: &Content, round: u64, cid: &CidBytes) {
        let Ok(root) = cid.to_cid() else { return };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_round = all.entry(round).or_default();
        if of_round.len() < MAX_OF_ROUND {
            of_round.entry(root).or_insert_with(|| content.store().hold(root));
        }
    }

    /// Adds a commit whose CID is not known before, and holds it.
    pub(crate) async fn add(&self, content: &Content, round: u64, files: Files) -> Result<CidBytes, String> {
        let added = content
            .add_map(files.clone(), Pin::No)
            .await
            .map_err(|e| e.to_string())?;
        let cid = CidBytes::from_cid(&added.cid);
        self.hold(content, round, &cid);
        // What a collection took before it was held comes again.
        let again = content.add_map(files, Pin::No).await;
        again.map(|_| cid).map_err(|e| e.to_string())
    }

    /// Lets one go: it is not what it was said to be.
    pub(crate) fn drop_one(&self, round: u64, cid: &CidBytes) {
        let Ok(root) = cid.to_cid() else { return };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_round) = all.get_mut(&round) {
            of_round.remove(&root);
        }
    }

    /// Lets those of the rounds before `round` go.
    pub(crate) fn drop_before(&self, round: u64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|r, _| *r >= round);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_collection_between_commitment_and_reveal_loses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let content = crate::content::alone(dir.path().join("store"));
        let files = |n: u8| Files::from([("delta.bin".to_owned(), vec![n; 600_000])]);
        let holds = Holds::default();
        let own = holds.add(&content, 4, files(1)).await.unwrap();
        // A replica, whose CID is known before its files are added.
        let other = crate::content::alone(dir.path().join("other"));
        let replica = other.add_map(files(2), Pin::No).await.unwrap().cid;
        holds.hold(&content, 4, &CidBytes::from_cid(&replica));
        content.add_map(files(2), Pin::No).await.unwrap();
        assert_eq!(content.gc().await.unwrap().removed, 0);
        // It was closed; the validators may be reading still.
        holds.drop_before(4);
        assert_eq!(content.gc().await.unwrap().removed, 0);
        holds.drop_one(4, &own);
        assert!(content.gc().await.unwrap().removed > 0);
        assert!(content.store().has(&replica));
        holds.drop_before(5);
        content.gc().await.unwrap();
        assert!(!content.store().has(&replica));
    }
}
