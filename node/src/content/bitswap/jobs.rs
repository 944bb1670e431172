//! Work on the disk, away from the swarm's task.

use std::sync::Arc;

use bytes::Bytes;
use cid::Cid;
use libp2p::PeerId;
use tokio::task::JoinSet;

use super::MAX_REPLY;
use super::ledger::{Answered, Turn, wants_refusal};
use super::message::{EntryKind, Held, Message};
use crate::content::store::{Store, StoreError};

/// What a job came to.
#[derive(Debug)]
pub(super) enum Done {
    Stored(Vec<(Cid, Result<u64, Arc<StoreError>>)>),
    Answered {
        peer: PeerId,
        answered: Answered,
        reply: Option<Reply>,
    },
}

/// A reply ready to be sent.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) frame: Bytes,
    pub(super) blocks: u64,
    pub(super) bytes: u64,
}

/// Stores blocks that were wanted.
pub(super) fn store(jobs: &mut JoinSet<Done>, store: &Arc<Store>, blocks: Vec<(Cid, Bytes)>) {
    let store = Arc::clone(store);
    jobs.spawn_blocking(move || {
        let put = |(cid, data): (Cid, Bytes)| {
            let result = store
                .put(&cid, &data)
                .map(|_| data.len() as u64)
                .map_err(Arc::new);
            (cid, result)
        };
        Done::Stored(blocks.into_iter().map(put).collect())
    });
}

/// Looks up a turn's wants and writes the reply.
pub(super) fn answer(jobs: &mut JoinSet<Done>, store: &Arc<Store>, turn: Turn) {
    let store = Arc::clone(store);
    jobs.spawn_blocking(move || {
        let (answered, message) = look_up(&store, &turn);
        let reply = (message != Message::default()).then(|| Reply {
            blocks: message.blocks.len() as u64,
            bytes: message.blocks.iter().map(|(_, data)| data.len() as u64).sum(),
            frame: message.encode_frame(),
        });
        Done::Answered {
            peer: turn.peer,
            answered,
            reply,
        }
    });
}

fn look_up(store: &Store, turn: &Turn) -> (Answered, Message) {
    let (mut answered, mut message, mut bytes) = (Answered::default(), Message::default(), 0);
    for (index, entry) in turn.entries.iter().enumerate() {
        let found = match entry.kind {
            EntryKind::Have => store.size(&entry.cid).map(|_| None),
            EntryKind::Block => read(store, &entry.cid).map(Some),
            EntryKind::Cancel => continue,
        };
        match found {
            Some(Some(data)) if bytes > 0 && bytes + data.len() > MAX_REPLY => {
                answered.left = turn.entries[index..].iter().map(|entry| entry.cid).collect();
                break;
            }
            Some(Some(data)) => {
                bytes += data.len();
                message.blocks.push((entry.cid, data));
                answered.given.push(entry.cid);
            }
            Some(None) => {
                message.presences.push((entry.cid, Held::Yes));
                answered.given.push(entry.cid);
            }
            None => {
                if wants_refusal(entry) {
                    message.presences.push((entry.cid, Held::No));
                }
                answered.absent.push(entry.cid);
            }
        }
    }
    (answered, message)
}

/// A block that cannot be read is absent as far as others are concerned.
fn read(store: &Store, cid: &Cid) -> Option<Bytes> {
    match store.get(cid) {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(%error, "cannot serve a block");
            None
        }
    }
}
