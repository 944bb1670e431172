//! Faults that a node is told to commit, for scenarios only (`hanzod run --fault KIND@ROUND`, `*` for any round).

use gym_protocol::ids::Round;
use gym_protocol::member::Sums;
use gym_protocol::message::Phase;
use std::str::FromStr;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// The process kills itself when it would start to train.
    DieInTrain,
    /// The process kills itself when its delta is trained, before it commits.
    DieInCommit,
    /// The process kills itself when its commitment is said, before a replica leaves.
    DieInReplicate,
    /// The process kills itself when its commit has its receipts, before it reveals.
    DieInReveal,
    /// The process kills itself when it would send its first ring segment.
    DieInReduce,
    /// The process kills itself when it would send its first segment of this step of this phase.
    DieAt(Phase, u32),
    /// The process kills itself when it has the mean, before it applies it.
    DieInApply,
    /// The process kills itself when it would attest.
    DieInAttest,
    /// Training never ends.
    HangInTrain,
    /// Nothing is sent in the ring.
    MuteInReduce,
    /// Ring segments carry the next round's number.
    WrongRound,
    /// Ring segments are cut short.
    Truncated,
    /// The seal of ring segments is damaged.
    BadTag,
    /// A NaN is committed.
    NanDelta,
    /// Another state is computed.
    OtherState,
    /// The opposite of the committed delta is added in the ring, and signed.
    FalseSum,
    /// The orchestrator decides two manifests for the first view.
    TwoManifests,
    /// The orchestrator decides another view, then closes the one before.
    LateClose,
}

const NAMES: [(&str, FaultKind); 17] = [
    ("die-in-train", FaultKind::DieInTrain),
    ("die-in-commit", FaultKind::DieInCommit),
    ("die-in-replicate", FaultKind::DieInReplicate),
    ("die-in-reveal", FaultKind::DieInReveal),
    ("die-in-reduce", FaultKind::DieInReduce),
    ("die-in-apply", FaultKind::DieInApply),
    ("die-in-attest", FaultKind::DieInAttest),
    ("hang-in-train", FaultKind::HangInTrain),
    ("mute-in-reduce", FaultKind::MuteInReduce),
    ("wrong-round", FaultKind::WrongRound),
    ("truncated", FaultKind::Truncated),
    ("bad-tag", FaultKind::BadTag),
    ("nan-delta", FaultKind::NanDelta),
    ("other-state", FaultKind::OtherState),
    ("false-sum", FaultKind::FalseSum),
    ("two-manifests", FaultKind::TwoManifests),
    ("late-close", FaultKind::LateClose),
];

/// What [`FaultKind::DieAt`] names begin with; phase and step follow.
const DIE_AT: &str = "die-at-";
const PHASES: [(&str, Phase); 8] = [
    ("scale-reduce", Phase::ScaleReduce),
    ("scale-gather", Phase::ScaleGather),
    ("scatter-reduce", Phase::ScatterReduce),
    ("all-gather", Phase::AllGather),
    ("column-scale-reduce", Phase::ColumnScaleReduce),
    ("column-scale-gather", Phase::ColumnScaleGather),
    ("column-scatter-reduce", Phase::ColumnScatterReduce),
    ("column-all-gather", Phase::ColumnAllGather),
];

/// A fault and the round it happens in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub(crate) kind: FaultKind,
    /// Any round, where none is named.
    pub(crate) round: Option<u64>,
}

/// A fault that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no fault: KIND@ROUND, KIND one of {names}, {DIE_AT}PHASE-STEP", names = NAMES.map(|(n, _)| n).join(", "))]
pub struct FaultError(String);

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let fail = || FaultError(text.to_owned());
        let (name, round) = text.split_once('@').ok_or_else(fail)?;
        let known = NAMES.iter().find(|(n, _)| *n == name).map(|(_, kind)| *kind);
        let round = match round {
            "*" => None,
            number => Some(number.parse().map_err(|_| fail())?),
        };
        Ok(Self {
            kind: known.or_else(|| die_at(name)).ok_or_else(fail)?,
            round,
        })
    }
}

fn die_at(name: &str) -> Option<FaultKind> {
    let (phase, step) = name.strip_prefix(DIE_AT)?.rsplit_once('-')?;
    let (_, phase) = PHASES.iter().find(|(n, _)| *n == phase)?;
    Some(FaultKind::DieAt(*phase, step.parse().ok()?))
}

/// The faults of this run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults(pub(crate) Vec<Fault>);

impl Faults {
    pub(crate) fn has(&self, kind: FaultKind, round: u64) -> bool {
        let due = |f: &Fault| f.kind == kind && f.round.is_none_or(|r| r == round);
        self.0.iter().any(due)
    }

    /// Whether, and when, this node's sums are false.
    pub(crate) fn sums(&self) -> Sums {
        let of = self.0.iter().find(|f| f.kind == FaultKind::FalseSum);
        of.map_or(Sums::True, |f| Sums::FalseIn(f.round.map(Round)))
    }

    /// Ends the process as `kill -9` would, if this fault is due.
    pub(crate) fn die(&self, kind: FaultKind, round: u64) {
        if self.has(kind, round) {
            tracing::warn!(round, "fault {kind:?}: this process kills itself");
            // On failure the process goes on, and the scenario that asked for its end says so.
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_parse_and_explain_themselves() {
        let fault: Fault = "bad-tag@3".parse().unwrap();
        assert_eq!(
            fault,
            Fault {
                kind: FaultKind::BadTag,
                round: Some(3)
            }
        );
        let die: Fault = "die-at-scatter-reduce-2@*".parse().unwrap();
        assert_eq!(die.kind, FaultKind::DieAt(Phase::ScatterReduce, 2));
        let faults = Faults(vec![die]);
        assert!(faults.has(die.kind, 7) && !faults.has(FaultKind::DieAt(Phase::ScatterReduce, 1), 7));
        let message = "bad@3".parse::<Fault>().unwrap_err().to_string();
        assert!(
            message.contains("bad-tag") && message.contains("KIND@ROUND"),
            "{message}"
        );
    }
}
