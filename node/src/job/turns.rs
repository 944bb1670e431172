//! Whose turn it is: a node has one trainer, with one job's model in it. Other jobs wait until that job is over or needs
//! it no longer, so that nobody stops a running job by announcing another.

use gym_protocol::ids::CidBytes;
use gym_protocol::time::Time;
use std::collections::BTreeMap;

/// How long a job that has called this node to no round keeps the trainer while others wait, in milliseconds from when its
/// model last came closer.
const PATIENCE_MS: u64 = 120_000;
/// The longest that a job keeps it between two rosters that call this node.
const MAX_ROUND_MS: u64 = 24 * 3_600_000;

/// Who asked for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This node: it goes first and keeps its turn until it is over.
    Me,
    /// Somebody else.
    Other,
}

/// A job that needs the trainer.
#[derive(Clone, Debug)]
struct Candidate {
    owner: Owner,
    /// The order of announcement.
    number: u64,
    /// Turns it has had.
    turns: u64,
}

/// The job that has the trainer.
#[derive(Clone, Debug)]
struct Current {
    job: CidBytes,
    /// When it last needed it.
    used: Time,
    /// How long after that it still does, in milliseconds.
    grace: u64,
    /// Whether a round of it has called this node.
    called: bool,
}

/// What changes hands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) from: Option<CidBytes>,
    pub(crate) to: Option<CidBytes>,
}

/// The jobs that need this node's trainer, and the one that has it.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    candidates: BTreeMap<CidBytes, Candidate>,
    current: Option<Current>,
    next: u64,
}

impl Turns {
    /// A job needs the trainer.
    pub(crate) fn add(&mut self, job: CidBytes, owner: Owner) {
        let number = self.next;
        self.next += 1;
        self.candidates.entry(job).or_insert(Candidate {
            owner,
            number,
            turns: 0,
        });
    }

    /// It is over, or cannot start here.
    pub(crate) fn remove(&mut self, job: &CidBytes) {
        self.candidates.remove(job);
    }

    /// Whether it is this job's turn.
    pub(crate) fn has(&self, job: &CidBytes) -> bool {
        self.current.as_ref().is_some_and(|c| c.job == *job)
    }

    /// The job whose turn it is.
    pub(crate) fn current(&self) -> Option<&CidBytes> {
        self.current.as_ref().map(|c| &c.job)
    }

    /// The model of the job that has the turn came closer.
    pub(crate) fn came_closer(&mut self, job: &CidBytes, at: Time) {
        if let Some(current) = self.current.as_mut().filter(|c| c.job == *job) {
            current.used = current.used.max(at);
        }
    }

    /// A round of the job that has the turn, of `round_ms` at most, counts on this node.
    pub(crate) fn called(&mut self, job: &CidBytes, now: Time, round_ms: u64) {
        if let Some(current) = self.current.as_mut().filter(|c| c.job == *job) {
            current.used = now;
            current.called = true;
            current.grace = round_ms.clamp(PATIENCE_MS, MAX_ROUND_MS);
        }
    }

    /// Gives the trainer to the next job where the one that has it needs it no longer. To be asked often.
    pub(crate) fn turn(&mut self, now: Time) -> Option<Change> {
        let next = self.first_waiting();
        let from = match &self.current {
            None => None,
            Some(current) => {
                let next_owner = next.as_ref().map(|job| self.candidates[job].owner);
                if self.needs(current, now, next_owner) {
                    return None;
                }
                Some(current.job.clone())
            }
        };
        if from.is_none() && next.is_none() {
            return None;
        }
        self.current = next.clone().map(|job| Current {
            job,
            used: now,
            grace: PATIENCE_MS,
            called: false,
        });
        if let Some(candidate) = next.as_ref().and_then(|job| self.candidates.get_mut(job)) {
            candidate.turns += 1;
        }
        Some(Change { from, to: next })
    }

