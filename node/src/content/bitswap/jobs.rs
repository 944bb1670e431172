//! Work on the disk, away from the swarm's task.

use std::sync::Arc;

use bytes::Bytes;
use cid::Cid;
use libp2p::PeerId;
use tokio::task::JoinSet;

use super::buffers::Buffers;
use super::ledger::{Answered, Turn, wants_refusal};
use super::message::{EntryKind, Held};
use super::reply::{Fits, Reply, Writer};
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

/// Stores blocks that were wanted, whose CIDs were computed from their bytes.
pub(super) fn store(jobs: &mut JoinSet<Done>, store: &Arc<Store>, blocks: Vec<(Cid, Bytes)>) {
    let store = Arc::clone(store);
    jobs.spawn_blocking(move || {
        let put = |(cid, data): (Cid, Bytes)| {
            let size = data.len() as u64;
            let result = store.put_hashed(&cid, &data).map_err(Arc::new);
            if result.is_ok() {
                store.remember(&cid, data);
            }
            (cid, result.map(|_| size))
        };
        Done::Stored(blocks.into_iter().map(put).collect())
    });
}

/// Looks up a turn's wants and writes the reply.
pub(super) fn answer(jobs: &mut JoinSet<Done>, store: &Arc<Store>, buffers: &Buffers, turn: Turn) {
    let (store, buffers) = (Arc::clone(store), buffers.clone());
    jobs.spawn_blocking(move || {
        let (answered, reply) = look_up(&store, &buffers, &turn);
        Done::Answered {
            peer: turn.peer,
            answered,
            reply,
        }
    });
}

fn look_up(store: &Store, buffers: &Buffers, turn: &Turn) -> (Answered, Option<Reply>) {
    let (mut answered, mut reply) = (Answered::default(), Writer::new(buffers));
    for (index, entry) in turn.entries.iter().enumerate() {
        let more = turn.entries.len() - index - 1;
        let found = match entry.kind {
            EntryKind::Have => store.has(&entry.cid).then_some(None),
            EntryKind::Block => read(store, &entry.cid, &mut reply, more).map(Some),
            EntryKind::Cancel => continue,
        };
        match found {
            Some(Some(Fits::No)) => {
                answered.left = turn.entries[index..].iter().map(|entry| entry.cid).collect();
                break;
            }
            Some(Some(Fits::Yes)) => answered.given.push(entry.cid),
            Some(None) => {
                reply.presence(&entry.cid, Held::Yes);
                answered.given.push(entry.cid);
            }
            None => {
                if wants_refusal(entry) {
                    reply.presence(&entry.cid, Held::No);
                }
                answered.absent.push(entry.cid);
            }
        }
    }
    (answered, reply.finish())
}

/// Puts a block into the reply. One that cannot be read is absent as far as others are concerned.
fn read(store: &Store, cid: &Cid, reply: &mut Writer<'_>, more: usize) -> Option<Fits> {
    let written = store
        .open_block(cid)
        .and_then(|found| found.map(|found| reply.block(cid, found, more)).transpose());
    match written {
        Ok(written) => written,
        Err(error) => {
            tracing::warn!(%error, "cannot serve a block");
            None
        }
    }
}
