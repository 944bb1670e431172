//! What has been said in a job's current round, kept for those who missed it (`/gym/sync/1`).
//!
//! Anybody may sign messages about a job. What its orchestrator said is never given up for what others say, what the last
//! rosters' members said not for what strangers say; no sender has more than its share, and all of it is bounded.

#[cfg(test)]
mod tests;

use gym_protocol::ids::PeerBytes;
use gym_protocol::message::{Body, Kind, Roster, Subject, Verified};
use sha3::{Digest, Sha3_256};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Envelopes kept for one job: their ids fit one question, with room for those that were seen and let go.
pub(super) const MAX_KEPT: usize = 5_000;
/// Bytes of them.
const MAX_BYTES: usize = 64 << 20;
/// Of these, what strangers have.
const STRANGERS: Share = Share {
    messages: 1_024,
    bytes: 8 << 20,
};
/// What one member of the last rosters has.
const MEMBER: Share = Share {
    messages: 128,
    bytes: 4 << 20,
};
/// What one stranger has: before its first roster, or a validator's reports.
const STRANGER: Share = Share {
    messages: 16,
    bytes: 256 << 10,
};
/// Ids of envelopes remembered once they were seen.
const MAX_SEEN: usize = 4 * MAX_KEPT;

/// The first 8 bytes of an envelope's SHA3-256: enough to tell it from others of a round.
pub(crate) type MessageId = [u8; 8];

/// The id of an envelope.
pub(crate) fn message_id(envelope: &[u8]) -> MessageId {
    let digest = Sha3_256::digest(envelope);
    let mut id = [0; 8];
    id.copy_from_slice(&digest[..8]);
    id
}

/// Messages and their bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    messages: usize,
    bytes: usize,
}

impl Share {
    fn add(&mut self, k: &Kept) {
        self.messages += 1;
        self.bytes += k.envelope.len();
    }

    fn exceeds(self, most: Self) -> bool {
        self.messages > most.messages || self.bytes > most.bytes
    }

    /// What is left after an eviction, so that the next message does not need another.
    fn lowered(self) -> Self {
        Self {
            messages: self.messages / 8 * 7,
            bytes: self.bytes / 8 * 7,
        }
    }
}

/// Whose messages are given up first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Stranger,
    Member,
    Orchestrator,
}

/// Of these a sender's newest is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Newest {
    Ready,
    Links,
    Status,
    DeltaReport,
    CheckpointReport,
}

impl Newest {
    fn of(body: &Body) -> Option<Self> {
        match body {
            Body::Ready(_) => Some(Self::Ready),
            Body::Links(_) => Some(Self::Links),
            Body::Status(_) => Some(Self::Status),
            Body::Report(report) => Some(match report.subject {
                Subject::Delta { .. } => Self::DeltaReport,
                Subject::Checkpoint { .. } => Self::CheckpointReport,
            }),
            Body::Job(_)
            | Body::Roster(_)
            | Body::Manifest(_)
            | Body::Attest(_)
            | Body::Close(_)
            | Body::Commitment(_)
            | Body::Receipt(_)
            | Body::Cutoff(_)
            | Body::Reveal(_)
            | Body::Complaint(_)
            | Body::Proof(_)
            | Body::Holding(_) => None,
        }
    }
}

/// Whether it is the word on a job that is over, which nothing follows.
fn is_last_word(body: &Body) -> bool {
    matches!(body, Body::Status(status) if (1..=3).contains(&status.standing))
}

#[derive(Debug)]
struct Kept {
    id: MessageId,
    kind: Kind,
    round: Option<u64>,
    newest: Option<Newest>,
    is_last_word: bool,
    sender: PeerBytes,
    /// Of its sender, as of the last roster.
    rank: Rank,
    envelope: Vec<u8>,
}

