//! `kill -9` at each step of each phase: one worker dies again and again, a step later each time.

use super::Stage;
use super::assets::JobShape;
use super::lab::{Lab, Plan};
use crate::netlab::Links;
use anyhow::{Context, ensure};

const VICTIM: &str = "worker-2";
/// More than there will be.
const ROUNDS: u64 = 1_000;

/// Where the victim dies, and what becomes of its delta.
type Point = (&'static str, Delta);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delta {
    Summed,
    LeftOut,
}

/// With four members a phase has three steps.
const ALL: &[Point] = &[
    ("die-in-train", Delta::LeftOut),
    ("die-in-commit", Delta::LeftOut),
    ("die-in-replicate", Delta::LeftOut),
    ("die-in-reveal", Delta::Summed),
    ("die-at-scale-reduce-0", Delta::Summed),
    ("die-at-scale-reduce-1", Delta::Summed),
    ("die-at-scale-reduce-2", Delta::Summed),
    ("die-at-scale-gather-0", Delta::Summed),
    ("die-at-scale-gather-1", Delta::Summed),
    ("die-at-scale-gather-2", Delta::Summed),
    ("die-at-scatter-reduce-0", Delta::Summed),
    ("die-at-scatter-reduce-1", Delta::Summed),
    ("die-at-scatter-reduce-2", Delta::Summed),
    ("die-at-all-gather-0", Delta::Summed),
    ("die-at-all-gather-1", Delta::Summed),
    ("die-at-all-gather-2", Delta::Summed),
    ("die-in-apply", Delta::Summed),
    ("die-in-attest", Delta::Summed),
];

/// One of each phase.
const FEW: &[Point] = &[
    ("die-in-reveal", Delta::Summed),
    ("die-at-scale-gather-1", Delta::Summed),
    ("die-at-scatter-reduce-2", Delta::Summed),
    ("die-at-all-gather-2", Delta::Summed),
    ("die-in-attest", Delta::Summed),
];

/// At each step of each phase.
pub(super) fn each(stage: &Stage) -> anyhow::Result<()> {
    die(stage, ALL)
}

/// At one step of each phase.
pub(super) fn some(stage: &Stage) -> anyhow::Result<()> {
    die(stage, FEW)
}

fn die(stage: &Stage, points: &[Point]) -> anyhow::Result<()> {
    let (first, _) = points.first().context("somewhere to die")?;
    let first = format!("{first}@*");
    let plan = Plan {
        job: JobShape {
            wire: "q8",
            ..JobShape::of(ROUNDS)
        },
        faults: &[(VICTIM, &first)],
        constants: &[],
    };
    let links = Links {
        delay_ms: 5.0,
        ..Links::default()
    };
    let Some(mut lab) = Lab::start_among(stage, &plan, links)? else {
        return Ok(());
    };
    let next = points.iter().skip(1).map(|(name, _)| Some(*name)).chain([None]);
    let mut last = 0;
    for (point, next) in points.iter().zip(next) {
        last = die_once(stage, &mut lab, *point).with_context(|| point.0)?;
        let victim = lab.network.node_mut(VICTIM)?;
        let fault = next.map(|name| format!("{name}@*"));
        victim.set_faults(&fault.iter().map(String::as_str).collect::<Vec<_>>());
        victim.start()?;
        victim.wait_ready()?;
    }
    let workers = lab.workers();
    lab.follow_until("all signed a close", |lab| lab.all_signed_after(last, &workers))?;
    lab.check_one_close()
}

/// Lets the victim die and the round close; gives the round.
fn die_once(stage: &Stage, lab: &mut Lab, (name, delta): Point) -> anyhow::Result<u64> {
    let mut at = 0;
    lab.follow_until("the victim died", |lab| {
        let died = lab.network.node_mut(VICTIM)?.exited()?.is_some();
        at = super::lab::unix_ms();
        Ok(died)
    })?;
    let round = lab.died_in(VICTIM)?;
    lab.follow_until("the round closed", |lab| Ok(lab.has_closed(round)))?;
    let recovery = lab.measure(stage, name, at, round, VICTIM)?;
    let right = match delta {
        Delta::Summed => recovery.summed,
        Delta::LeftOut => !recovery.summed,
    };
    ensure!(right, "its delta should be {delta:?}: {:?}", lab.closed(round)?);
    Ok(round)
}
