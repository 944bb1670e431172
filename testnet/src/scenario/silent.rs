//! Workers that never answer.

use super::Stage;
use super::lab::Lab;
use crate::event::Kind;
use anyhow::ensure;

const VICTIM: &str = "worker-3";
const ROUNDS: u64 = 4;
const ROUND: u64 = 1;

/// Training that never ends: the round closes without it.
pub(super) fn in_train(stage: &Stage) -> anyhow::Result<()> {
    let mut lab = Lab::start(stage, ROUNDS, VICTIM, "hang-in-train@1")?;
    lab.follow(|_| Ok(()))?;
    lab.check_ended_well()?;
    let (closed, peer) = (lab.closed(ROUND)?, lab.peer(VICTIM)?);
    ensure!(
        closed.left_out.iter().any(|l| l.member == peer),
        "nothing is said about it: {closed:?}"
    );
    Ok(())
}

/// Silent in the ring after its commit: a holder contributes its delta.
pub(super) fn in_reduce(stage: &Stage) -> anyhow::Result<()> {
    let mut lab = Lab::start(stage, ROUNDS, VICTIM, "mute-in-reduce@1")?;
    lab.follow(|_| Ok(()))?;
    lab.check_ended_well()?;
    let (closed, peer) = (lab.closed(ROUND)?, lab.peer(VICTIM)?);
    ensure!(
        closed.members.contains(&peer),
        "its delta is not in the sum: {closed:?}"
    );
    ensure!(closed.view > 0, "no view was changed: {closed:?}");
    let silent = lab.counted("gym_offences_total{kind=\"timeout\"}", VICTIM)?;
    ensure!(silent > 0, "nobody counted its silence");
    Ok(())
}

/// A process that is stopped while it trains, and goes on when the round is over.
pub(super) fn frozen(stage: &Stage) -> anyhow::Result<()> {
    let mut lab = Lab::start(stage, ROUNDS, VICTIM, "")?;
    let (mut stopped, mut resumed) = (false, false);
    lab.follow(|lab| {
        if !stopped
            && lab
                .told
                .iter()
                .any(|told| is_training(&told.node, &told.event.kind))
        {
            stopped = true;
            lab.network.node(VICTIM)?.pause()?;
        }
        if stopped && !resumed && lab.has_closed(ROUND) {
            resumed = true;
            lab.network.node(VICTIM)?.resume()?;
        }
        Ok(())
    })?;
    ensure!(stopped && resumed, "it was not stopped and resumed");
    lab.check_ended_well()
}

fn is_training(node: &str, kind: &Kind) -> bool {
    matches!(kind, Kind::Doing { role, doing, round } if role == "worker" && doing == "training" && *round == ROUND)
        && node == VICTIM
}
