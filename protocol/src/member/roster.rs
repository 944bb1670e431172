//! A roster that calls this member, and the state it starts from.

use super::round::{InRound, Step};
use super::times::RingTimes;
use super::{Action, Held, Member, Phase, READY_EVERY_MS, roster_of};
use crate::ids::Hash32;
use crate::message::{Roster, RosterMember};
use crate::time::Time;

impl Member {
    pub(super) fn on_roster(&mut self, now: Time, roster: Roster, hash: Hash32, out: &mut Vec<Action>) {
        self.ahead.hear_roster(&roster);
        let Some(held) = &self.held else { return };
        if roster.round.0 < held.closed {
            return;
        }
        if let Phase::InRound(current) = &self.phase {
            let current = (current.roster.round, current.roster.attempt);
            if (roster.round, roster.attempt) <= current {
                return;
            }
            out.push(Action::AbandonTraining);
        }
        let since = self.first_ready.map_or(u64::MAX, |t| t.0);
        let called = |m: &RosterMember| m.peer == self.config.me && m.ready_at >= since;
        let Some(rank) = roster.members.iter().position(called) else {
            self.phase = Phase::Waiting {
                ready_again: now.plus(READY_EVERY_MS),
            };
            return;
        };
        let synced = roster.parent == held.state;
        let mut round = InRound::new(roster, hash, rank, self.config.me.clone());
        round.times = self.ring_times();
        if synced {
            out.push(round.train());
        } else {
            // A joiner's or latecomer's rounding error belongs to a state that is gone.
            self.residual.clear();
            out.push(Action::Fetch(round.parent()));
        }
        let step = if synced { Step::Training } else { Step::Syncing };
        self.phase = Phase::InRound(Box::new(InRound { step, ..round }));
        self.replay_ahead(now, hash, out);
    }

    /// What was measured of rings, in the round that ends too.
    fn ring_times(&mut self) -> RingTimes {
        if let Phase::InRound(round) = &mut self.phase {
            self.times = std::mem::take(&mut round.times);
        }
        self.times.foresee(&self.said_links);
        self.times.clone()
    }

    fn replay_ahead(&mut self, now: Time, roster: Hash32, out: &mut Vec<Action>) {
        for m in self.ahead.take() {
            self.in_roster(now, roster_of(&m.body).unwrap_or(roster), m, out);
        }
    }

    pub(super) fn on_synced(&mut self, now: Time, held: Held, out: &mut Vec<Action>) {
        self.held = Some(held.clone());
        match &mut self.phase {
            Phase::Preparing | Phase::Waiting { .. } => self.wait(now, out),
            Phase::InRound(round) if matches!(round.step, Step::Syncing) => {
                if round.roster.parent == held.state {
                    round.step = Step::Training;
                    out.push(round.train());
                } else if round.roster.round.0 == held.closed {
                    out.push(Action::Notice(format!(
                        "the checkpoint of round {} has state {} where the roster names {}: sitting out",
                        round.roster.round,
                        held.state.short(),
                        round.roster.parent.short()
                    )));
                    round.step = Step::SittingOut;
                }
                // Otherwise an earlier roster's state came late; this roster's is on its way.
            }
            Phase::InRound(_) | Phase::Finished => {}
        }
    }

    pub(super) fn on_fetch_failed(&mut self, now: Time, why: &str, out: &mut Vec<Action>) {
        out.push(Action::Notice(format!(
            "cannot load the round's state: {why}; waiting for the next roster"
        )));
        if self.held.is_some() {
            self.wait(now, out);
        }
    }
}
