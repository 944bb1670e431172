//! The header of everything that crosses a sealed link: associated data of its seal, in clear before the ciphertext.

use super::bodies::wire_struct;
use crate::ids::{CidBytes, Hash32, PeerBytes};

/// What a sealed frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkKind {
    /// A segment of a ring chunk.
    Ring,
    /// A part of a replicated commit.
    Replica,
}

impl LinkKind {
    /// Its number on the wire.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Ring => 0,
            Self::Replica => 1,
        }
    }

    /// The kind of a number.
    #[must_use]
    pub fn from_number(n: u8) -> Option<Self> {
        match n {
            0 => Some(Self::Ring),
            1 => Some(Self::Replica),
            _ => None,
        }
    }
}

/// A phase of the ring (PROTOCOL section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Block maxima travel and are joined by `max`.
    ScaleReduce,
    /// The joined maxima travel to all.
    ScaleGather,
    /// Partial sums travel and grow.
    ScatterReduce,
    /// Finished means travel to all.
    AllGather,
    /// In a grid: maxima of what the row left here are joined along the column.
    ColumnScaleReduce,
    /// In a grid: the maxima so joined travel along the column.
    ColumnScaleGather,
    /// In a grid: the rows' sums are added along the column.
    ColumnScatterReduce,
    /// In a grid: finished means travel along the column.
    ColumnAllGather,
}

impl Phase {
    /// Its number on the wire.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::ScaleReduce => 0,
            Self::ScaleGather => 1,
            Self::ScatterReduce => 2,
            Self::AllGather => 3,
            Self::ColumnScaleReduce => 4,
            Self::ColumnScaleGather => 5,
            Self::ColumnScatterReduce => 6,
            Self::ColumnAllGather => 7,
        }
    }

    /// The phase of a number.
    #[must_use]
    pub fn from_number(n: u8) -> Option<Self> {
        match n {
            0 => Some(Self::ScaleReduce),
            1 => Some(Self::ScaleGather),
            2 => Some(Self::ScatterReduce),
            3 => Some(Self::AllGather),
            4 => Some(Self::ColumnScaleReduce),
            5 => Some(Self::ColumnScaleGather),
            6 => Some(Self::ColumnScatterReduce),
            7 => Some(Self::ColumnAllGather),
            _ => None,
        }
    }
}

wire_struct! {
    /// Associated data of a sealed frame: (kind, job, round, view, manifest hash, phase, step, chunk, segment, sender, receiver).
    ///
    /// Where no manifest exists yet (replicas) view, manifest, phase and step are zero, `chunk` numbers the part and
    /// `segment` counts the parts.
    LinkHeader {
        /// [`LinkKind`] number.
        kind: u8,
        /// The job.
        job: CidBytes,
        /// The round.
        round: u64,
        /// The view.
        view: u32,
        /// Hash of the manifest the ring runs under.
        manifest: Hash32,
        /// [`Phase`] number.
        phase: u8,
        /// Step of the phase.
        step: u32,
        /// Chunk of the flat vector.
        chunk: u32,
        /// Segment of the chunk.
        segment: u32,
        /// Ring slot whose data this is (the sender may serve several).
        slot: u32,
        /// Who sends.
        sender: PeerBytes,
        /// Who receives.
        receiver: PeerBytes,
    }
}
