//! Which jobs this node knows, and what happens when its trainer goes from one to another.

use super::active::Active;
use super::service::{Service, now};
use super::turns::Owner;
use crate::role::Role;
use gym_protocol::ids::{CidBytes, PeerBytes};
use gym_protocol::message::{JobBody, Roster};
use gym_protocol::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::task::AbortHandle;

/// Jobs remembered by a node.
pub(crate) const MAX_JOBS: usize = 256;
/// Of these, those of one orchestrator: it runs one at a time.
const MAX_OF_ONE: usize = 32;
/// A job whose orchestrator has said nothing for this long makes room for another, in milliseconds.
const SILENT_MS: u64 = 10 * 60_000;
/// How long a done job keeps the trainer for the evaluation of its last checkpoint, in milliseconds.
const LAST_EVALUATION_MS: u64 = 30 * 60_000;

/// A job's files on their way; dropping it ends the fetch, and what came stays.
#[derive(Debug)]
pub(crate) struct Fetching {
    /// When a block came last.
    pub(crate) came: Arc<AtomicU64>,
    pub(crate) task: AbortHandle,
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The job that makes room for a new one: an earlier one of its orchestrator's where that has its share; else, where all
/// places are taken, one that is over, one whose orchestrator is gone, one of the orchestrator that has the most. `Err`
/// when none does.
fn displaced(
    jobs: &BTreeMap<CidBytes, Active>,
    new: &JobBody,
    is_used: impl Fn(&CidBytes) -> bool,
    now: Time,
) -> Result<Option<CidBytes>, &'static str> {
    let idle = || jobs.values().filter(|j| !is_used(&j.id));
    let of_its = jobs
        .values()
        .filter(|j| j.body.orchestrator == new.orchestrator)
        .count();
    if of_its >= MAX_OF_ONE {
        return idle()
            .filter(|j| j.body.orchestrator == new.orchestrator && j.body.submitted < new.submitted)
            .min_by_key(|j| (j.is_running(), j.body.submitted))
            .map(|j| Some(j.id.clone()))
            .ok_or("its orchestrator has later ones here");
    }
    if jobs.len() < MAX_JOBS {
        return Ok(None);
    }
    let over = idle().filter(|j| !j.is_running()).min_by_key(|j| j.heard);
    let silent = || {
        idle()
            .filter(|j| now.since(j.heard) > SILENT_MS)
            .min_by_key(|j| j.heard)
    };
    let of_the_most = || {
        let mut count: BTreeMap<&PeerBytes, usize> = BTreeMap::new();
        jobs.values()
            .for_each(|j| *count.entry(&j.body.orchestrator).or_default() += 1);
        idle()
            .max_by_key(|j| (count[&j.body.orchestrator], std::cmp::Reverse(j.body.submitted)))
            .filter(|j| count[&j.body.orchestrator] > of_its + 1)
    };
    over.or_else(silent)
        .or_else(of_the_most)
        .map(|j| Some(j.id.clone()))
        .ok_or("this node knows as many as it remembers, and none is over")
}

impl Service {
    /// Makes room for a job that was announced; `false` when there is none.
    pub(crate) fn make_place(&mut self, id: &CidBytes, body: &JobBody) -> bool {
        let me = self.tools.me();
        if body.orchestrator == me && self.jobs.len() < MAX_JOBS {
            return true;
        }
        let is_used = |id: &CidBytes| {
            self.turns.has(id)
                || self
                    .jobs
                    .get(id)
                    .is_some_and(|j| j.is_running() && j.body.orchestrator == me)
        };
        match displaced(&self.jobs, body, is_used, now()) {
            Ok(None) => true,
            Ok(Some(gone)) => {
                tracing::info!(job = %gone, "forgotten, to make room for another");
                self.turns.remove(&gone);
                self.jobs.remove(&gone);
                true
            }
            Err(why) => {
                tracing::warn!(job = %id, "a job is not taken: {why}");
                false
            }
        }
    }