/// The messages of one job that still matter.
#[derive(Debug)]
pub(crate) struct RoundLog {
    orchestrator: PeerBytes,
    me: PeerBytes,
    /// Oldest first.
    kept: Vec<Kept>,
    seen: BTreeSet<MessageId>,
    /// The same, oldest first.
    recent: VecDeque<MessageId>,
    /// The orchestrator's latest round.
    round: u64,
    /// Who was called to it and to the one before.
    members: BTreeMap<u64, BTreeSet<PeerBytes>>,
}

impl RoundLog {
    /// The log of a job of `orchestrator`, kept by `me`.
    pub(crate) fn new(orchestrator: PeerBytes, me: PeerBytes) -> Self {
        Self {
            orchestrator,
            me,
            kept: Vec::new(),
            seen: BTreeSet::new(),
            recent: VecDeque::new(),
            round: 0,
            members: BTreeMap::new(),
        }
    }

    /// Keeps a message; `false` when it was seen before.
    pub(crate) fn add(&mut self, m: &Verified) -> bool {
        let id = message_id(&m.envelope);
        if !self.see(id) {
            return false;
        }
        if let Body::Roster(roster) = &m.body
            && m.sender == self.orchestrator
        {
            self.begin(roster);
        }
        let (round, newest) = (m.body.round(), Newest::of(&m.body));
        let is_of_now = newest.is_some() || round.is_none_or(|r| r.saturating_add(1) >= self.round);
        if is_of_now && self.supersede(m, newest) {
            self.kept.push(Kept {
                id,
                kind: m.body.kind(),
                round,
                newest,
                is_last_word: is_last_word(&m.body),
                rank: self.rank(&m.sender),
                sender: m.sender.clone(),
                envelope: m.envelope.clone(),
            });
            self.make_room(&m.sender);
        }
        true
    }

    /// Notes an id; `false` when it was there.
    fn see(&mut self, id: MessageId) -> bool {
        if !self.seen.insert(id) {
            return false;
        }
        self.recent.push_back(id);
        if self.recent.len() > MAX_SEEN {
            let kept: BTreeSet<MessageId> = self.kept.iter().map(|k| k.id).collect();
            let (kept, gone): (Vec<_>, Vec<_>) = self
                .recent
                .drain(..MAX_SEEN / 2)
                .partition(|id| kept.contains(id));
            gone.iter().for_each(|id| {
                self.seen.remove(id);
            });
            kept.into_iter().rev().for_each(|id| self.recent.push_front(id));
        }
        true
    }

    /// A new round makes everything before the last one needless, a new Ready every earlier one.
    fn begin(&mut self, roster: &Roster) {
        self.round = self.round.max(roster.round.0);
        let first = self.round.saturating_sub(1);
        self.kept.retain(|k| match (k.newest, k.round) {
            (Some(newest), _) => newest != Newest::Ready,
            (None, Some(r)) => r >= first,
            (None, None) => true,
        });
        self.members.retain(|round, _| *round >= first);
        if roster.round.0 >= first {
            let members = roster.members.iter().map(|m| m.peer.clone());
            self.members.entry(roster.round.0).or_default().extend(members);
        }
        let ranks: Vec<Rank> = self.kept.iter().map(|k| self.rank(&k.sender)).collect();
        self.kept
            .iter_mut()
            .zip(ranks)
            .for_each(|(k, rank)| k.rank = rank);
    }

    /// Lets go what a sender says anew; `false` when it said its last word before.
    fn supersede(&mut self, m: &Verified, newest: Option<Newest>) -> bool {
        if newest.is_none() {
            return true;
        }
        let is_earlier = |k: &Kept| k.newest == newest && k.sender == m.sender;
        if !is_last_word(&m.body) && self.kept.iter().any(|k| k.is_last_word && is_earlier(k)) {
            return false;
        }
        self.kept.retain(|k| !is_earlier(k));
        true
    }

    fn rank(&self, sender: &PeerBytes) -> Rank {
        if *sender == self.orchestrator {
            Rank::Orchestrator
        } else if *sender == self.me || self.members.values().any(|m| m.contains(sender)) {
            Rank::Member
        } else {
            Rank::Stranger
        }
    }

