//! From one round to the next: who is called, what is tried again, when the job is over.

use super::commit::Commits;
use super::{Action, Orchestrator, Phase, RoundFacts};
use crate::cbor;
use crate::ids::{PeerBytes, Round};
use crate::message::{Body, Roster, RosterMember, Standing, Status};
use crate::time::Time;

/// Rounds in which two members complained of a third before it is not called again.
pub(super) const STRIKES: u32 = 2;
/// Tries at one round before the job fails.
const MAX_ATTEMPTS: u32 = 10;

impl Orchestrator {
    /// Starts a round when enough members are ready: all that may join at once, or the least after the recruiting time.
    pub(super) fn recruit(&mut self, now: Time, out: &mut Vec<Action>) {
        let schedule = &self.config.spec.schedule;
        let (min, max) = (schedule.min_workers as usize, schedule.max_workers as usize);
        let members = self.callable();
        if members.len() < min {
            if matches!(self.phase, Phase::Recruiting { .. }) {
                self.phase = Phase::Recruiting { enough_at: None };
            }
            return;
        }
        let enough_at = match &self.phase {
            Phase::Recruiting { enough_at: Some(at) } => *at,
            Phase::Recruiting { enough_at: None } => now.plus(schedule.deadlines.recruit_ms),
            Phase::Preparing
            | Phase::Training(_)
            | Phase::Collecting(..)
            | Phase::Reducing(_)
            | Phase::Paused
            | Phase::Finished => now,
        };
        if members.len() >= max || now >= enough_at {
            self.start_round(now, members, out);
        } else {
            self.phase = Phase::Recruiting {
                enough_at: Some(enough_at),
            };
        }
    }

    fn start_round(&mut self, now: Time, members: Vec<RosterMember>, out: &mut Vec<Action>) {
        self.fix_rounds(members.len());
        let roster = Roster {
            job: self.config.job.clone(),
            round: Round(self.held.closed),
            attempt: self.attempt,
            members,
            parent: self.held.state,
            checkpoint: self.held.checkpoint.clone(),
        };
        // Bodies of this crate encode; should one not, the job fails by its deadline.
        let hash = cbor::to_dag(&roster)
            .map(|b| cbor::object_hash(&b))
            .unwrap_or_default();
        out.push(Action::Notice(format!(
            "round {} starts with {} members",
            roster.round,
            roster.members.len()
        )));
        out.push(Action::Publish(Body::Roster(roster.clone())));
        self.candidates.called(now);
        self.phase = Phase::Training(Commits::new(RoundFacts {
            roster,
            hash,
            started: now,
        }));
    }

    /// ⌈epochs·questions / (workers·interval·prompts per step)⌉, once the first roster is known.
    fn fix_rounds(&mut self, members: usize) {
        let spec = &self.config.spec;
        if self.rounds.is_some() || spec.schedule.rounds.is_some() {
            return;
        }
        let Some(epochs) = spec.schedule.epochs else {
            return;
        };
        let a_round = members as f64
            * f64::from(spec.schedule.aggregate_interval)
            * f64::from(spec.gspo.prompts_per_step);
        self.rounds = Some((epochs * self.config.rows as f64 / a_round).ceil().max(1.0) as u64);
    }

    /// The next round, the same round again, a pause, or the end.
    pub(super) fn next_round(&mut self, now: Time, out: &mut Vec<Action>) {
        if self.rounds().is_some_and(|r| self.held.closed >= r) {
            self.finish(Standing::Done, "all rounds are closed", out);
            return;
        }
        let members = self.callable();
        if members.len() >= self.config.spec.schedule.min_workers as usize {
            self.start_round(now, members, out);
            return;
        }
        let why = format!(
            "{} members ready where the job needs {}",
            members.len(),
            self.config.spec.schedule.min_workers
        );
        out.push(Action::Notice(format!("paused: {why}")));
        out.push(self.status(0, &why));
        self.phase = Phase::Paused;
    }

    /// Nobody's work can be summed, or no quorum closed the round: it is tried again from the same state.
    pub(super) fn void_round(&mut self, now: Time, why: &str, out: &mut Vec<Action>) {
        self.attempt += 1;
        if let Phase::Reducing(r) = &self.phase {
            self.resting.extend(r.misbehaved.iter().cloned());
        }
        out.push(Action::Notice(format!(
            "round {} is void: {why}; attempt {}",
            self.held.closed, self.attempt
        )));
        if self.attempt >= MAX_ATTEMPTS {
            let why = format!(
                "round {} was tried {MAX_ATTEMPTS} times; the last time: {why}",
                self.held.closed
            );
            self.finish(Standing::Failed, &why, out);
        } else {
            self.next_round(now, out);
        }
    }

    pub(super) fn strike(&mut self, peer: &PeerBytes, out: &mut Vec<Action>) {
        let strikes = self.strikes.entry(peer.clone()).or_default();
        *strikes += 1;
        if *strikes == STRIKES {
            out.push(Action::Notice(format!(
                "{peer} misbehaved in {STRIKES} rounds and is not called again"
            )));
        }
    }

    pub(super) fn finish(&mut self, standing: Standing, why: &str, out: &mut Vec<Action>) {
        let number = match standing {
            Standing::Paused => 0,
            Standing::Done => 1,
            Standing::Cancelled => 2,
            Standing::Failed => 3,
        };
        out.push(self.status(number, why));
        out.push(Action::Finished(standing));
        self.phase = Phase::Finished;
    }

    fn status(&self, standing: u8, why: &str) -> Action {
        Action::Publish(Body::Status(Status {
            job: self.config.job.clone(),
            closed: self.held.closed,
            standing,
            why: why.chars().take(500).collect(),
        }))
    }
}
