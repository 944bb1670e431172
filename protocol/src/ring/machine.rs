//! The machine of a slot, whatever the layout.

use super::{
    Axis, Carried, Config, Contribution, GridRing, KeptChunks, Layout, Reduced, Ring, RingError, Schedule,
    Segment,
};
use crate::job::spec::Wire;

/// What a slot's machine is built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where the slots stand.
    pub layout: Layout,
    /// Precision on the wire.
    pub wire: Wire,
    /// Σ of the manifest's weights.
    pub total_weight: u64,
    /// L.
    pub elements: usize,
    /// Elements a segment.
    pub segment: usize,
}

/// A slot of a ring or of a grid.
#[derive(Debug)]
pub enum Machine {
    /// Of a ring.
    Flat(Box<Ring>),
    /// Of a grid.
    Grid(Box<GridRing>),
}

impl Machine {
    /// The machine of `slot`.
    #[must_use]
    pub fn new(plan: Plan, slot: u32, own: Contribution) -> Self {
        Self::keeping(plan, slot, own, KeptChunks::default(), Carried::default())
    }

    /// The same where an earlier view has finished some chunks already. Grids keep none.
    #[must_use]
    pub fn keeping(plan: Plan, slot: u32, own: Contribution, kept: KeptChunks, carried: Carried) -> Self {
        if let Some(grid) = plan.layout.grid() {
            return Self::Grid(Box::new(GridRing::new(plan, grid, slot, own)));
        }
        let config = Config {
            schedule: Schedule {
                slots: plan.layout.slots(),
                elements: plan.elements,
                segment: plan.segment,
            },
            slot,
            wire: plan.wire,
            total_weight: plan.total_weight,
        };
        Self::Flat(Box::new(Ring::keeping(config, own, kept, carried)))
    }

    /// Sends what needs nothing from others.
    pub fn start(&mut self, out: &mut Vec<Segment>) {
        match self {
            Self::Flat(r) => r.start(out),
            Self::Grid(g) => g.start(out),
        }
    }

    /// Refuses what the schedule does not expect, without looking into the payload.
    pub(super) fn check(&self, segment: &Segment) -> Result<(), RingError> {
        match self {
            Self::Flat(r) => r.check(segment),
            Self::Grid(g) => g.check(segment),
        }
    }

    /// Takes a predecessor's segment.
    ///
    /// # Errors
    /// What is wrong with it; see [`Ring::receive`].
    pub fn receive(&mut self, segment: Segment, out: &mut Vec<Segment>) -> Result<(), RingError> {
        match self {
            Self::Flat(r) => r.receive(segment, out),
            Self::Grid(g) => g.receive(segment, out),
        }
    }

    /// The result, once every segment has come.
    #[must_use]
    pub fn finish(&self) -> Option<Reduced> {
        match self {
            Self::Flat(r) => r.finish(),
            Self::Grid(g) => g.finish(),
        }
    }

    /// As [`Self::finish`], without copying what is large: the machine is of no use afterwards.
    pub fn take_result(&mut self) -> Option<Reduced> {
        match self {
            Self::Flat(r) => r.take_result(),
            Self::Grid(g) => g.finish(),
        }
    }

    /// The line whose segments it waits for.
    #[must_use]
    pub fn waits_along(&self) -> Axis {
        match self {
            Self::Flat(_) => Axis::Row,
            Self::Grid(g) => g.waits_along(),
        }
    }

    /// Segments still to come.
    #[must_use]
    pub fn missing(&self) -> usize {
        match self {
            Self::Flat(r) => r.missing(),
            Self::Grid(g) => g.missing(),
        }
    }

    /// Whether the chunk's mean is here, whole; never in a grid, whose means are not kept.
    pub(super) fn is_finished_chunk(&self, chunk: u32) -> bool {
        match self {
            Self::Flat(r) => r.is_finished_chunk(chunk),
            Self::Grid(_) => false,
        }
    }

    /// A finished chunk's segments as they travelled, from the ring's result where that was taken.
    pub(super) fn segments_of(&self, chunk: u32, result: Option<&[f32]>) -> Option<Vec<Vec<u8>>> {
        match self {
            Self::Flat(r) => r.segments_of(chunk, result),
            Self::Grid(_) => None,
        }
    }

    /// What rounding left over of this slot's own part of a chunk, while the ring's result was not taken.
    pub(super) fn left_of(&self, chunk: u32) -> Option<&[f32]> {
        match self {
            Self::Flat(r) => r.left_of(chunk),
            Self::Grid(_) => None,
        }
    }
}
