//! What is still to be published, on disk: a node that stops while a server is away takes it up again at its next start.

use super::Checkpoint;
use crate::content::Cid;
use crate::files::{self, Access};
use gym_protocol::ids::CidBytes;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// The longest file that is read, in bytes.
const MAX_FILE: u64 = 64 * 1024;

/// The file, one entry at most: the newest checkpoint counts.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    /// Offers and the publishing task write at the same time.
    turn: Mutex<()>,
}

/// A checkpoint that is not everywhere yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) checkpoint: Checkpoint,
    /// Places that have it.
    pub(super) done: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    job: String,
    round: u64,
    root: String,
    done: Vec<String>,
}

impl Journal {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            turn: Mutex::new(()),
        }
    }

    /// What waits. A file that makes no sense is removed: the next round's checkpoint is published anyway.
    pub(super) fn read(&self) -> Option<Pending> {
        let text = match files::read_text(&self.path, MAX_FILE) {
            Ok(text) => text,
            Err(error) if error.source.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!("what waits to be published is not known: {error}");
                return None;
            }
        };
        let pending = serde_json::from_str::<Entry>(&text).ok().and_then(Entry::parse);
        if pending.is_none() {
            tracing::warn!(path = %self.path.display(), "no list of what waits to be published: it is removed");
            let _ = std::fs::remove_file(&self.path);
        }
        pending
    }

    /// A checkpoint is to be published, in place of any earlier one.
    pub(super) fn begin(&self, checkpoint: &Checkpoint) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(&Pending {
            checkpoint: checkpoint.clone(),
            done: Vec::new(),
        });
    }

    /// One place has it; after the last of `places` nothing waits. Says nothing of a newer one.
    pub(super) fn finish(&self, checkpoint: &Checkpoint, place: &str, places: &[&str]) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut pending) = self.read().filter(|pending| pending.checkpoint == *checkpoint) else {
            return;
        };
        pending.done.push(place.to_owned());
        if places
            .iter()
            .all(|place| pending.done.iter().any(|done| done == place))
        {
            self.clear();
        } else {
            self.write(&pending);
        }
    }

    /// Nothing waits.
    pub(super) fn clear(&self) {
        if let Err(error) = std::fs::remove_file(&self.path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.path.display(), %error, "what was published is published again at the next start");
        }
    }

    fn write(&self, pending: &Pending) {
        let entry = Entry {
            job: pending.checkpoint.job.to_string(),
            round: pending.checkpoint.round,
            root: pending.checkpoint.root.to_string(),
            done: pending.done.clone(),
        };
        let bytes = serde_json::to_vec(&entry).unwrap_or_default();
        if let Err(error) = files::write_atomic(&self.path, &bytes, Access::Everyone) {
            tracing::warn!("a publication that a stop interrupts will not be taken up again: {error}");
        }
    }
}

impl Entry {
    fn parse(self) -> Option<Pending> {
        let job: Cid = self.job.parse().ok()?;
        Some(Pending {
            checkpoint: Checkpoint {
                job: CidBytes::from_cid(&job),
                round: self.round,
                root: self.root.parse().ok()?,
            },
            done: self.done,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::block::{RAW, cid_of};

    fn checkpoint(round: u64) -> Checkpoint {
        Checkpoint {
            job: CidBytes::from_cid(&cid_of(RAW, b"job")),
            round,
            root: cid_of(RAW, &round.to_le_bytes()),
        }
    }

    #[test]
    fn what_waits_is_known_until_every_place_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::new(dir.path().join("publishing.json"));
        assert_eq!(journal.read(), None);
        journal.begin(&checkpoint(3));
        journal.begin(&checkpoint(4));
        journal.finish(&checkpoint(3), "hub", &["hub"]);
        let places = ["ipfs", "hub"];
        journal.finish(&checkpoint(4), "ipfs", &places);
        let waiting = Journal::new(dir.path().join("publishing.json")).read().unwrap();
        assert_eq!(
            (waiting.checkpoint, waiting.done),
            (checkpoint(4), vec!["ipfs".to_owned()])
        );
        journal.finish(&checkpoint(4), "hub", &places);
        assert_eq!(journal.read(), None);
    }

    #[test]
    fn a_damaged_list_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("publishing.json");
        for text in ["", "{}", "{\"job\":\"x\",\"round\":1,\"root\":\"y\",\"done\":[]}"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(Journal::new(path.clone()).read(), None);
            assert!(!path.exists());
        }
    }
}