    /// A new job waits for its turn where this node has something to do in it.
    pub(crate) fn queue(&mut self, id: &CidBytes, body: &JobBody) {
        let (roles, mine) = (&self.tools.roles, body.orchestrator == self.tools.me());
        if !(mine || roles.has(Role::Worker) || roles.has(Role::Validator)) {
            return;
        }
        // An orchestrator runs one job at a time: its earlier ones are over, whether or not it said so.
        let age = |id: &CidBytes, body: &JobBody| (body.submitted, id.clone());
        let its = self
            .jobs
            .values()
            .filter(|j| j.body.orchestrator == body.orchestrator);
        let (earlier, later): (Vec<&Active>, Vec<&Active>) = its
            .filter(|j| j.id != *id)
            .partition(|j| age(&j.id, &j.body) < age(id, body));
        if !later.is_empty() {
            return;
        }
        let earlier: Vec<CidBytes> = earlier.into_iter().map(|j| j.id.clone()).collect();
        earlier.iter().for_each(|job| self.turns.remove(job));
        let owner = if mine { Owner::Me } else { Owner::Other };
        self.turns.add(id.clone(), owner);
        self.take_turns();
        if let Some(other) = self.turns.current().filter(|c| *c != id) {
            let text =
                format!("this node works on the job {other}; this one waits until that needs it no longer");
            self.notice(id, &text);
        }
    }

    /// The trainer goes to the next job where the one that has it needs it no longer.
    pub(crate) fn take_turns(&mut self) {
        self.note_progress();
        let Some(change) = self.turns.turn(now()) else {
            return;
        };
        self.tools.keys.unpin();
        if let Some(from) = &change.from {
            self.withdraw(from);
        }
        if let Some(to) = &change.to {
            tracing::info!(job = %to, "this job has the trainer");
            self.fetch_files(to);
        }
    }

    /// What the job that has the turn is at.
    fn note_progress(&mut self) {
        let Some(id) = self.turns.current().cloned() else {
            return;
        };
        let Some(job) = self.jobs.get(&id) else {
            return self.turns.remove(&id);
        };
        if let Some(fetching) = &job.fetching {
            self.turns
                .came_closer(&id, Time(fetching.came.load(Ordering::Relaxed)));
        }
        if job.files.is_some() && job.zero_state.is_none() {
            // The trainer loads it.
            self.turns.came_closer(&id, now());
        }
        if !job.is_running() {
            let evaluates = job.validator.as_ref().is_some_and(|v| v.is_evaluating());
            if !evaluates || now().since(job.heard) > LAST_EVALUATION_MS {
                self.turns.remove(&id);
            }
        }
    }

    /// Its model goes from the trainer; when its turn comes again it begins as after a restart.
    fn withdraw(&mut self, id: &CidBytes) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        job.fetching = None;
        if !job.is_running() {
            return;
        }
        job.abandon_training();
        job.member = None;
        job.validator = None;
        job.files = None;
        job.zero_state = None;
        job.model = None;
        job.tentative = None;
        job.commit = None;
        job.assembly = super::replica::Assembly::default();
        self.notice(
            id,
            "the trainer goes to another job: this one has called this node to no round",
        );
    }

    /// A roster of the job's orchestrator: a round may count on this node.
    pub(crate) fn note_roster(&mut self, id: &CidBytes, roster: &Roster) {
        let me = self.tools.me();
        let counts = self.tools.roles.has(Role::Validator) || roster.members.iter().any(|m| m.peer == me);
        if self.turns.has(id) {
            self.tools.keys.pin(roster);
        }
        let Some(job) = self.jobs.get(id).filter(|_| counts) else {
            return;
        };
        let d = &job.body.spec.schedule.deadlines;
        let phases = [d.recruit_ms, d.train_ms, d.commit_ms, d.ring_cap_ms, d.attest_ms];
        let round_ms = phases.iter().fold(0u64, |sum, ms| sum.saturating_add(*ms));
        self.turns.called(id, now(), round_ms);
    }

    /// A job's orchestrator answered: it is there.
    pub(crate) fn note_heard(&mut self, id: &CidBytes, peer: &PeerBytes) {
        if let Some(job) = self.jobs.get_mut(id)
            && job.body.orchestrator == *peer
        {
            job.heard = now();
        }
    }
}
