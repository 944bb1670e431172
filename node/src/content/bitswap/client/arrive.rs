//! Blocks and presences that come from peers.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use cid::Cid;
use libp2p::PeerId;

use super::peer::Asked;
use super::{Action, Client, Stage};
use crate::content::bitswap::message::Held;
use crate::content::bitswap::{Arrival, Offence};
use crate::content::store::StoreError;

impl Client {
    /// Takes the blocks that are wanted. A block that was never asked for is an offence: its CID is computed, so
    /// this is also what a wrong block in answer to a CID comes to.
    pub(super) fn on_blocks(
        &mut self,
        now: Instant,
        id: PeerId,
        blocks: Vec<(Cid, Bytes)>,
        out: &mut Vec<Action>,
    ) {
        let mut wanted = Vec::new();
        let came = bytes_of(&blocks);
        for (cid, data) in blocks {
            let size = data.len() as u64;
            let asked = self.peer(now, id).on_block(now, &cid, size);
            match (self.accept(&cid, &id, size), asked) {
                (Acceptance::Wanted, _) => {
                    self.peer(now, id).on_answer(now);
                    self.overtake(now, id, &cid);
                    wanted.push((cid, data));
                }
                (Acceptance::Unwanted, Asked::Yes) => out.push(Action::Duplicate),
                (Acceptance::Unwanted, Asked::Never) => {
                    self.penalise(now, id, Offence::UnwantedBlock { cid }, out);
                    break;
                }
            }
        }
        if !wanted.is_empty() {
            unshare(&mut wanted, came);
            out.push(Action::Store { blocks: wanted });
        }
    }

    /// Takes in what a peer says of blocks. Of what it was not asked it may say what it likes.
    pub(super) fn on_presences(&mut self, now: Instant, id: PeerId, presences: &[(Cid, Held)]) {
        for (cid, held) in presences {
            match held {
                Held::Yes => self.on_have(now, id, cid),
                Held::No => {
                    if self.peer(now, id).is_asked(cid) {
                        self.peer(now, id).on_answer(now);
                    }
                    self.on_refusal(now, id, cid);
                }
            }
        }
    }

    /// Ends the want of a block that was stored, or could not be.
    pub(super) fn on_stored(
        &mut self,
        cid: Cid,
        result: &Result<u64, Arc<StoreError>>,
        out: &mut Vec<Action>,
    ) {
        let Some(want) = self.end_want(&cid, out) else {
            return;
        };
        for session in want.sessions {
            if let Some(fetch) = self.sessions.get_mut(&session) {
                fetch.wants.remove(&cid);
            }
            let arrival = match result {
                Ok(size) => Arrival::Stored { cid, size: *size },
                Err(error) => Arrival::Failed {
                    cid,
                    error: Arc::clone(error),
                },
            };
            out.push(Action::Deliver { session, arrival });
        }
    }

    fn accept(&mut self, cid: &Cid, id: &PeerId, size: u64) -> Acceptance {
        let Some(want) = self.wants.get_mut(cid) else {
            return Acceptance::Unwanted;
        };
        match want.stage {
            Stage::Storing(_) => return Acceptance::Unwanted,
            Stage::Asked(other) if other != *id => {
                if let Some(peer) = self.peers.get_mut(&other) {
                    peer.forget(cid);
                }
            }
            Stage::Asked(_) | Stage::Waiting => {}
        }
        want.stage = Stage::Storing(size);
        self.storing += size;
        // The sender struck the want off its list when it sent the block.
        want.told.remove(id);
        Acceptance::Wanted
    }

    fn on_have(&mut self, now: Instant, id: PeerId, cid: &Cid) {
        self.peer(now, id).forget_probe(cid);
        let Some(want) = self.wants.get_mut(cid) else {
            return;
        };
        want.refused.remove(&id);
        self.add_holder(now, id, cid);
    }

    /// A peer does not give a block, for now.
    pub(super) fn on_refusal(&mut self, now: Instant, id: PeerId, cid: &Cid) {
        self.peer(now, id).forget(cid);
        let Some(want) = self.wants.get_mut(cid) else {
            return;
        };
        want.refused.insert(id, now);
        if want.stage == Stage::Asked(id) {
            want.stage = Stage::Waiting;
            self.waiting.push_front(*cid);
        }
    }
}

/// Blocks are slices of the message they came in. Where most of it is not wanted they are copied, or a few small ones
/// would hold a whole message in memory.
fn unshare(wanted: &mut [(Cid, Bytes)], came: usize) {
    if 2 * bytes_of(wanted) < came {
        for (_, data) in wanted {
            *data = Bytes::copy_from_slice(data);
        }
    }
}

fn bytes_of(blocks: &[(Cid, Bytes)]) -> usize {
    blocks.iter().map(|(_, data)| data.len()).sum()
}

enum Acceptance {
    Wanted,
    Unwanted,
}
