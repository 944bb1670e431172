//! Workers that send what they must not.

use super::Stage;
use super::lab::Lab;
use anyhow::ensure;

const VICTIM: &str = "worker-3";
const ROUNDS: u64 = 4;
const ROUND: u64 = 1;

/// How a lie is met.
struct Met<'a> {
    /// Offences of which at least one must be counted by others.
    counted: &'a [&'a str],
    /// Words of which one stands in a line about it in another's log.
    theirs: &'a [&'a str],
    /// Words of which one stands in its own log.
    own: &'a [&'a str],
    /// What becomes of its delta in that round.
    delta: Delta,
}

/// What becomes of a liar's delta.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Delta {
    /// In the sum: its commit had its receipts.
    Summed,
    /// Not in the sum.
    LeftOut,
}

/// Ring segments that carry the next round's number.
pub(super) fn wrong_round(stage: &Stage) -> anyhow::Result<()> {
    let met = Met {
        counted: &["wrong_round"],
        theirs: &["for the wrong round"],
        own: &["for the wrong round"],
        delta: Delta::Summed,
    };
    lie(stage, "wrong-round@1", &met).map(drop)
}

/// Ring segments that are cut short.
pub(super) fn truncated(stage: &Stage) -> anyhow::Result<()> {
    let met = Met {
        counted: &["truncated", "truncated_frame"],
        theirs: &["truncated", "cut off"],
        own: &["truncated", "cut off"],
        delta: Delta::Summed,
    };
    lie(stage, "truncated@1", &met).map(drop)
}

/// Ring segments whose seal is damaged.
pub(super) fn bad_tag(stage: &Stage) -> anyhow::Result<()> {
    let met = Met {
        counted: &["bad_seal", "bad_tag"],
        theirs: &["bad tag", "tag is wrong"],
        own: &["bad tag", "tag is wrong"],
        delta: Delta::Summed,
    };
    lie(stage, "bad-tag@1", &met).map(drop)
}

/// A committed delta that holds a NaN.
pub(super) fn nan_delta(stage: &Stage) -> anyhow::Result<()> {
    let met = Met {
        counted: &["delta_not_finite"],
        theirs: &["NaN"],
        own: &["NaN"],
        delta: Delta::LeftOut,
    };
    lie(stage, "nan-delta@1", &met).map(drop)
}

/// Another state is computed and attested: the close stands without its signature, and it loads the quorum's state.
pub(super) fn other_state(stage: &Stage) -> anyhow::Result<()> {
    let met = Met {
        counted: &["state_differs"],
        theirs: &["differs from the quorum"],
        own: &["differs from the quorum"],
        delta: Delta::Summed,
    };
    let lab = lie(stage, "other-state@1", &met)?;
    let (closed, peer) = (lab.closed(ROUND)?, lab.peer(VICTIM)?);
    ensure!(
        !closed.signers.contains(&peer),
        "its signature is under a state it does not hold: {closed:?}"
    );
    Ok(())
}

/// Sums that do not follow from its committed delta, and hops that say they do: the audit before the close finds it, the
/// others replay the proof, a holder contributes its delta, and it is not called again.
pub(super) fn false_sum(stage: &Stage) -> anyhow::Result<()> {
    let met = Met {
        counted: &["false_sum"],
        theirs: &["lied about a sum"],
        own: &["lied about a sum"],
        delta: Delta::Summed,
    };
    let lab = lie(stage, "false-sum@1", &met)?;
    let (closed, peer) = (lab.closed(ROUND)?, lab.peer(VICTIM)?);
    ensure!(
        !closed.signers.contains(&peer) && closed.view > 0,
        "the round was not done again without it: {closed:?}"
    );
    let next = lab.closed(ROUND + 1)?;
    ensure!(!next.members.contains(&peer), "it is called again: {next:?}");
    Ok(())
}

fn lie(stage: &Stage, fault: &str, met: &Met<'_>) -> anyhow::Result<Lab> {
    let mut lab = Lab::start(stage, ROUNDS, VICTIM, fault)?;
    lab.follow(|_| Ok(()))?;
    lab.check_ended_well()?;
    let (closed, peer) = (lab.closed(ROUND)?, lab.peer(VICTIM)?);
    match met.delta {
        Delta::Summed => ensure!(
            closed.members.contains(&peer),
            "its delta is not in the sum: {closed:?}"
        ),
        Delta::LeftOut => {
            ensure!(
                closed.left_out.iter().any(|l| l.member == peer),
                "nothing is said about it: {closed:?}"
            );
        }
    }
    check_told(&lab, met)?;
    Ok(lab)
}

/// Counted by somebody, and one clear line on both sides.
fn check_told(lab: &Lab, met: &Met<'_>) -> anyhow::Result<()> {
    let mut counted = 0;
    for kind in met.counted {
        counted += lab.counted(&format!("gym_offences_total{{kind=\"{kind}\"}}"), VICTIM)?;
    }
    if counted == 0 {
        return lab.fail(&format!("nobody counted {}", met.counted.join(" or ")));
    }
    let says = |words: &[&str], line: &str| words.iter().any(|word| line.contains(word));
    if !lab.lines_about(VICTIM)?.iter().any(|line| says(met.theirs, line)) {
        return lab.fail(&format!("no other log has a line about it with {:?}", met.theirs));
    }
    let own = lab.network.node(VICTIM)?.log();
    if !own
        .lines()
        .any(|line| says(met.own, line) && !line.contains("fault"))
    {
        return lab.fail(&format!("its own log has no line with {:?}", met.own));
    }
    Ok(())
}
