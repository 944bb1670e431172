//! Partitions: a worker that cannot be heard, one that cannot hear, and a network cut in halves.

use super::Stage;
use super::assets::JobShape;
use super::lab::{Lab, Plan, unix_ms};
use crate::netlab::Links;
use anyhow::{Context, ensure};
use std::time::{Duration, Instant};

const VICTIM: &str = "worker-2";
/// More than there will be.
const ROUNDS: u64 = 1_000;
/// The round it begins in.
const ROUND: u64 = 1;
/// Long enough that a ring is met while it runs.
const DELAY_MS: f64 = 40.0;
/// How long a cut without a quorum lasts.
const CUT: Duration = Duration::from_secs(12);

/// What the victim sends is lost, from when it is in the ring.
pub(super) fn unheard(stage: &Stage) -> anyhow::Result<()> {
    one_way(stage, "unheard", &|victim| format!("{victim} *"))
}

/// What is sent to the victim is lost, from when it is in the ring.
pub(super) fn deaf(stage: &Stage) -> anyhow::Result<()> {
    one_way(stage, "deaf", &|victim| format!("* {victim}"))
}

fn one_way(stage: &Stage, name: &str, direction: &dyn Fn(usize) -> String) -> anyhow::Result<()> {
    let Some(mut lab) = start(stage)? else {
        return Ok(());
    };
    lab.follow_until("the victim is in the ring", |lab| {
        Ok(lab.has_told(VICTIM, "worker", "reducing", ROUND))
    })?;
    let pair = direction(number(&lab, VICTIM)?);
    let at = unix_ms();
    command(&lab, &format!("block {pair}"))?;
    lab.follow_until("the round closed", |lab| Ok(lab.has_closed(ROUND)))?;
    let recovery = lab.measure(stage, name, at, ROUND, VICTIM)?;
    ensure!(
        recovery.summed,
        "its delta is not in the sum: {:?}",
        lab.closed(ROUND)?
    );
    command(&lab, &format!("unblock {pair}"))?;
    all_back(&mut lab)
}

/// Two of four workers cut off from the rest, from when they are in the ring: no quorum on either side, until it heals.
pub(super) fn halves(stage: &Stage) -> anyhow::Result<()> {
    let Some(mut lab) = start(stage)? else {
        return Ok(());
    };
    lab.follow_until("the ring runs", |lab| {
        Ok(lab.has_told(VICTIM, "worker", "reducing", ROUND))
    })?;
    let (ours, theirs) = halves_of(&lab)?;
    switch(&lab, "block", &ours, &theirs)?;
    let closed = lab.rounds_closed();
    let until = Instant::now() + CUT;
    lab.follow_until("the cut", |_| Ok(Instant::now() > until))?;
    ensure!(
        lab.rounds_closed() == closed,
        "a round was closed without a quorum: {:?}",
        lab.board.last()
    );
    let at = unix_ms();
    switch(&lab, "unblock", &ours, &theirs)?;
    lab.follow_until("the round closed", |lab| Ok(lab.has_closed(ROUND)))?;
    lab.measure(stage, "halves, from their healing", at, ROUND, VICTIM)?;
    all_back(&mut lab)
}

fn start(stage: &Stage) -> anyhow::Result<Option<Lab>> {
    let plan = Plan {
        job: JobShape {
            wire: "q8",
            ..JobShape::of(ROUNDS)
        },
        faults: &[],
        constants: &[],
    };
    let links = Links {
        delay_ms: DELAY_MS,
        ..Links::default()
    };
    Lab::start_among(stage, &plan, links)
}

fn all_back(lab: &mut Lab) -> anyhow::Result<()> {
    let workers = lab.workers();
    let closed = lab.rounds_closed();
    lab.follow_until("all signed a close after it", |lab| {
        lab.all_signed_after(closed, &workers)
    })?;
    lab.check_one_close()
}

/// The first two workers; everybody else.
fn halves_of(lab: &Lab) -> anyhow::Result<(Vec<usize>, Vec<usize>)> {
    let cut = [number(lab, "worker-1")?, number(lab, VICTIM)?];
    let all = lab.network.nodes().iter().filter_map(|n| n.space());
    Ok(all.map(|space| space.number).partition(|n| cut.contains(n)))
}

fn switch(lab: &Lab, word: &str, ours: &[usize], theirs: &[usize]) -> anyhow::Result<()> {
    for (a, b) in ours.iter().flat_map(|a| theirs.iter().map(move |b| (a, b))) {
        command(lab, &format!("{word} {a} {b}"))?;
        command(lab, &format!("{word} {b} {a}"))?;
    }
    Ok(())
}

fn number(lab: &Lab, node: &str) -> anyhow::Result<usize> {
    let space = lab.network.node(node)?.space();
    Ok(space.with_context(|| format!("{node} has no namespace"))?.number)
}

fn command(lab: &Lab, line: &str) -> anyhow::Result<()> {
    let links = lab.links.as_ref().context("there are no links to change")?;
    links.command(line).map(drop)
}
