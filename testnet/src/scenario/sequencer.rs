//! An orchestrator that contradicts itself: two manifests of one view, a close of a view that has passed.

use super::Stage;
use super::assets::JobShape;
use super::lab::{Lab, Plan};
use anyhow::ensure;

const ROUNDS: u64 = 4;

/// Two manifests are signed for one view: whoever sees both says so, and the round closes once.
pub(super) fn two_manifests(stage: &Stage) -> anyhow::Result<()> {
    let lab = contradict(stage, "two-manifests@1")?;
    let counted = lab.counted("gym_offences_total{kind=\"equivocation\"}", "orchestrator")?;
    ensure!(counted > 0, "nobody counted the second manifest");
    let lines = lab.lines_about("orchestrator")?;
    ensure!(
        lines.iter().any(|line| line.contains("two manifests for view 0")),
        "no log has a line about the second manifest"
    );
    Ok(())
}

/// The close comes after a manifest of the next view: nobody takes it, and all go on from one state.
pub(super) fn late_close(stage: &Stage) -> anyhow::Result<()> {
    let lab = contradict(stage, "late-close@1")?;
    let lines = lab.lines_about("orchestrator")?;
    ensure!(
        lines.iter().any(|line| line.contains("the close is void")),
        "no worker refused the close"
    );
    Ok(())
}

fn contradict(stage: &Stage, fault: &str) -> anyhow::Result<Lab> {
    let plan = Plan {
        job: JobShape::of(ROUNDS),
        faults: &[("orchestrator", fault)],
        constants: &[],
    };
    let mut lab = Lab::start_plan(stage, &plan)?;
    lab.follow(|_| Ok(()))?;
    lab.check_ended_well()?;
    lab.check_one_close()?;
    let workers = lab.workers();
    ensure!(
        lab.all_signed_after(1, &workers)?,
        "not all signed a close after it: {:?}",
        lab.board.closed
    );
    Ok(lab)
}
