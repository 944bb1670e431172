//! Two workers at once, and one that is slow.

use super::Stage;
use super::assets::JobShape;
use super::lab::{Lab, Plan, unix_ms};
use crate::netlab::Links;
use anyhow::ensure;
use std::time::{Duration, Instant};

/// More than there will be.
const ROUNDS: u64 = 1_000;
const ROUND: u64 = 1;
const TWO: [&str; 2] = ["worker-2", "worker-5"];
const SLOW: &str = "worker-2";
/// Of every second the slow one has a fiftieth.
const AWAKE: Duration = Duration::from_millis(20);
const ASLEEP: Duration = Duration::from_millis(980);

/// Two of seven killed in the ring, with replicas at two members each.
pub(super) fn two_of_seven(stage: &Stage) -> anyhow::Result<()> {
    let job = JobShape {
        wire: "q8",
        workers: 7,
        redundancy: 2,
        ..JobShape::of(ROUNDS)
    };
    let faults = TWO.map(|victim| (victim, "die-at-scatter-reduce-2@1"));
    let Some(mut lab) = start(stage, job, &faults)? else {
        return Ok(());
    };
    let mut at = 0;
    lab.follow_until("both died", |lab| {
        for victim in TWO {
            lab.network.node_mut(victim)?.exited()?;
        }
        at = unix_ms();
        let nodes = lab.network.nodes();
        let gone = nodes.iter().filter(|n| n.pid().is_none()).count();
        Ok(gone == TWO.len())
    })?;
    lab.follow_until("the round closed", |lab| Ok(lab.has_closed(ROUND)))?;
    for victim in TWO {
        let recovery = lab.measure(stage, &format!("{victim} and another"), at, ROUND, victim)?;
        ensure!(
            recovery.summed,
            "{victim}'s delta is not in the sum: {:?}",
            lab.closed(ROUND)?
        );
    }
    for victim in TWO {
        let victim = lab.network.node_mut(victim)?;
        victim.set_faults(&[]);
        victim.start()?;
        victim.wait_ready()?;
    }
    all_back(&mut lab)
}

/// One that has a fiftieth of its time, from when it commits until the round is closed.
pub(super) fn slow(stage: &Stage) -> anyhow::Result<()> {
    let job = JobShape {
        wire: "q8",
        ..JobShape::of(ROUNDS)
    };
    let Some(mut lab) = start(stage, job, &[])? else {
        return Ok(());
    };
    lab.follow_until("it is in the ring", |lab| {
        Ok(lab.has_told(SLOW, "worker", "reducing", ROUND))
    })?;
    let at = unix_ms();
    let mut duty = Duty::asleep(&lab)?;
    lab.follow_until("the round closed", |lab| {
        duty.turn(lab)?;
        Ok(lab.has_closed(ROUND))
    })?;
    lab.network.node(SLOW)?.resume()?;
    let recovery = lab.measure(stage, "slowed 50 times", at, ROUND, SLOW)?;
    ensure!(
        recovery.summed,
        "its delta is not in the sum: {:?}",
        lab.closed(ROUND)?
    );
    all_back(&mut lab)
}

/// When the slow one is woken or stopped next.
struct Duty {
    asleep: bool,
    until: Instant,
}

impl Duty {
    fn asleep(lab: &Lab) -> anyhow::Result<Self> {
        lab.network.node(SLOW)?.pause()?;
        Ok(Self {
            asleep: true,
            until: Instant::now() + ASLEEP,
        })
    }

    fn turn(&mut self, lab: &Lab) -> anyhow::Result<()> {
        if Instant::now() < self.until {
            return Ok(());
        }
        let node = lab.network.node(SLOW)?;
        let next = if self.asleep {
            node.resume()?;
            AWAKE
        } else {
            node.pause()?;
            ASLEEP
        };
        self.asleep = !self.asleep;
        self.until = Instant::now() + next;
        Ok(())
    }
}

fn start(stage: &Stage, job: JobShape, faults: &[(&str, &str)]) -> anyhow::Result<Option<Lab>> {
    let plan = Plan {
        job,
        faults,
        constants: &[],
    };
    let links = Links {
        delay_ms: 20.0,
        ..Links::default()
    };
    Lab::start_among(stage, &plan, links)
}

fn all_back(lab: &mut Lab) -> anyhow::Result<()> {
    let workers = lab.workers();
    lab.follow_until("all signed a close after it", |lab| {
        lab.all_signed_after(ROUND, &workers)
    })?;
    lab.check_one_close()
}
