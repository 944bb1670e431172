//! What other peers want from us and whose turn it is. Pure: reading blocks is the caller's.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use cid::Cid;
use libp2p::PeerId;

use super::MAX_WANTS;
use super::message::{Absent, Entry, EntryKind, Scope};

/// Replies to one peer that may be under way: one being written, one being read from disk.
const MAX_UNDER_WAY: u32 = 2;
/// Replies to all peers that may be under way, which bounds the memory they take to 256 MB.
const MAX_ALL_UNDER_WAY: u32 = 128;
/// Entries of one turn.
const TURN: usize = 256;

/// Everybody's accounts.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    accounts: BTreeMap<PeerId, Account>,
    /// Who may have a turn, next first; each at most once.
    turns: VecDeque<PeerId>,
}

/// One peer's wants.
#[derive(Debug, Default)]
struct Account {
    wants: BTreeMap<Cid, Want>,
    /// Wants to answer, in order.
    queue: VecDeque<Cid>,
    under_way: u32,
}

#[derive(Debug)]
struct Want {
    entry: Entry,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// In the queue.
    Queued,
    /// In a turn; the flag is set when the block arrived meanwhile.
    Answering(Meanwhile),
    /// Answered that it is not here; answered again when it is.
    Absent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    Arrived,
}

/// Wants to look up for one peer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) peer: PeerId,
    pub(super) entries: Vec<Entry>,
}

/// What became of a turn's entries.
#[derive(Debug, Default)]
pub(super) struct Answered {
    /// Block or presence is in the reply.
    pub(super) given: Vec<Cid>,
    /// Not held.
    pub(super) absent: Vec<Cid>,
    /// Left for the next turn because the reply was full.
    pub(super) left: Vec<Cid>,
}

impl Ledger {
    /// Takes a peer's wants and cancels; says how many were over its limit and dropped.
    pub(super) fn on_entries(&mut self, peer: PeerId, scope: Scope, entries: &[Entry]) -> usize {
        if entries.is_empty() && scope == Scope::Changes {
            return 0;
        }
        let account = self.accounts.entry(peer).or_default();
        if scope == Scope::Everything {
            account.wants.clear();
            account.queue.clear();
        }
        let dropped = entries
            .iter()
            .filter(|entry| account.take(entry) == Taken::Dropped)
            .count();
        self.give_turn(peer);
        dropped
    }

    /// A block is here now: whoever was told otherwise is told again.
    pub(super) fn on_block(&mut self, cid: &Cid) {
        let waiting: Vec<PeerId> = self
            .accounts
            .iter_mut()
            .filter_map(|(peer, account)| (account.on_block(cid) == Queued::Now).then_some(*peer))
            .collect();
        waiting.into_iter().for_each(|peer| self.give_turn(peer));
    }

    /// Blocks were added that nobody listed: every unanswered want is looked up again.
    pub(super) fn look_again(&mut self) {
        let absent: BTreeSet<Cid> = self.accounts.values().flat_map(Account::unanswered).collect();
        absent.iter().for_each(|cid| self.on_block(cid));
    }

    /// The next peer's turn, in rotation. [`Ledger::on_answered`] and [`Ledger::on_sent`] end it.
    pub(super) fn next_turn(&mut self) -> Option<Turn> {
        if self.turns.is_empty() || self.replies_under_way() >= MAX_ALL_UNDER_WAY {
            return None;
        }
        while let Some(peer) = self.turns.pop_front() {
            let Some(account) = self.accounts.get_mut(&peer) else {
                continue;
            };
            let entries = account.begin_turn();
            if !entries.is_empty() {
                self.give_turn(peer);
                return Some(Turn { peer, entries });
            }
        }
        None
    }

    /// Takes note of what a reply holds.
    pub(super) fn on_answered(&mut self, peer: PeerId, answered: &Answered) {
        if let Some(account) = self.accounts.get_mut(&peer) {
            account.on_answered(answered);
            self.give_turn(peer);
        }
    }

    /// A reply left, or was lost, or had nothing in it.
    pub(super) fn on_sent(&mut self, peer: PeerId) {
        if let Some(account) = self.accounts.get_mut(&peer) {
            account.under_way = account.under_way.saturating_sub(1);
            self.give_turn(peer);
        }
    }

    /// Replies under way were lost with their connection, and another is used now. The peer asks again.
    pub(super) fn on_moved(&mut self, peer: PeerId) {
        if let Some(account) = self.accounts.get_mut(&peer) {
            account.under_way = 0;
            self.give_turn(peer);
        }
    }

