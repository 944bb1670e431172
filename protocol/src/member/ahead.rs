//! Messages that name a roster not seen yet: kept until it is here, within bounds for each signer.

use crate::ids::PeerBytes;
use crate::message::{Roster, Verified};
use std::collections::{BTreeMap, BTreeSet};

/// Kept of the orchestrator: the latest.
const OF_ORCHESTRATOR: usize = 32;
/// Kept of anyone else: a commitment, and receipts and reveals for whom it holds replicas.
const OF_ONE: usize = 8;
/// Signers whom no roster has named yet, of whom some are kept: before the first roster that is everyone.
const STRANGERS: usize = 128;

/// Who has signed a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signer {
    Orchestrator,
    Other,
}

/// The messages kept.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    of_orchestrator: Vec<Verified>,
    of: BTreeMap<PeerBytes, Vec<Verified>>,
    /// Round and attempt of the latest roster, and its members: of them, all are kept.
    called: Option<(u64, u32)>,
    members: BTreeSet<PeerBytes>,
    /// The latest round that the orchestrator has named.
    latest: u64,
}

impl Ahead {
    /// The orchestrator has named a round.
    pub(super) fn hear_of(&mut self, round: u64) {
        self.latest = self.latest.max(round);
    }

    /// The orchestrator has called members. A roster that comes after a later one says nothing of who is called now.
    pub(super) fn hear_roster(&mut self, roster: &Roster) {
        self.hear_of(roster.round.0);
        let named = Some((roster.round.0, roster.attempt));
        if named < self.called {
            return;
        }
        self.called = named;
        self.members = roster.members.iter().map(|m| m.peer.clone()).collect();
    }

    /// Keeps a message whose round is `at`, where this member is, or later: of others than the orchestrator only what may
    /// still be of use next.
    pub(super) fn keep(&mut self, at: u64, m: Verified, signer: Signer) {
        let Some(round) = m.body.round().filter(|round| *round >= at) else {
            return;
        };
        if signer == Signer::Orchestrator {
            keep_latest(&mut self.of_orchestrator, m, OF_ORCHESTRATOR);
            return;
        }
        if round > self.latest.max(at).saturating_add(1) {
            return;
        }
        if !self.of.contains_key(&m.sender) && !self.members.contains(&m.sender) && !self.has_room(at) {
            return;
        }
        let of = self.of.entry(m.sender.clone()).or_default();
        keep_latest(of, m, OF_ONE);
    }

    /// Whether one more stranger is kept. Those whose messages are of no use any more make room.
    fn has_room(&mut self, at: u64) -> bool {
        let strangers = |ahead: &Self| {
            let of = ahead.of.keys();
            of.filter(|signer| !ahead.members.contains(*signer)).count()
        };
        if strangers(self) < STRANGERS {
            return true;
        }
        let now = self.latest.max(at);
        self.of.retain(|_, of| {
            of.retain(|m| m.body.round() >= Some(now));
            !of.is_empty()
        });
        strangers(self) < STRANGERS
    }

    /// Everything: the orchestrator's first, as others' messages mean little before its.
    pub(super) fn take(&mut self) -> Vec<Verified> {
        let mut all = std::mem::take(&mut self.of_orchestrator);
        all.extend(std::mem::take(&mut self.of).into_values().flatten());
        all
    }
}

/// Adds what is new; above `most` what is of the earliest round goes.
fn keep_latest(kept: &mut Vec<Verified>, m: Verified, most: usize) {
    if kept.contains(&m) {
        return;
    }
    kept.push(m);
    if kept.len() > most {
        let earliest = (0..kept.len()).min_by_key(|i| kept.get(*i).map(|m| m.body.round()));
        earliest.map(|i| kept.remove(i));
    }
}
