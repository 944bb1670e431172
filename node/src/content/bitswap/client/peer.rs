//! What is known of one peer that may be asked.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use cid::Cid;

use super::outpaced::Lately;
use super::window::Window;
use crate::content::bitswap::{Config, MAX_WANTS};
use crate::content::block::MAX_BLOCK;

/// Blocks that were asked of a peer and may still arrive after the want is gone.
const MEMORY: usize = 4096;
/// Small blocks that a peer must be able to look up in the time that counts as a stall.
const PER_TURN: usize = 64;
/// Bytes of a message under way that count as a sign of life.
pub(in crate::content::bitswap) const PROGRESS: u64 = 64 << 10;
/// Bytes asked for in one letter. Helia sends nothing at all when more than its largest message, 4 MiB, is asked of it
/// at once.
const LETTER: u64 = 2 << 20;
/// A dial that has not been answered in this time no longer holds back other ways.
const DIAL_PATIENCE: Duration = Duration::from_secs(2);
/// A dial of which nothing was heard is forgotten.
const DIAL_LIMIT: Duration = Duration::from_secs(60);
const MAX_DOUBLINGS: u32 = 4;

/// How we are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    Away,
    Dialing(Instant),
    Connected,
    /// Connected, but it does not speak bitswap.
    Mute,
}

/// Whether a peer can be asked now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readiness {
    Ready(Rank),
    /// Soon: its window is full, or it is being dialled.
    Busy,
    No,
}

/// The place of one that can be asked: the least is asked first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// Times in a row that it stalled or could not be reached.
    failures: u32,
    /// How full its window is, in thousandths.
    load: u64,
}

/// One peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) link: Link,
    /// Blocks asked for.
    asked: BTreeMap<Cid, Request>,
    /// Bytes that they are expected to have.
    asked_bytes: u64,
    /// Of these, bytes that the next letter asks for.
    letter_bytes: u64,
    /// Blocks of which only the presence was asked.
    probed: BTreeSet<Cid>,
    window: Window,
    lately: Lately,
    /// The last answer to what it was asked, or bytes that may become one.
    progress: Instant,
    /// How long it had answered nothing when what it was asked was taken back without its fault.
    spent: Duration,
    /// Bytes since the last answer. More than was asked for are none.
    unanswered: u64,
    failures: u32,
    rests_until: Option<Instant>,
    banned_until: Option<Instant>,
    seen: Seen,
}

/// A block that was asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    since: Instant,
    /// Bytes it is expected to have.
    size: u64,
    /// How often a peer may take the time that counts as a stall until it has answered what was asked before, and this.
    turns: u32,
}

/// How much is lost with a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// It stalled, cannot be reached, does not speak bitswap or broke the protocol.
    Lost,
    /// Not connected yet.
    Away,
    /// It does not have what is wanted.
    Refused,
    Connected,
}