    /// The peer is gone, with all it wanted.
    pub(super) fn on_gone(&mut self, peer: &PeerId) {
        self.accounts.remove(peer);
    }

    /// Whether a peer has wants that are not answered with a block.
    pub(super) fn has_wants(&self, peer: &PeerId) -> bool {
        self.accounts
            .get(peer)
            .is_some_and(|account| !account.wants.is_empty() || account.under_way > 0)
    }

    fn replies_under_way(&self) -> u32 {
        self.accounts.values().map(|account| account.under_way).sum()
    }

    fn give_turn(&mut self, peer: PeerId) {
        let due = self.accounts.get(&peer).is_some_and(Account::is_due);
        if due && !self.turns.contains(&peer) {
            self.turns.push_back(peer);
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Taken {
    Kept,
    Dropped,
}

#[derive(Debug, PartialEq, Eq)]
enum Queued {
    Now,
    No,
}

impl Account {
    fn is_due(&self) -> bool {
        !self.queue.is_empty() && self.under_way < MAX_UNDER_WAY
    }

    fn take(&mut self, entry: &Entry) -> Taken {
        if entry.kind == EntryKind::Cancel {
            self.wants.remove(&entry.cid);
            return Taken::Kept;
        }
        if self.wants.len() >= MAX_WANTS && !self.wants.contains_key(&entry.cid) {
            return Taken::Dropped;
        }
        let was = self.wants.insert(
            entry.cid,
            Want {
                entry: *entry,
                stage: Stage::Queued,
            },
        );
        if was.is_none_or(|want| want.stage != Stage::Queued) {
            self.queue.push_back(entry.cid);
            self.bound_queue();
        }
        Taken::Kept
    }

    /// A cancelled want leaves its place in the queue behind: wants and cancels in turn must not make it grow.
    fn bound_queue(&mut self) {
        if self.queue.len() <= 2 * MAX_WANTS {
            return;
        }
        let mut seen = BTreeSet::new();
        let wants = &self.wants;
        let is_queued = |cid: &Cid| wants.get(cid).is_some_and(|want| want.stage == Stage::Queued);
        self.queue.retain(|cid| is_queued(cid) && seen.insert(*cid));
    }

    fn on_block(&mut self, cid: &Cid) -> Queued {
        let Some(want) = self.wants.get_mut(cid) else {
            return Queued::No;
        };
        match want.stage {
            Stage::Absent => {
                want.stage = Stage::Queued;
                self.queue.push_back(*cid);
                Queued::Now
            }
            Stage::Answering(_) => {
                want.stage = Stage::Answering(Meanwhile::Arrived);
                Queued::No
            }
            Stage::Queued => Queued::No,
        }
    }

    fn unanswered(&self) -> Vec<Cid> {
        let open = |want: &&Want| want.stage != Stage::Queued;
        self.wants
            .values()
            .filter(open)
            .map(|want| want.entry.cid)
            .collect()
    }

    fn begin_turn(&mut self) -> Vec<Entry> {
        let mut entries = Vec::new();
        while self.is_due() && entries.len() < TURN {
            let Some(cid) = self.queue.pop_front() else { break };
            // A want that was cancelled, or taken up through an older place in the queue, has nothing to answer.
            let Some(want) = self
                .wants
                .get_mut(&cid)
                .filter(|want| want.stage == Stage::Queued)
            else {
                continue;
            };
            want.stage = Stage::Answering(Meanwhile::Nothing);
            entries.push(want.entry);
        }
        self.under_way += u32::from(!entries.is_empty());
        entries
    }

    fn on_answered(&mut self, answered: &Answered) {
        for cid in &answered.given {
            if self
                .wants
                .get(cid)
                .is_some_and(|want| matches!(want.stage, Stage::Answering(_)))
            {
                self.wants.remove(cid);
            }
        }
        for cid in &answered.absent {
            let Some(want) = self.wants.get_mut(cid) else {
                continue;
            };
            match want.stage {
                Stage::Answering(Meanwhile::Nothing) => want.stage = Stage::Absent,
                Stage::Answering(Meanwhile::Arrived) => self.requeue(cid),
                Stage::Queued | Stage::Absent => {}
            }
        }
        answered.left.iter().rev().for_each(|cid| self.requeue(cid));
    }

    fn requeue(&mut self, cid: &Cid) {
        if let Some(want) = self.wants.get_mut(cid)
            && matches!(want.stage, Stage::Answering(_))
        {
            want.stage = Stage::Queued;
            self.queue.push_front(*cid);
        }
    }
}

/// Whether a peer asked to hear that a block is absent.
pub(super) fn wants_refusal(entry: &Entry) -> bool {
    entry.absent == Absent::Tell
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::block::{RAW, cid_of};

    fn cid(number: u32) -> Cid {
        cid_of(RAW, &number.to_le_bytes())
    }

    fn wants(numbers: std::ops::Range<u32>) -> Vec<Entry> {
        numbers
            .map(|number| Entry::want(cid(number), EntryKind::Block))
            .collect()
    }

    fn given(turn: &Turn) -> Answered {
        Answered {
            given: turn.entries.iter().map(|entry| entry.cid).collect(),
            ..Answered::default()
        }
    }

    #[test]
    fn peers_take_turns_and_have_two_replies_under_way() {
        let mut ledger = Ledger::default();
        let (a, b) = (PeerId::random(), PeerId::random());
        ledger.on_entries(a, Scope::Changes, &wants(0..1000));
        ledger.on_entries(b, Scope::Changes, &wants(0..10));
        let order: Vec<PeerId> = std::iter::from_fn(|| ledger.next_turn())
            .map(|turn| turn.peer)
            .collect();
        assert_eq!(order, [a, b, a]);
        ledger.on_sent(a);
        assert_eq!(ledger.next_turn().unwrap().peer, a);
    }

    #[test]
    fn wants_over_the_limit_are_dropped() {
        let mut ledger = Ledger::default();
        let peer = PeerId::random();
        assert_eq!(
            ledger.on_entries(peer, Scope::Changes, &wants(0..3000)),
            3000 - MAX_WANTS
        );
        assert_eq!(ledger.on_entries(peer, Scope::Everything, &wants(0..10)), 0);
        let turn = ledger.next_turn().unwrap();
        assert_eq!(turn.entries, wants(0..10));
        ledger.on_answered(peer, &given(&turn));
        ledger.on_sent(peer);
        assert!(!ledger.has_wants(&peer));
    }

    #[test]
    fn wants_and_cancels_in_turn_take_no_memory() {
        let mut ledger = Ledger::default();
        let peer = PeerId::random();
        for number in 0..20_000 {
            let entries = [
                Entry::want(cid(number % 7), EntryKind::Block),
                Entry::cancel(cid(number % 7)),
            ];
            ledger.on_entries(peer, Scope::Changes, &entries);
            assert!(ledger.accounts[&peer].queue.len() <= 2 * MAX_WANTS);
        }
        ledger.on_entries(peer, Scope::Changes, &wants(3..5));
        assert_eq!(ledger.next_turn().unwrap().entries, wants(3..5));
    }

    #[test]
    fn who_was_told_that_a_block_is_absent_is_told_when_it_comes() {
        let mut ledger = Ledger::default();
        let peer = PeerId::random();
        ledger.on_entries(peer, Scope::Changes, &wants(0..2));
        let turn = ledger.next_turn().unwrap();
        // The second block arrives while the turn is being answered.
        ledger.on_block(&cid(1));
        ledger.on_answered(
            peer,
            &Answered {
                absent: vec![cid(0), cid(1)],
                ..Answered::default()
            },
        );
        ledger.on_sent(peer);
        assert_eq!(turn.entries.len(), 2);
        let again = ledger.next_turn().unwrap();
        assert_eq!(again.entries, wants(1..2));
        ledger.on_answered(peer, &given(&again));
        ledger.on_sent(peer);
        assert_eq!(ledger.next_turn(), None);
        ledger.look_again();
        assert_eq!(ledger.next_turn().unwrap().entries, wants(0..1));
    }

    #[test]
    fn what_a_full_reply_left_comes_next_and_in_order() {
        let mut ledger = Ledger::default();
        let peer = PeerId::random();
        ledger.on_entries(peer, Scope::Changes, &wants(0..4));
        ledger.next_turn().unwrap();
        let answered = Answered {
            given: vec![cid(0)],
            left: vec![cid(1), cid(2), cid(3)],
            ..Answered::default()
        };
        ledger.on_answered(peer, &answered);
        assert_eq!(ledger.next_turn().unwrap().entries, wants(1..4));
    }

    #[test]
    fn cancelled_wants_are_not_answered() {
        let mut ledger = Ledger::default();
        let peer = PeerId::random();
        ledger.on_entries(peer, Scope::Changes, &wants(0..2));
        ledger.on_entries(peer, Scope::Changes, &[Entry::cancel(cid(0))]);
        assert_eq!(ledger.next_turn().unwrap().entries, wants(1..2));
        ledger.on_gone(&peer);
        assert!(!ledger.has_wants(&peer));
    }
}
