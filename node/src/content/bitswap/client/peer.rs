//! What is known of one peer that may be asked.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use cid::Cid;

use super::window::Window;
use crate::content::bitswap::{Config, MAX_WANTS};

/// Blocks that were asked of a peer and may still arrive after the want is gone.
const MEMORY: usize = 4096;
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
    /// It can; how full its window is, in thousandths.
    Ready(u64),
    /// Soon: its window is full, or it is being dialled.
    Busy,
    No,
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
    progress: Instant,
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
            progress: now,
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
            Link::Connected => Readiness::Ready(self.asked_bytes * 1000 / self.window.bytes()),
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
        }
        self.forget(&cid);
        let size = self.window.expect(size);
        self.asked.insert(cid, Request { since: now, size });
        self.asked_bytes += size;
        self.letter_bytes += size;
        self.seen.insert(cid);
    }

    pub(super) fn probe(&mut self, cid: Cid) {
        self.probed.insert(cid);
        self.seen.insert(cid);
    }

    /// Takes note of a block; says whether it had been asked for at some time.
    pub(super) fn on_block(&mut self, now: Instant, cid: &Cid, size: u64) -> Asked {
        self.on_progress(now);
        self.failures = 0;
        match self.forget(cid) {
            Some(request) => {
                let delay = now.saturating_duration_since(request.since);
                self.window.on_block(now, size, delay);
                Asked::Yes
            }
            None if self.seen.contains(cid) => Asked::Yes,
            None => Asked::Never,
        }
    }

    pub(super) fn on_progress(&mut self, now: Instant) {
        self.progress = now;
    }

    /// When the peer counts as stalled, if it was asked for anything.
    pub(super) fn stalls_at(&self, config: &Config) -> Option<Instant> {
        (!self.asked.is_empty()).then(|| self.progress + config.stall)
    }

    /// Leaves the peer alone for a while, longer each time in a row.
    pub(super) fn rest(&mut self, now: Instant, config: &Config) {
        let doubled = config.rest * 2_u32.pow(self.failures.min(MAX_DOUBLINGS));
        self.failures += 1;
        self.rests_until = Some(now + doubled);
        self.window.shrink();
    }

    pub(super) fn ban(&mut self, now: Instant, config: &Config) {
        self.banned_until = Some(now + config.ban);
    }

    pub(super) fn is_banned(&self, now: Instant) -> bool {
        self.banned_until.is_some_and(|until| now < until)
    }

    /// Whether it was ever banned; bans are remembered past their end, which is simpler and costs little.
    pub(super) fn has_ban(&self) -> bool {
        self.banned_until.is_some()
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

/// The last blocks that were asked for.
#[derive(Debug, Default)]
struct Seen {
    order: VecDeque<Cid>,
    set: BTreeSet<Cid>,
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
        }
    }

    fn contains(&self, cid: &Cid) -> bool {
        self.set.contains(cid)
    }
}