    /// After a message of `sender`: first its own oldest go, then the strangers', then whose rank is lowest.
    fn make_room(&mut self, sender: &PeerBytes) {
        let most = match self.rank(sender) {
            Rank::Stranger => Some(STRANGER),
            Rank::Member => Some(MEMBER),
            Rank::Orchestrator => None,
        };
        if let Some(most) = most {
            self.shrink(most, most, |k| k.sender == *sender);
        }
        self.shrink(STRANGERS, STRANGERS.lowered(), |k| k.rank == Rank::Stranger);
        let all = Share {
            messages: MAX_KEPT,
            bytes: MAX_BYTES,
        };
        for highest in [Rank::Stranger, Rank::Member, Rank::Orchestrator] {
            if !self.total(|_| true).exceeds(all) {
                return;
            }
            let (target, above) = (
                all.lowered(),
                self.total(|k| k.rank > highest || k.kind == Kind::Job),
            );
            let left = Share {
                messages: target.messages.saturating_sub(above.messages),
                bytes: target.bytes.saturating_sub(above.bytes),
            };
            self.shrink(left, left, |k| k.rank <= highest && k.kind != Kind::Job);
        }
    }

    fn total(&self, counts: impl Fn(&Kept) -> bool) -> Share {
        let mut total = Share::default();
        self.kept.iter().filter(|k| counts(k)).for_each(|k| total.add(k));
        total
    }

    /// Lets the oldest of some messages go until no more than `to` are left, when there are more than `most`.
    fn shrink(&mut self, most: Share, to: Share, counts: impl Fn(&Kept) -> bool) {
        if !self.total(&counts).exceeds(most) {
            return;
        }
        let mut left = Share::default();
        let mut stays: Vec<bool> = self
            .kept
            .iter()
            .rev()
            .map(|k| {
                if !counts(k) {
                    return true;
                }
                left.add(k);
                !left.exceeds(to)
            })
            .collect();
        self.kept.retain(|_| stays.pop().unwrap_or(true));
    }

    /// Whether this envelope was kept or seen.
    pub(crate) fn knows(&self, envelope: &[u8]) -> bool {
        self.seen.contains(&message_id(envelope))
    }

    /// Ids of what was seen, those of what is kept last: nobody need send them again.
    pub(crate) fn ids(&self) -> Vec<MessageId> {
        let kept: BTreeSet<MessageId> = self.kept.iter().map(|k| k.id).collect();
        let gone = self.recent.iter().filter(|id| !kept.contains(*id));
        gone.copied().chain(self.kept.iter().map(|k| k.id)).collect()
    }

    /// Envelopes that a peer with `known` lacks, oldest first, at most `limit` bytes of them. Where they are more, the
    /// orchestrator's come before its members', and theirs before strangers'.
    pub(crate) fn lacking(&self, known: &BTreeSet<MessageId>, limit: usize) -> Vec<Vec<u8>> {
        let mut lacking: Vec<(usize, &Kept)> = self
            .kept
            .iter()
            .enumerate()
            .filter(|(_, k)| !known.contains(&k.id))
            .collect();
        lacking.sort_by_key(|(at, k)| (std::cmp::Reverse(k.rank), *at));
        let mut bytes = 0;
        let mut fitting: Vec<(usize, &Kept)> = lacking
            .into_iter()
            .take_while(|(_, k)| {
                bytes += k.envelope.len();
                bytes <= limit
            })
            .collect();
        fitting.sort_by_key(|(at, _)| *at);
        fitting.into_iter().map(|(_, k)| k.envelope.clone()).collect()
    }

    /// Messages of one's own that a peer with `known` lacks, at most `limit` bytes of them.
    pub(crate) fn own_lacking(&self, known: &BTreeSet<MessageId>, limit: usize) -> Vec<Vec<u8>> {
        let mut bytes = 0;
        self.kept
            .iter()
            .filter(|k| k.sender == self.me && !known.contains(&k.id))
            .map(|k| k.envelope.clone())
            .take_while(|e| {
                bytes += e.len();
                bytes <= limit
            })
            .collect()
    }
}
