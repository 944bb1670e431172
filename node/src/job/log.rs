//! What has been said in a job's current round, kept for those who missed it (`/gym/sync/1`).

use gym_protocol::ids::PeerBytes;
use gym_protocol::message::{Body, Kind, Verified};
use sha3::{Digest, Sha3_256};
use std::collections::BTreeSet;

/// Envelopes kept for one job.
const MAX_KEPT: usize = 8_192;

/// The first 8 bytes of an envelope's SHA3-256: enough to tell it from others of a round.
pub(crate) type MessageId = [u8; 8];

/// The id of an envelope.
pub(crate) fn message_id(envelope: &[u8]) -> MessageId {
    let digest = Sha3_256::digest(envelope);
    let mut id = [0; 8];
    id.copy_from_slice(&digest[..8]);
    id
}

#[derive(Debug)]
struct Kept {
    id: MessageId,
    kind: Kind,
    round: Option<u64>,
    sender: PeerBytes,
    envelope: Vec<u8>,
}

/// The messages of one job that still matter.
#[derive(Debug, Default)]
pub(crate) struct RoundLog {
    kept: Vec<Kept>,
    seen: BTreeSet<MessageId>,
    round: u64,
}

impl RoundLog {
    /// Keeps a message; `false` when it was kept before.
    pub(crate) fn add(&mut self, m: &Verified) -> bool {
        let id = message_id(&m.envelope);
        if !self.seen.insert(id) {
            return false;
        }
        if let Body::Roster(roster) = &m.body {
            self.drop_before(roster.round.0);
        }
        let round = m.body.round();
        if self.kept.len() < MAX_KEPT && round.is_none_or(|r| r + 1 >= self.round) {
            let (kind, sender) = (m.body.kind(), m.sender.clone());
            self.kept.push(Kept {
                id,
                kind,
                round,
                sender,
                envelope: m.envelope.clone(),
            });
        }
        true
    }

    /// A new round makes everything before the last one needless, a new Ready every earlier one.
    fn drop_before(&mut self, round: u64) {
        self.round = self.round.max(round);
        let first = self.round.saturating_sub(1);
        self.kept.retain(|k| match k.round {
            Some(r) => r >= first || k.kind == Kind::Report,
            None => k.kind != Kind::Ready,
        });
        if self.seen.len() > 4 * MAX_KEPT {
            self.seen = self.kept.iter().map(|k| k.id).collect();
        }
    }

    /// Whether this envelope was kept or seen.
    pub(crate) fn knows(&self, envelope: &[u8]) -> bool {
        self.seen.contains(&message_id(envelope))
    }

    /// Ids of everything kept.
    pub(crate) fn ids(&self) -> Vec<MessageId> {
        self.kept.iter().map(|k| k.id).collect()
    }

    /// Envelopes that a peer with `known` lacks, oldest first, at most `limit` bytes of them.
    pub(crate) fn lacking(&self, known: &BTreeSet<MessageId>, limit: usize) -> Vec<Vec<u8>> {
        let mut bytes = 0;
        let lacking = self.kept.iter().filter(|k| !known.contains(&k.id));
        lacking
            .map(|k| k.envelope.clone())
            .take_while(|e| {
                bytes += e.len();
                bytes <= limit
            })
            .collect()
    }

    /// Messages of one's own that a peer with `known` lacks.
    pub(crate) fn own_lacking(&self, me: &PeerBytes, known: &BTreeSet<MessageId>) -> Vec<Vec<u8>> {
        self.kept
            .iter()
            .filter(|k| k.sender == *me && !known.contains(&k.id))
            .map(|k| k.envelope.clone())
            .collect()
    }
}
