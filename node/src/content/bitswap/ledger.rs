//! What other peers want from us and whose turn it is. Pure: reading blocks is the caller's.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use cid::Cid;
use libp2p::PeerId;

use super::message::{Absent, Entry, EntryKind, Scope};
use super::{MAX_REPLY, MAX_WANTS};

/// Replies to one peer that may be under way: one being written, one being read from disk.
const MAX_UNDER_WAY: usize = 2;
/// When replies have filled their room, one of which nothing has been read for this long makes place.
const QUIET: Duration = Duration::from_secs(3);
/// How long a peer that did not read a reply gets no other.
const REST: Duration = Duration::from_secs(10);
/// Entries of one turn.
const TURN: usize = 256;

/// Everybody's accounts.
#[derive(Debug)]
pub(super) struct Ledger {
    accounts: BTreeMap<PeerId, Account>,
    /// Who may have a turn, next first; each at most once.
    turns: VecDeque<PeerId>,
    /// Bytes of replies to all peers that may be under way. The last quarter is for peers that have none.
    room: usize,
}

/// One peer's wants.
#[derive(Debug, Default)]
struct Account {
    wants: BTreeMap<Cid, Want>,
    /// Wants to answer, in order.
    queue: VecDeque<Cid>,
    /// Replies being looked up.
    reading: usize,
    /// Bytes of the replies being written, in order.
    writing: VecDeque<usize>,
    /// Bytes that the peer has taken, and when the last of them.
    taken: u64,
    progress: Option<Instant>,
    /// It did not read: it has no turn until then.
    rests_until: Option<Instant>,
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
    /// Replies of `room` bytes may be under way.
    pub(super) fn new(room: usize) -> Self {
        Self {
            accounts: BTreeMap::new(),
            turns: VecDeque::new(),
            room,
        }
    }

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

    /// The next peer's turn, in rotation. [`Ledger::on_answered`] ends the reading; when it gives a reply,
    /// [`Ledger::on_sent`] or [`Ledger::on_lost`] ends the writing.
    pub(super) fn next_turn(&mut self, now: Instant) -> Option<Turn> {
        let under_way = self.bytes_under_way();
        if under_way >= self.room {
            return None;
        }
        let is_tight = under_way >= self.room / 4 * 3;
        for _ in 0..self.turns.len() {
            let peer = self.turns.pop_front()?;
            let Some(account) = self.accounts.get_mut(&peer) else {
                continue;
            };
            if account.rests(now) || (is_tight && account.under_way() > 0) {
                self.turns.push_back(peer);
                continue;
            }
            let entries = account.begin_turn();
            if !entries.is_empty() {
                self.give_turn(peer);
                return Some(Turn { peer, entries });
            }
        }
        None
    }

    /// Takes note of what was looked up; the reply has `bytes`, if there is one.
    pub(super) fn on_answered(
        &mut self,
        now: Instant,
        peer: PeerId,
        answered: &Answered,
        bytes: Option<usize>,
    ) {
        if let Some(account) = self.accounts.get_mut(&peer) {
            account.on_answered(answered);
            account.reading = account.reading.saturating_sub(1);
            if account.writing.is_empty() {
                account.progress = Some(now);
            }
            account.writing.extend(bytes);
            self.give_turn(peer);
        }
    }

    /// A reply left.
    pub(super) fn on_sent(&mut self, now: Instant, peer: PeerId) {
        if let Some(account) = self.accounts.get_mut(&peer) {
            account.writing.pop_front();
            account.progress = Some(now);
            self.give_turn(peer);
        }
    }

    /// A reply could not be sent: the peer does not read.
    pub(super) fn on_lost(&mut self, now: Instant, peer: PeerId) {
        if let Some(account) = self.accounts.get_mut(&peer) {
            account.writing.pop_front();
            account.rests_until = Some(now + REST);
            self.give_turn(peer);
        }
    }

    /// The peer has taken so many bytes in all.
    pub(super) fn on_taken(&mut self, now: Instant, peer: &PeerId, bytes: u64) {
        if let Some(account) = self.accounts.get_mut(peer)
            && account.taken != bytes
        {
            account.taken = bytes;
            account.progress = Some(now);
        }
    }

