//! Virtual time: what is on its way, by arrival, and the machines' deadlines.

use super::links::Wave;
use crate::{member, orchestrator, time};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// Microseconds: a segment of a thousandth of the vector takes less than a millisecond.
pub(super) type Micros = u64;

/// Something that will happen.
#[derive(Debug)]
pub(super) enum Due {
    Member(u32, Box<member::Event>),
    Orchestrator(Box<orchestrator::Event>),
    /// A gossiped message, at the next of its readers.
    Gossip(Box<Wave>),
    /// A member's machine stops, without a word.
    Lost(u32),
    /// Its connections are found dead.
    Noticed(u32),
    Revive(u32),
}

#[derive(Debug)]
struct Item {
    at: Micros,
    serial: u64,
    due: Due,
}

impl PartialEq for Item {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.serial) == (other.at, other.serial)
    }
}

impl Eq for Item {}

impl PartialOrd for Item {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Item {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.serial).cmp(&(other.at, other.serial))
    }
}

/// What happens next.
#[derive(Debug)]
pub(super) enum Next {
    Due(Due),
    /// A machine's deadline has come.
    Tick(u32),
}

/// The clock. Machines are numbered; the orchestrator's number is the members' count.
#[derive(Debug)]
pub(super) struct Clock {
    now: Micros,
    queue: BinaryHeap<Reverse<Item>>,
    serial: u64,
    deadlines: BTreeSet<(Micros, u32)>,
    deadline_of: Vec<Option<Micros>>,
}

impl Clock {
    pub(super) fn new(machines: usize) -> Self {
        Self {
            now: 0,
            queue: BinaryHeap::new(),
            serial: 0,
            deadlines: BTreeSet::new(),
            deadline_of: vec![None; machines],
        }
    }

    pub(super) fn now(&self) -> Micros {
        self.now
    }

    /// As the machines see it.
    pub(super) fn time(&self) -> time::Time {
        time::Time(self.now / 1000)
    }

    pub(super) fn push_in(&mut self, wait: Micros, due: Due) {
        self.push_at(self.now.saturating_add(wait), due);
    }

    pub(super) fn push_at(&mut self, at: Micros, due: Due) {
        self.serial += 1;
        self.queue.push(Reverse(Item {
            at: at.max(self.now),
            serial: self.serial,
            due,
        }));
    }

    /// What happens next, no later than `limit`; what is on its way comes before a deadline of the same moment.
    pub(super) fn next(&mut self, limit: Micros) -> Option<Next> {
        let queued = self.queue.peek().map(|Reverse(item)| item.at);
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        let at = match (queued, deadline) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b)?,
        };
        if at > limit {
            return None;
        }
        self.now = self.now.max(at);
        if queued == Some(at) {
            return self.queue.pop().map(|Reverse(item)| Next::Due(item.due));
        }
        let (_, machine) = self.deadlines.pop_first()?;
        self.forget(machine);
        Some(Next::Tick(machine))
    }

    fn forget(&mut self, machine: u32) {
        if let Some(slot) = self.deadline_of.get_mut(machine as usize) {
            *slot = None;
        }
    }

    /// Notes a machine's deadline. One that stays in the past after a tick would stop the clock: it moves on by a
    /// millisecond.
    pub(super) fn set_deadline(&mut self, machine: u32, deadline: Option<time::Deadline>, after: After) {
        let least = match after {
            After::Event => self.now,
            After::Tick => self.now + 1000,
        };
        let at = deadline.map(|(t, _)| t.0.saturating_mul(1000).max(least));
        let Some(slot) = self.deadline_of.get_mut(machine as usize) else {
            return;
        };
        if *slot == at {
            return;
        }
        if let Some(old) = slot.take() {
            self.deadlines.remove(&(old, machine));
        }
        if let Some(at) = at {
            *slot = Some(at);
            self.deadlines.insert((at, machine));
        }
    }
}

/// What a machine has just handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Event,
    Tick,
}
