//! Links as they are between people's homes: far, lossy, narrow. Nothing else goes wrong: every delta is in every sum.

use super::Stage;
use super::assets::JobShape;
use super::lab::{Lab, Plan};
use crate::netlab::Links;
use anyhow::ensure;

const ROUNDS: u64 = 3;

/// 100 ms each way.
pub(super) fn far(stage: &Stage) -> anyhow::Result<()> {
    let links = Links {
        delay_ms: 100.0,
        ..Links::default()
    };
    quiet(stage, links, 2)
}

/// 2 % of packets lost, 20 ms each way.
pub(super) fn lossy(stage: &Stage) -> anyhow::Result<()> {
    let links = Links {
        delay_ms: 20.0,
        mbit: 100.0,
        loss: 2.0,
    };
    quiet(stage, links, 16)
}

/// 20 Mbit/s up and down, with an adapter that takes a while.
pub(super) fn narrow(stage: &Stage) -> anyhow::Result<()> {
    let links = Links {
        delay_ms: 20.0,
        mbit: 20.0,
        loss: 0.0,
    };
    quiet(stage, links, 512)
}

fn quiet(stage: &Stage, links: Links, rank: u32) -> anyhow::Result<()> {
    let job = JobShape {
        wire: "q8",
        rank,
        ..JobShape::of(ROUNDS)
    };
    let plan = Plan {
        job,
        faults: &[],
        constants: &[],
    };
    let Some(mut lab) = Lab::start_among(stage, &plan, links)? else {
        return Ok(());
    };
    lab.follow(|_| Ok(()))?;
    lab.check_ended_well()?;
    lab.check_one_close()?;
    for closed in lab.board.closed.values() {
        ensure!(
            closed.members.len() == job.workers,
            "not everybody's delta is in the sum: {closed:?}"
        );
    }
    for round in 0..ROUNDS {
        lab.measure_reduce(stage, round)?;
    }
    Ok(())
}