    /// Where somebody waits for a first reply and there is no room: whose replies are to be dropped. They count no longer,
    /// and [`Ledger::on_lost`] is not called for them.
    pub(super) fn drop_quietest(&mut self, now: Instant) -> Option<PeerId> {
        if self.bytes_under_way() < self.room {
            return None;
        }
        let waits = |peer: &PeerId| {
            let account = self.accounts.get(peer);
            account.is_some_and(|account| account.under_way() == 0 && account.is_due() && !account.rests(now))
        };
        if !self.turns.iter().any(waits) {
            return None;
        }
        let is_quiet = |account: &Account| account.progress.is_some_and(|at| now >= at + QUIET);
        let (peer, account) = self
            .accounts
            .iter_mut()
            .filter(|(_, account)| !account.writing.is_empty() && is_quiet(account))
            .min_by_key(|(_, account)| account.progress)?;
        account.writing.clear();
        account.rests_until = Some(now + REST);
        Some(*peer)
    }

    /// Replies under way were lost with their connection, and another is used now. The peer asks again.
    pub(super) fn on_moved(&mut self, peer: PeerId) {
        if let Some(account) = self.accounts.get_mut(&peer) {
            account.writing.clear();
            account.rests_until = None;
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
            .is_some_and(|account| !account.wants.is_empty() || account.under_way() > 0)
    }

    fn bytes_under_way(&self) -> usize {
        let bytes = |account: &Account| account.reading * MAX_REPLY + account.writing.iter().sum::<usize>();
        self.accounts.values().map(bytes).sum()
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
        !self.queue.is_empty() && self.under_way() < MAX_UNDER_WAY
    }

    fn under_way(&self) -> usize {
        self.reading + self.writing.len()
    }

    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
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
        self.reading += usize::from(!entries.is_empty());
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

    const ROOM: usize = 256 << 20;

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
        let (mut ledger, now) = (Ledger::new(ROOM), Instant::now());
        let (a, b) = (PeerId::random(), PeerId::random());
        ledger.on_entries(a, Scope::Changes, &wants(0..1000));
        ledger.on_entries(b, Scope::Changes, &wants(0..10));
        let order: Vec<PeerId> = std::iter::from_fn(|| ledger.next_turn(now))
            .map(|turn| turn.peer)
            .collect();
        assert_eq!(order, [a, b, a]);
        ledger.on_answered(now, a, &Answered::default(), Some(1000));
        assert_eq!(ledger.next_turn(now), None);
        ledger.on_sent(now, a);
        assert_eq!(ledger.next_turn(now).unwrap().peer, a);
    }

    #[test]
    fn wants_over_the_limit_are_dropped() {
        let (mut ledger, now) = (Ledger::new(ROOM), Instant::now());
        let peer = PeerId::random();
        assert_eq!(
            ledger.on_entries(peer, Scope::Changes, &wants(0..3000)),
            3000 - MAX_WANTS
        );
        assert_eq!(ledger.on_entries(peer, Scope::Everything, &wants(0..10)), 0);
        let turn = ledger.next_turn(now).unwrap();
        assert_eq!(turn.entries, wants(0..10));
        ledger.on_answered(now, peer, &given(&turn), Some(1000));
        ledger.on_sent(now, peer);
        assert!(!ledger.has_wants(&peer));
    }

    #[test]
    fn wants_and_cancels_in_turn_take_no_memory() {
        let (mut ledger, now) = (Ledger::new(ROOM), Instant::now());
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
        assert_eq!(ledger.next_turn(now).unwrap().entries, wants(3..5));
    }

    #[test]
    fn who_was_told_that_a_block_is_absent_is_told_when_it_comes() {
        let (mut ledger, now) = (Ledger::new(ROOM), Instant::now());
        let peer = PeerId::random();
        ledger.on_entries(peer, Scope::Changes, &wants(0..2));
        let turn = ledger.next_turn(now).unwrap();
        // The second block arrives while the turn is being answered.
        ledger.on_block(&cid(1));
        ledger.on_answered(
            now,
            peer,
            &Answered {
                absent: vec![cid(0), cid(1)],
                ..Answered::default()
            },
            None,
        );
        assert_eq!(turn.entries.len(), 2);
        let again = ledger.next_turn(now).unwrap();
        assert_eq!(again.entries, wants(1..2));
        ledger.on_answered(now, peer, &given(&again), Some(1000));
        ledger.on_sent(now, peer);
        assert_eq!(ledger.next_turn(now), None);
        ledger.look_again();
        assert_eq!(ledger.next_turn(now).unwrap().entries, wants(0..1));
    }

