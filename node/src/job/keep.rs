//! Which checkpoints of a job stay: the newest ones, and older ones that are being published, were published last, or were
//! evaluated last. The pins of the others go, so that collection may take them.

use super::fetch::ROUND_DEADLINE;
use super::service::Service;
use crate::content::store::{PinRecord, StoreError};
use crate::content::{Cid, Content, FetchRequest, Pin};
use crate::publish::{Checkpoint, Publication};
use gym_protocol::ids::{CidBytes, Round};
use std::path::{Path, PathBuf};

/// The name of the pin of a job's state after a number of closed rounds, by which it is found again after a restart.
pub(crate) fn pin_name(job: &CidBytes, closed: u64) -> String {
    format!("{}{closed}", prefix(job))
}

fn prefix(job: &CidBytes) -> String {
    format!("checkpoint of {job} after round ")
}

/// What lets old checkpoints of a job go.
struct Pruning {
    content: Content,
    /// Where jobs' files lie.
    jobs: PathBuf,
    job: CidBytes,
    /// Rounds that are kept.
    keep: u64,
    publication: Publication,
    /// The checkpoint that a validator reported on last.
    evaluated: Option<Cid>,
}

impl Service {
    /// Keeps a closed round's checkpoint here too, says so in the DHT, offers it for publication, and lets older ones go.
    pub(crate) fn keep_checkpoint(&self, id: &CidBytes, round: Round, cid: &CidBytes) {
        let Ok(root) = cid.to_cid() else { return };
        let request = FetchRequest {
            root,
            providers: self.providers(id),
            deadline: ROUND_DEADLINE,
            pin: Pin::Named(pin_name(id, round.0 + 1)),
        };
        let checkpoint = Checkpoint {
            job: id.clone(),
            round: round.0,
            root,
        };
        let pruning = self.pruning(id);
        tokio::spawn(async move {
            let content = pruning.content.clone();
            if let Err(e) = content.fetch_dag(request).finish().await {
                tracing::warn!("the checkpoint {root} is not kept here: {e}");
                return;
            }
            if content.provide(root).await.is_err() {
                tracing::debug!("offline: {root} is not announced");
            }
            pruning.publication.offer(checkpoint).await;
            pruning.run_and_tell().await;
        });
    }

    /// Lets older checkpoints go on a node that fetches them to evaluate and keeps none for the job.
    pub(crate) fn let_old_checkpoints_go(&self, id: &CidBytes) {
        let pruning = self.pruning(id);
        tokio::spawn(async move { pruning.run_and_tell().await });
    }

    fn pruning(&self, id: &CidBytes) -> Pruning {
        Pruning {
            content: self.tools.content.clone(),
            jobs: self.tools.home.jobs(),
            job: id.clone(),
            keep: self.tools.keep_checkpoints,
            publication: self.tools.publication.clone(),
            evaluated: self.jobs.get(id).and_then(|job| job.evaluated()),
        }
    }
}

impl Pruning {
    async fn run_and_tell(&self) {
        match self.run().await {
            Ok(0) => {}
            Ok(gone) => tracing::debug!(gone, "older checkpoints are not kept any longer"),
            Err(e) => tracing::warn!("older checkpoints stay: {e}"),
        }
    }

    /// Lets go what is old; says how many pins that were.
    async fn run(&self) -> Result<usize, StoreError> {
        let pins = self.content.pins().await?;
        let mut gone = 0;
        for root in self.old(&pins) {
            self.content.unpin(root).await?;
            // What may be collected any moment is not announced any longer. Offline nothing is.
            let _ = self.content.stop_providing(root).await;
            remove(&self.jobs.join("content").join(root.to_string())).await;
            gone += 1;
        }
        if let Some(first) = self.first(&pins) {
            remove_directories(&self.jobs.join(self.job.to_string()).join("checkpoints"), first).await;
        }
        Ok(gone)
    }

    /// The roots of old checkpoints that nobody uses.
    fn old(&self, pins: &[(Cid, PinRecord)]) -> Vec<Cid> {
        let Some(first) = self.first(pins) else {
            return Vec::new();
        };
        let used = self.publication.used();
        let is_used = |root: &Cid| used.contains(root) || self.evaluated == Some(*root);
        pins.iter()
            .filter(|(root, pin)| self.closed(pin).is_some_and(|closed| closed < first) && !is_used(root))
            .map(|(root, _)| *root)
            .collect()
    }

