//! Which checkpoints of a job stay: the newest ones, and older ones that are being published, were published last, or were
//! evaluated last. The pins of the others go, so that collection may take them.

use super::fetch::ROUND_DEADLINE;
use super::service::Service;
use crate::content::store::{PinRecord, Presence, StoreError};
use crate::content::{Cid, Content, FetchRequest, Pin};
use crate::publish::{Checkpoint, Publication};
use gym_protocol::ids::{CidBytes, Round};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The name of the pin of a job's state after a number of closed rounds, by which it is found again after a restart.
pub(crate) fn pin_name(job: &CidBytes, closed: u64) -> String {
    format!("{}{closed}", prefix(job))
}

fn prefix(job: &CidBytes) -> String {
    format!("checkpoint of {job} after round ")
}

/// When checkpoints fell out of the newest; clones share it. What was named to others as the newest is fetched for a while.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fallen(Arc<Mutex<BTreeMap<Cid, Instant>>>);

impl Fallen {
    /// Whether it fell out at least `grace` ago; and whether it did now.
    fn since(&self, root: &Cid, now: Instant, grace: Duration) -> (bool, bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !all.contains_key(root);
        let at = *all.entry(*root).or_insert(now);
        (now.saturating_duration_since(at) >= grace, is_new)
    }

    fn forget(&self, root: &Cid) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(root);
    }
}

/// What a pruning did.
#[derive(Debug, Default, PartialEq, Eq)]
struct Pruned {
    /// Names taken from pins.
    gone: usize,
    /// Checkpoints that fell out of the newest now, and go after the grace.
    fell: usize,
}

/// What lets old checkpoints of a job go.
struct Pruning {
    content: Content,
    /// Where jobs' files lie.
    jobs: PathBuf,
    job: CidBytes,
    /// Rounds that are kept.
    keep: u64,
    /// How long older ones stay for fetches that began while they were kept.
    grace: Duration,
    fallen: Fallen,
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
            grace: self.tools.checkpoint_grace,
            fallen: self.tools.fallen.clone(),
            publication: self.tools.publication.clone(),
            evaluated: self.jobs.get(id).and_then(|job| job.evaluated()),
        }
    }
}

impl Pruning {
    async fn run_and_tell(&self) {
        loop {
            match self.run(Instant::now()).await {
                Ok(Pruned { gone, fell }) => {
                    if gone > 0 {
                        tracing::debug!(gone, "older checkpoints are not kept any longer");
                    }
                    if fell == 0 {
                        return;
                    }
                }
                Err(e) => return tracing::warn!("older checkpoints stay: {e}"),
            }
            tokio::time::sleep(self.grace).await;
        }
    }

    /// Lets go what has been old for long enough: the job's names for it, while others keep theirs.
    async fn run(&self, now: Instant) -> Result<Pruned, StoreError> {
        let pins = self.content.pins().await?;
        let mut pruned = Pruned::default();
        for (root, name) in self.old(&pins) {
            let (is_due, fell_now) = self.fallen.since(&root, now, self.grace);
            if !is_due {
                pruned.fell += usize::from(fell_now);
                continue;
            }
            if self.content.unpin_name(root, name).await? == Presence::Absent {
                // What may be collected any moment is not announced any longer. Offline nothing is.
                let _ = self.content.stop_providing(root).await;
            }
            self.fallen.forget(&root);
            remove(&self.jobs.join("content").join(root.to_string())).await;
            pruned.gone += 1;
        }
        if let Some(first) = self.first(&pins) {
            remove_directories(&self.jobs.join(self.job.to_string()).join("checkpoints"), first).await;
        }
        Ok(pruned)
    }

    /// The roots of old checkpoints that nobody uses, with the names that the job gave them.
    fn old(&self, pins: &[(Cid, PinRecord)]) -> Vec<(Cid, String)> {
        let Some(first) = self.first(pins) else {
            return Vec::new();
        };
        let used = self.publication.used();
        let is_used = |root: &Cid| used.contains(root) || self.evaluated == Some(*root);
        pins.iter()
            .filter(|(root, _)| !is_used(root))
            .flat_map(|(root, pin)| pin.names.iter().map(move |n| (*root, &n.name)))
            .filter(|(_, name)| self.closed(name).is_some_and(|closed| closed < first))
            .map(|(root, name)| (root, name.clone()))
            .collect()
    }

    /// The first of the rounds that are kept.
    fn first(&self, pins: &[(Cid, PinRecord)]) -> Option<u64> {
        let names = pins.iter().flat_map(|(_, pin)| &pin.names);
        let newest = names.filter_map(|n| self.closed(&n.name)).max()?;
        Some(newest.saturating_add(1).saturating_sub(self.keep))
    }

    fn closed(&self, name: &str) -> Option<u64> {
        name.strip_prefix(&prefix(&self.job))?.parse().ok()
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
    use crate::publish;
    use tokio::sync::mpsc;

    const GRACE: Duration = Duration::from_secs(600);

    fn job(name: &str) -> CidBytes {
        CidBytes::from_cid(&crate::content::block::cid_of(0x71, name.as_bytes()))
    }

    async fn pinned(content: &Content) -> Vec<String> {
        let mut names: Vec<String> = content
            .pins()
            .await
            .unwrap()
            .into_iter()
            .flat_map(|(_, pin)| pin.names)
            .map(|n| n.name)
            .collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn the_newest_stay_and_those_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let content = crate::content::alone(dir.path().join("store"));
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
            grace: GRACE,
            fallen: Fallen::default(),
            publication,
            evaluated: Some(roots[5]),
        };
        // The user's own name for one of those that go.
        content.pin(roots[3], "best".into()).await.unwrap();
        // Whoever began to fetch one while it was kept has time to end.
        let fell = |fell| Pruned { gone: 0, fell };
        let begin = Instant::now();
        assert_eq!(pruning.run(begin).await.unwrap(), fell(6));
        assert_eq!(content.gc().await.unwrap().removed, 0);
        let before = GRACE - Duration::from_secs(1);
        assert_eq!(pruning.run(begin + before).await.unwrap(), fell(0));
        assert_eq!(
            pruning.run(begin + GRACE).await.unwrap(),
            Pruned { gone: 6, fell: 0 }
        );
        let mut expected: Vec<String> = [2, 5, 8, 9, 10, 11]
            .map(|closed| pin_name(&job("a"), closed))
            .into();
        expected.extend([pin_name(&job("b"), 0), "best".to_owned(), "mine".to_owned()]);
        expected.sort();
        assert_eq!(pinned(&content).await, expected);
        assert_eq!(content.gc().await.unwrap().removed, 5);
        assert!(content.store().has(&roots[3]), "the user keeps it");
        let left = std::fs::read_dir(dir.path().join(job("a").to_string()).join("checkpoints")).unwrap();
        assert_eq!(left.count(), 4);
        assert_eq!(std::fs::read_dir(dir.path().join("content")).unwrap().count(), 6);
        assert_eq!(pruning.run(begin + GRACE).await.unwrap(), fell(0));
    }
}