    /// Whether a job keeps the trainer, `next` being who waits first.
    fn needs(&self, current: &Current, now: Time, next: Option<Owner>) -> bool {
        match (self.candidates.get(&current.job), next) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(c), _) if c.owner == Owner::Me => true,
            (Some(_), Some(Owner::Me)) if !current.called => false,
            (Some(_), Some(_)) => now.since(current.used) <= current.grace,
        }
    }

    /// One's own first, then who had the fewest turns, then who was announced first.
    fn first_waiting(&self) -> Option<CidBytes> {
        let waiting = self.candidates.iter().filter(|(job, _)| !self.has(job));
        waiting
            .min_by_key(|(_, c)| (c.owner != Owner::Me, c.turns, c.number))
            .map(|(job, _)| job.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(n: u8) -> CidBytes {
        CidBytes::new(vec![n; 36]).unwrap()
    }

    fn to(n: u8) -> Option<Change> {
        Some(Change {
            from: None,
            to: Some(job(n)),
        })
    }

    fn change(from: u8, to: Option<u8>) -> Option<Change> {
        Some(Change {
            from: Some(job(from)),
            to: to.map(job),
        })
    }

    #[test]
    fn a_running_job_is_left_alone_however_many_wait() {
        let mut turns = Turns::default();
        turns.add(job(1), Owner::Other);
        assert_eq!(turns.turn(Time(0)), to(1));
        for n in 2..100 {
            turns.add(job(n), Owner::Other);
        }
        let mut now = 0;
        for _ in 0..100 {
            turns.called(&job(1), Time(now), 600_000);
            now += 600_000;
            assert_eq!(turns.turn(Time(now)), None);
        }
        // Its orchestrator has gone: the next in line.
        assert_eq!(turns.turn(Time(now + 1)), change(1, Some(2)));
    }

    #[test]
    fn a_job_that_calls_nobody_gives_way_when_others_wait() {
        let mut turns = Turns::default();
        turns.add(job(1), Owner::Other);
        turns.turn(Time(0));
        assert_eq!(turns.turn(Time(u64::MAX)), None, "nobody waits");
        let mut turns = Turns::default();
        (1..4).for_each(|n| turns.add(job(n), Owner::Other));
        assert_eq!(turns.turn(Time(0)), to(1));
        // A large model that comes is waited for.
        turns.came_closer(&job(1), Time(100_000));
        turns.came_closer(&job(2), Time(100_000));
        assert_eq!(turns.turn(Time(220_000)), None);
        assert_eq!(turns.turn(Time(220_001)), change(1, Some(2)));
        assert_eq!(turns.turn(Time(340_002)), change(2, Some(3)));
        // All have had one: the first again.
        assert_eq!(turns.turn(Time(460_003)), change(3, Some(1)));
    }

    #[test]
    fn what_is_over_makes_room_at_once() {
        let mut turns = Turns::default();
        (1..3).for_each(|n| turns.add(job(n), Owner::Other));
        turns.turn(Time(0));
        turns.called(&job(1), Time(0), u64::MAX);
        turns.remove(&job(1));
        assert_eq!(turns.turn(Time(1)), change(1, Some(2)));
        turns.remove(&job(2));
        assert_eq!(turns.turn(Time(2)), change(2, None));
        assert_eq!(turns.turn(Time(3)), None);
    }

    #[test]
    fn ones_own_job_goes_first_and_stays() {
        let mut turns = Turns::default();
        turns.add(job(1), Owner::Other);
        turns.turn(Time(0));
        turns.add(job(2), Owner::Other);
        turns.add(job(3), Owner::Me);
        assert_eq!(turns.turn(Time(1)), change(1, Some(3)));
        assert_eq!(turns.turn(Time(u64::MAX)), None);
        // A round that counts on this node is not left for it.
        let mut turns = Turns::default();
        turns.add(job(1), Owner::Other);
        turns.turn(Time(0));
        turns.called(&job(1), Time(0), 1_000_000);
        turns.add(job(3), Owner::Me);
        assert_eq!(turns.turn(Time(1_000_000)), None);
        assert_eq!(turns.turn(Time(1_000_001)), change(1, Some(3)));
    }

    #[test]
    fn no_round_is_longer_than_a_day() {
        let mut turns = Turns::default();
        (1..3).for_each(|n| turns.add(job(n), Owner::Other));
        turns.turn(Time(0));
        turns.called(&job(1), Time(0), u64::MAX);
        assert_eq!(turns.turn(Time(MAX_ROUND_MS)), None);
        assert_eq!(turns.turn(Time(MAX_ROUND_MS + 1)), change(1, Some(2)));
    }
}