    /// The first of the rounds that are kept.
    fn first(&self, pins: &[(Cid, PinRecord)]) -> Option<u64> {
        let newest = pins.iter().filter_map(|(_, pin)| self.closed(pin)).max()?;
        Some((newest + 1).saturating_sub(self.keep))
    }

    fn closed(&self, pin: &PinRecord) -> Option<u64> {
        pin.name.strip_prefix(&prefix(&self.job))?.parse().ok()
    }
}

/// Removes the directories of states before `first`, which are named by their number.
async fn remove_directories(checkpoints: &Path, first: u64) {
    let Ok(mut entries) = tokio::fs::read_dir(checkpoints).await else {
        return;
    };
    while let Ok(Some(entry)) = entries.next_entry().await {
        let number = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u64>().ok());
        if number.is_some_and(|number| number < first) {
            remove(&entry.path()).await;
        }
    }
}

async fn remove(path: &Path) {
    if let Err(error) = tokio::fs::remove_dir_all(path).await
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "an old checkpoint's files stay");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::bitswap;
    use crate::content::unixfs::Layout;
    use crate::publish;
    use tokio::sync::mpsc;

    fn job(name: &str) -> CidBytes {
        CidBytes::from_cid(&crate::content::block::cid_of(0x71, name.as_bytes()))
    }

    async fn pinned(content: &Content) -> Vec<String> {
        let mut names: Vec<String> = content
            .pins()
            .await
            .unwrap()
            .into_iter()
            .map(|(_, pin)| pin.name)
            .collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn the_newest_stay_and_those_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let (content, _exchange) = crate::content::open(crate::content::Config {
            root: dir.path().join("store"),
            limit: 1 << 24,
            layout: Layout::default(),
            bitswap: bitswap::Config::default(),
        })
        .unwrap();
        let mut roots = Vec::new();
        for closed in 0..12 {
            let pin = Pin::Named(pin_name(&job("a"), closed));
            let added = content.add_bytes(vec![closed as u8; 100], pin).await.unwrap();
            roots.push(added.cid);
            let files = dir.path().join(job("a").to_string()).join("checkpoints");
            std::fs::create_dir_all(files.join(format!("{closed:06}"))).unwrap();
            std::fs::create_dir_all(dir.path().join("content").join(added.cid.to_string())).unwrap();
        }
        // Of others, and of the user's.
        content
            .add_bytes(vec![100], Pin::Named(pin_name(&job("b"), 0)))
            .await
            .unwrap();
        content
            .add_bytes(vec![101], Pin::Named("mine".into()))
            .await
            .unwrap();
        let config = publish::Config {
            ipfs_url: Some("http://127.0.0.1:9".into()),
            ..publish::Config::default()
        };
        let (outcomes, _told) = mpsc::channel(1);
        let scratch = dir.path().join("publishing");
        let (publication, _publishing) = publish::new(config, content.clone(), scratch, outcomes);
        // It waits to be published, as one of rounds ago.
        let waiting = Checkpoint {
            job: job("a"),
            round: 1,
            root: roots[2],
        };
        publication.offer(waiting).await;
        let pruning = Pruning {
            content: content.clone(),
            jobs: dir.path().to_owned(),
            job: job("a"),
            keep: 4,
            publication,
            evaluated: Some(roots[5]),
        };
        assert_eq!(pruning.run().await.unwrap(), 6);
        let mut expected: Vec<String> = [2, 5, 8, 9, 10, 11]
            .map(|closed| pin_name(&job("a"), closed))
            .into();
        expected.extend([pin_name(&job("b"), 0), "mine".to_owned()]);
        expected.sort();
        assert_eq!(pinned(&content).await, expected);
        assert_eq!(content.gc().await.unwrap().removed, 6);
        let left = std::fs::read_dir(dir.path().join(job("a").to_string()).join("checkpoints")).unwrap();
        assert_eq!(left.count(), 4);
        assert_eq!(std::fs::read_dir(dir.path().join("content")).unwrap().count(), 6);
        assert_eq!(pruning.run().await.unwrap(), 0);
    }
}