impl Peer {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            link: Link::Away,
            asked: BTreeMap::new(),
            asked_bytes: 0,
            letter_bytes: 0,
            probed: BTreeSet::new(),
            window: Window::new(now),
            lately: Lately::new(now),
            progress: now,
            spent: Duration::ZERO,
            unanswered: 0,
            failures: 0,
            rests_until: None,
            banned_until: None,
            seen: Seen::default(),
        }
    }

    pub(super) fn readiness(&self, now: Instant) -> Readiness {
        if self.is_out(now) {
            return Readiness::No;
        }
        match self.link {
            Link::Dialing(since) if now < since + DIAL_PATIENCE => Readiness::Busy,
            Link::Away | Link::Mute | Link::Dialing(_) => Readiness::No,
            Link::Connected if self.is_full() => Readiness::Busy,
            Link::Connected => Readiness::Ready(Rank {
                failures: self.failures,
                load: self.asked_bytes * 1000 / self.window.bytes(),
            }),
        }
    }

    /// Its place among those that can be asked, if it can be now.
    pub(super) fn rank(&self, now: Instant) -> Option<Rank> {
        match self.readiness(now) {
            Readiness::Ready(rank) => Some(rank),
            Readiness::Busy | Readiness::No => None,
        }
    }

    /// Whether it can be asked and has nothing to do.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.asked.is_empty() && self.rank(now).is_some()
    }

    pub(super) fn standing(&self, now: Instant) -> Standing {
        match self.link {
            Link::Mute => Standing::Lost,
            _ if self.is_out(now) => Standing::Lost,
            Link::Away if self.failures > 0 => Standing::Lost,
            Link::Away | Link::Dialing(_) => Standing::Away,
            Link::Connected => Standing::Connected,
        }
    }

    fn is_full(&self) -> bool {
        self.asked_bytes >= self.window.bytes()
            || self.asked.len() >= MAX_WANTS
            || self.letter_bytes >= LETTER
    }

    /// A new letter begins.
    pub(super) fn begin_letter(&mut self) {
        self.letter_bytes = 0;
    }

    /// Whether an answer of its is still expected.
    pub(super) fn owes_us(&self) -> bool {
        !self.asked.is_empty() || !self.probed.is_empty()
    }

    /// Whether blocks of its are still expected.
    pub(super) fn owes_blocks(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Whether the peer may be asked for the presence of one more block.
    pub(super) fn takes_probe(&self, now: Instant) -> bool {
        self.link == Link::Connected && !self.is_out(now) && self.asked.len() + self.probed.len() < MAX_WANTS
    }

    pub(super) fn takes_dial(&self, now: Instant) -> bool {
        let idle = match self.link {
            Link::Away => true,
            Link::Dialing(since) => now >= since + DIAL_LIMIT,
            Link::Connected | Link::Mute => false,
        };
        idle && !self.is_out(now)
    }

    /// Asks for a block of about `size` bytes, as far as that is known.
    pub(super) fn ask(&mut self, now: Instant, cid: Cid, size: Option<u64>) {
        if self.asked.is_empty() {
            self.progress = now;
            self.window.begin(now);
            self.lately = Lately::new(now);
        }
        self.forget(&cid);
        let size = self.window.expect(size);
        self.asked_bytes += size;
        let turns = 2 + (self.asked_bytes / PROGRESS) as u32 + (self.asked.len() / PER_TURN) as u32;
        let since = now;
        self.asked.insert(cid, Request { since, size, turns });
        self.letter_bytes += size;
        self.seen.insert(cid);
    }

    pub(super) fn probe(&mut self, cid: Cid) {
        self.probed.insert(cid);
        self.seen.insert(cid);
    }

    /// Takes note of a block; says whether it had been asked for at some time.
    pub(super) fn on_block(&mut self, now: Instant, cid: &Cid, size: u64) -> Asked {
        self.lately.on_block(size);
        match self.forget(cid) {
            Some(request) => {
                let delay = now.saturating_duration_since(request.since);
                self.window.on_block(now, size, delay);
                self.on_answer(now);
                Asked::Yes
            }
            None => self.seen.recall(cid),
        }
    }

    pub(super) fn is_asked(&self, cid: &Cid) -> bool {
        self.asked.contains_key(cid)
    }

    /// It answered what it was asked.
    pub(super) fn on_answer(&mut self, now: Instant) {
        self.progress = now;
        self.spent = Duration::ZERO;
        self.unanswered = 0;
        self.failures = 0;
    }

    /// [`PROGRESS`] bytes of a message have come. They may be of the answer, as long as they are not more than that has.
    pub(super) fn on_bytes(&mut self, now: Instant) {
        self.lately.on_bytes(PROGRESS);
        self.unanswered += PROGRESS;
        if self.unanswered <= self.asked_bytes.max(MAX_BLOCK as u64) {
            self.progress = now;
            self.spent = Duration::ZERO;
        }
    }

    /// What it was asked is about to be taken back without its fault: when it is asked again it has the rest of its time.
    pub(super) fn pause(&mut self, now: Instant) {
        if !self.asked.is_empty() {
            self.spent += now.saturating_duration_since(self.progress);
            self.progress = now;
        }
    }

    /// When the peer counts as stalled, if it was asked for anything.
    pub(super) fn stalls_at(&self, config: &Config) -> Option<Instant> {
        (!self.asked.is_empty()).then(|| self.progress + config.stall.saturating_sub(self.spent))
    }

    /// What it was asked so long ago that it would have come at the slowest rate that counts as one.
    pub(super) fn overdue(&self, now: Instant, config: &Config) -> Vec<Cid> {
        self.asked
            .iter()
            .filter(|(_, request)| now >= request.since + config.stall * request.turns)
            .map(|(cid, _)| *cid)
            .collect()
    }

    /// Bytes a second of the last `time`, once in each.
    pub(super) fn rate_after(&mut self, now: Instant, time: Duration) -> Option<f64> {
        self.lately.rate_after(now, time)
    }

    /// Bytes a second that it has shown, if it is there and nothing has been wrong with it since.
    pub(super) fn proven_rate(&self, now: Instant) -> Option<f64> {
        let is_fine = self.link == Link::Connected && self.failures == 0 && !self.is_out(now);
        is_fine.then(|| self.window.rate())
    }

    /// What it was asked at least `age` ago, and when.
    pub(super) fn asked_before(&self, now: Instant, age: Duration) -> impl Iterator<Item = (Instant, Cid)> {
        self.asked
            .iter()
            .filter(move |(_, request)| now >= request.since + age)
            .map(|(cid, request)| (request.since, *cid))
    }

    /// Another brought a block that it was asked for; if it has kept that for `time`, it has failed.
    pub(super) fn on_overtaken(&mut self, now: Instant, cid: &Cid, time: Duration) {
        let request = self.asked.get(cid);
        if request.is_some_and(|request| now >= request.since + time) {
            self.failures = self.failures.saturating_add(1);
        }
    }

    /// Leaves the peer alone for a while, longer each time in a row.
    pub(super) fn rest(&mut self, now: Instant, config: &Config) {
        let doubled = config.rest * 2_u32.pow(self.failures.min(MAX_DOUBLINGS));
        self.failures += 1;
        self.spent = Duration::ZERO;
        self.rests_until = Some(now + doubled);
        self.window.shrink();
    }

    pub(super) fn ban(&mut self, now: Instant, config: &Config) {
        self.banned_until = Some(now + config.ban);
    }

    pub(super) fn is_banned(&self, now: Instant) -> bool {
        self.banned_until.is_some_and(|until| now < until)
    }

    /// Everything that was asked of it, which it is no longer expected to answer.
    pub(super) fn release(&mut self) -> (Vec<Cid>, Vec<Cid>) {
        self.asked_bytes = 0;
        let asked = std::mem::take(&mut self.asked).into_keys().collect();
        let probed = std::mem::take(&mut self.probed).into_iter().collect();
        (asked, probed)
    }

    /// Nothing more is expected of it about this block.
    pub(super) fn forget(&mut self, cid: &Cid) -> Option<Request> {
        self.probed.remove(cid);
        let request = self.asked.remove(cid)?;
        self.asked_bytes -= request.size;
        Some(request)
    }

    /// The peer answered whether it has the block.
    pub(super) fn forget_probe(&mut self, cid: &Cid) {
        self.probed.remove(cid);
    }

    fn is_out(&self, now: Instant) -> bool {
        self.is_banned(now) || self.rests_until.is_some_and(|until| now < until)
    }
}

/// Whether a block that came had been asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Yes,
    Never,
}

/// The last blocks that were asked for, and how many before them were forgotten: so many strange blocks are no offence.
#[derive(Debug, Default)]
struct Seen {
    order: VecDeque<Cid>,
    set: BTreeSet<Cid>,
    forgotten: usize,
}

impl Seen {
    fn insert(&mut self, cid: Cid) {
        if self.set.insert(cid) {
            self.order.push_back(cid);
        }
        if self.order.len() > MEMORY
            && let Some(oldest) = self.order.pop_front()
        {
            self.set.remove(&oldest);
            self.forgotten = (self.forgotten + 1).min(MEMORY);
        }
    }

    fn recall(&mut self, cid: &Cid) -> Asked {
        if self.set.contains(cid) {
            return Asked::Yes;
        }
        if self.forgotten == 0 {
            return Asked::Never;
        }
        self.forgotten -= 1;
        Asked::Yes
    }
}