    #[test]
    fn what_a_full_reply_left_comes_next_and_in_order() {
        let (mut ledger, now) = (Ledger::new(ROOM), Instant::now());
        let peer = PeerId::random();
        ledger.on_entries(peer, Scope::Changes, &wants(0..4));
        ledger.next_turn(now).unwrap();
        let answered = Answered {
            given: vec![cid(0)],
            left: vec![cid(1), cid(2), cid(3)],
            ..Answered::default()
        };
        ledger.on_answered(now, peer, &answered, None);
        assert_eq!(ledger.next_turn(now).unwrap().entries, wants(1..4));
    }

    #[test]
    fn cancelled_wants_are_not_answered() {
        let (mut ledger, now) = (Ledger::new(ROOM), Instant::now());
        let peer = PeerId::random();
        ledger.on_entries(peer, Scope::Changes, &wants(0..2));
        ledger.on_entries(peer, Scope::Changes, &[Entry::cancel(cid(0))]);
        assert_eq!(ledger.next_turn(now).unwrap().entries, wants(1..2));
        ledger.on_gone(&peer);
        assert!(!ledger.has_wants(&peer));
    }

    /// Peers that want much and read nothing, as many as there is room for, each with two replies being written.
    fn with_silent(count: u32) -> (Ledger, Instant, Vec<PeerId>) {
        let (mut ledger, now) = (Ledger::new(count as usize * 2 * MAX_REPLY), Instant::now());
        let silent: Vec<PeerId> = (0..count).map(|_| PeerId::random()).collect();
        for _ in 0..2 {
            for peer in &silent {
                ledger.on_entries(*peer, Scope::Changes, &wants(0..1000));
            }
            while let Some(turn) = ledger.next_turn(now) {
                let answered = Answered {
                    left: turn.entries.iter().map(|entry| entry.cid).collect(),
                    ..Answered::default()
                };
                ledger.on_answered(now, turn.peer, &answered, Some(MAX_REPLY));
            }
        }
        (ledger, now, silent)
    }

    #[test]
    fn who_has_no_reply_yet_gets_one_however_many_do_not_read() {
        let (mut ledger, now, _) = with_silent(64);
        let honest = PeerId::random();
        ledger.on_entries(honest, Scope::Changes, &wants(0..10));
        assert_eq!(ledger.next_turn(now).unwrap().peer, honest);
        assert!(ledger.bytes_under_way() <= ledger.room);
    }

    #[test]
    fn when_all_room_is_taken_the_quietest_gives_way() {
        let (mut ledger, now, silent) = with_silent(8);
        let more: Vec<PeerId> = (0..8).map(|_| PeerId::random()).collect();
        for peer in &more {
            ledger.on_entries(*peer, Scope::Changes, &wants(0..10));
        }
        while let Some(turn) = ledger.next_turn(now) {
            assert!(more.contains(&turn.peer));
        }
        assert_eq!(ledger.drop_quietest(now), None, "they may be about to read");
        let later = now + QUIET;
        silent[1..]
            .iter()
            .for_each(|peer| ledger.on_taken(later, peer, 1));
        assert_eq!(ledger.drop_quietest(later), Some(silent[0]));
        assert!(more.contains(&ledger.next_turn(later).unwrap().peer));
        assert_eq!(
            ledger.drop_quietest(later),
            None,
            "there is room, or nobody quiet"
        );
        assert!(ledger.accounts[&silent[0]].rests(later));
        assert!(ledger.bytes_under_way() <= ledger.room);
    }

    #[test]
    fn a_peer_that_did_not_read_waits_for_its_next_turn() {
        let (mut ledger, now, silent) = with_silent(1);
        ledger.on_lost(now, silent[0]);
        ledger.on_lost(now, silent[0]);
        assert_eq!(ledger.next_turn(now), None);
        assert!(ledger.next_turn(now + REST).is_some());
    }
}
