//! `kill -9` of one worker in each phase, and its return.

use super::Stage;
use super::lab::Lab;
use anyhow::ensure;

const VICTIM: &str = "worker-2";
/// Enough rounds that the victim is back before the end.
const ROUNDS: u64 = 5;
/// The round it dies in.
const ROUND: u64 = 1;

/// Killed when it starts to train: the round closes without it.
pub(super) fn in_train(stage: &Stage) -> anyhow::Result<()> {
    let lab = die(stage, "die-in-train@1", &[])?;
    without_it(&lab)
}

/// Killed when its delta is trained, before its commit has receipts: the round closes without it.
pub(super) fn in_commit(stage: &Stage) -> anyhow::Result<()> {
    let lab = die(stage, "die-in-commit@1", &[])?;
    without_it(&lab)
}

/// Killed when it would send its first ring segment: a holder of its replica contributes for it.
pub(super) fn in_reduce(stage: &Stage) -> anyhow::Result<()> {
    contributed_for(&die(stage, "die-in-reduce@1", &[])?)
}

/// The same where four are summed in a grid of two by two.
pub(super) fn in_grid(stage: &Stage) -> anyhow::Result<()> {
    let grid = [("flat_ring_max = 28", "flat_ring_max = 3")];
    let lab = die(stage, "die-in-reduce@1", &grid)?;
    for closed in lab.board.closed.values().filter(|c| c.members.len() == 4) {
        ensure!(closed.grid == Some((2, 2)), "not summed in a grid: {closed:?}");
    }
    ensure!(
        lab.closed(0)?.grid.is_some(),
        "round 0 has not four members: {:?}",
        lab.closed(0)
    );
    contributed_for(&lab)
}

fn contributed_for(lab: &Lab) -> anyhow::Result<()> {
    let (closed, peer) = (lab.closed(ROUND)?, lab.peer(VICTIM)?);
    ensure!(
        closed.members.contains(&peer),
        "its delta is not in the sum: {closed:?}"
    );
    ensure!(
        !closed.signers.contains(&peer),
        "a dead worker signed: {closed:?}"
    );
    ensure!(closed.view > 0, "no view was changed: {closed:?}");
    Ok(())
}

fn without_it(lab: &Lab) -> anyhow::Result<()> {
    let (closed, peer) = (lab.closed(ROUND)?, lab.peer(VICTIM)?);
    ensure!(
        !closed.members.contains(&peer),
        "its delta is in the sum: {closed:?}"
    );
    ensure!(
        closed.left_out.iter().any(|l| l.member == peer),
        "nothing is said about it: {closed:?}"
    );
    Ok(())
}

/// Lets the victim die, starts it again, and sees the job to its end with the victim back in it.
fn die(stage: &Stage, fault: &str, constants: &[(&str, &str)]) -> anyhow::Result<Lab> {
    let mut lab = Lab::start_with(stage, ROUNDS, VICTIM, fault, constants)?;
    let mut died = false;
    lab.follow(|lab| {
        let victim = lab.network.node_mut(VICTIM)?;
        if !died && victim.exited()?.is_some() {
            died = true;
            victim.set_faults(&[]);
            victim.start()?;
            victim.wait_ready()?;
        }
        Ok(())
    })?;
    ensure!(died, "{VICTIM} did not die");
    lab.check_ended_well()?;
    let peer = lab.peer(VICTIM)?;
    let back = lab
        .board
        .closed
        .range(ROUND + 1..)
        .any(|(_, c)| c.members.contains(&peer) && c.signers.contains(&peer));
    if !back {
        return lab.fail("started again, it did not come back into a round");
    }
    Ok(lab)
}
