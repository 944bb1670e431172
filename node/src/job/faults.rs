//! Faults that a node is told to commit, for scenarios only (`hanzod run --fault KIND@ROUND`).

use std::str::FromStr;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// The process kills itself when it would start to train.
    DieInTrain,
    /// The process kills itself when its delta is trained, before it commits.
    DieInCommit,
    /// The process kills itself when it would send its first ring segment.
    DieInReduce,
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
}

const NAMES: [(&str, FaultKind); 10] = [
    ("die-in-train", FaultKind::DieInTrain),
    ("die-in-commit", FaultKind::DieInCommit),
    ("die-in-reduce", FaultKind::DieInReduce),
    ("hang-in-train", FaultKind::HangInTrain),
    ("mute-in-reduce", FaultKind::MuteInReduce),
    ("wrong-round", FaultKind::WrongRound),
    ("truncated", FaultKind::Truncated),
    ("bad-tag", FaultKind::BadTag),
    ("nan-delta", FaultKind::NanDelta),
    ("other-state", FaultKind::OtherState),
];

/// A fault and the round it happens in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) round: u64,
}

/// A fault that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no fault: KIND@ROUND, KIND one of {names}", names = NAMES.map(|(n, _)| n).join(", "))]
pub struct FaultError(String);

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let fail = || FaultError(text.to_owned());
        let (name, round) = text.split_once('@').ok_or_else(fail)?;
        let (_, kind) = NAMES.iter().find(|(n, _)| *n == name).ok_or_else(fail)?;
        Ok(Self {
            kind: *kind,
            round: round.parse().map_err(|_| fail())?,
        })
    }
}

/// The faults of this run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults(pub(crate) Vec<Fault>);

impl Faults {
    pub(crate) fn has(&self, kind: FaultKind, round: u64) -> bool {
        self.0.contains(&Fault { kind, round })
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
                round: 3
            }
        );
        let message = "bad@3".parse::<Fault>().unwrap_err().to_string();
        assert!(
            message.contains("bad-tag") && message.contains("KIND@ROUND"),
            "{message}"
        );
    }
}
