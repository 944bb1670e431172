//! What the hops of one manifest have in common, and what each builds on.

use super::{Origin, Place};
use crate::ids::{CidBytes, Hash32, PeerBytes};
use crate::job::spec::Wire;
use crate::message::{Manifest, Phase};
use crate::quant::Form;
use crate::ring::{Axis, Layout, Plan, Schedule, grid};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Who serves a slot, and whose delta it adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat<'a> {
    /// Who sends, and signs.
    pub server: &'a PeerBytes,
    /// The commit's directory; `None` at a missing slot, which adds nothing.
    pub cid: Option<&'a CidBytes>,
}

/// One manifest's ring, as its hops name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// What is summed.
    pub manifest: Arc<Manifest>,
    /// The manifest's hash.
    pub hash: Hash32,
    /// Shape, precision and weights.
    pub plan: Plan,
    /// Chunks that an earlier view has finished.
    pub kept: BTreeMap<u32, Origin>,
}

impl Scope {
    /// Of a manifest whose hash is `hash`, over `elements` elements in segments of `segment`. `None` for a grid that the
    /// entries do not fill, and for a manifest that keeps chunks: see [`Self::keeping`].
    #[must_use]
    pub fn new(
        manifest: Arc<Manifest>,
        hash: Hash32,
        wire: Wire,
        elements: usize,
        segment: usize,
    ) -> Option<Self> {
        let layout = Layout::new(u32::try_from(manifest.entries.len()).ok()?, manifest.grid)?;
        manifest
            .kept
            .is_empty()
            .then(|| Self::of(manifest, hash, layout, wire, elements, segment))
    }

    pub(super) fn of(
        manifest: Arc<Manifest>,
        hash: Hash32,
        layout: Layout,
        wire: Wire,
        elements: usize,
        segment: usize,
    ) -> Self {
        Self {
            kept: BTreeMap::new(),
            hash,
            plan: Plan {
                layout,
                wire,
                total_weight: manifest
                    .entries
                    .iter()
                    .fold(0, |sum, e| sum.saturating_add(e.weight)),
                elements,
                segment,
            },
            manifest,
        }
    }

    /// Who serves `slot`, and for whom.
    #[must_use]
    pub fn seat(&self, slot: u32) -> Option<Seat<'_>> {
        let entry = |e: u32| self.manifest.entries.get(e as usize);
        let layout = self.plan.layout;
        let slot = Some(slot).filter(|slot| *slot < layout.slots())?;
        Some(Seat {
            server: &entry(layout.served_as(slot)?)?.server,
            cid: layout.entry(slot).and_then(entry).map(|e| &e.cid),
        })
    }

    /// The place whose owner signed what `slot` sends at `step`: in a gather everyone passes the owner's word on.
    #[must_use]
    pub fn signed_at(&self, phase: Phase, step: u32, chunk: u32, slot: u32) -> Place {
        if phase.gathers().is_none() {
            return Place {
                phase,
                step,
                chunk,
                slot,
            };
        }
        Place {
            phase,
            step: 0,
            chunk,
            slot: self.owner(phase, chunk, slot),
        }
    }

    /// Segments of what is sent at a place; an empty chunk does not travel and has no hops.
    #[must_use]
    pub fn segments(&self, place: Place) -> u32 {
        match self.plan.layout.grid() {
            None => self.schedule().segments(place.phase, place.chunk),
            Some(g) => grid::segments(self.plan, g, place),
        }
    }

    /// The chunk of the ring, or of the rows, that a place is about.
    #[must_use]
    pub fn row_chunk(&self, place: Place) -> u32 {
        match (place.phase.axis(), self.plan.layout.grid()) {
            (Axis::Column, Some(g)) => (place.slot % g.columns + 1) % g.columns,
            _ => place.chunk,
        }
    }

    /// Chunks of the ring, or of the rows.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        let layout = self.plan.layout;
        layout.grid().map_or(layout.slots(), |g| g.columns)
    }

    /// The hops that one builds on, in the order of its hash: what came along its line first, then what its own share
    /// follows from. Empty ones are left out.
    #[must_use]
    pub fn builds_on(&self, place: Place) -> Vec<Place> {
        let mut on = match (place.phase, self.plan.layout.grid()) {
            (Phase::ScaleReduce, _) => self.along(place),
            (Phase::ScatterReduce, _) => {
                let mut on = self.along(place);
                on.extend(self.scales(place.chunk, place.slot));
                on
            }
            (Phase::ScaleGather, None) => self.last(Phase::ScaleReduce, place),
            (Phase::AllGather, None) => {
                let mut on = self.last(Phase::ScatterReduce, place);
                on.extend(self.scales(place.chunk, place.slot));
                on
            }
            (Phase::ScaleGather, Some(_)) => self.pieces(Phase::ColumnScaleGather, place.slot),
            (Phase::AllGather, Some(_)) => self.pieces(Phase::ColumnAllGather, place.slot),
            (Phase::ColumnScaleReduce, _) => self.with_row(Phase::ScaleReduce, place, self.along(place)),
            (Phase::ColumnScatterReduce, _) => self.with_row(Phase::ScatterReduce, place, self.along(place)),
            (Phase::ColumnScaleGather, _) => {
                let last = self.last(Phase::ColumnScaleReduce, place);
                self.with_row(Phase::ScaleReduce, place, last)
            }
            (Phase::ColumnAllGather, _) => {
                let last = self.last(Phase::ColumnScatterReduce, place);
                self.with_row(Phase::ScatterReduce, place, last)
            }
        };
        on.retain(|p| self.segments(*p) > 0);
        on
    }

    /// The step before, one slot back along the line.
    fn along(&self, place: Place) -> Vec<Place> {
        let before = self.plan.layout.before(place.slot, place.phase.axis());
        let step = place.step.checked_sub(1);
        step.map(|step| Place {
            step,
            slot: before,
            ..place
        })
        .into_iter()
        .collect()
    }

    /// The last step of a reduce phase, as it reaches the owner.
    fn last(&self, phase: Phase, place: Place) -> Vec<Place> {
        vec![Place {
            phase,
            step: self.line(phase.axis()).saturating_sub(2),
            chunk: place.chunk,
            slot: self.plan.layout.before(place.slot, phase.axis()),
        }]
    }

    /// A column's hop adds what its row left to its slot; at q8 under the joined scales.
    fn with_row(&self, row: Phase, place: Place, mut on: Vec<Place>) -> Vec<Place> {
        let chunk = self.row_chunk(place);
        on.extend(self.last(row, Place { chunk, ..place }));
        if row == Phase::ScatterReduce {
            on.extend(self.scales(chunk, place.slot));
        }
        on
    }

    /// The shared scales that a slot's integers stand under.
    fn scales(&self, chunk: u32, slot: u32) -> Option<Place> {
        has_scales(self.plan.wire).then(|| self.signed_at(Phase::ScaleGather, 0, chunk, slot))
    }

    /// Every piece of a column, from its owner.
    fn pieces(&self, phase: Phase, slot: u32) -> Vec<Place> {
        (0..self.line(Axis::Column))
            .map(|piece| self.signed_at(phase, 0, piece, slot))
            .collect()
    }

    /// Who owns `chunk` on the line of `slot`: who stands before the slot where its sum began.
    fn owner(&self, phase: Phase, chunk: u32, slot: u32) -> u32 {
        let first = match (phase.axis(), self.plan.layout.grid()) {
            (_, None) => chunk % self.plan.layout.slots().max(1),
            (Axis::Row, Some(g)) => slot / g.columns * g.columns + chunk % g.columns,
            (Axis::Column, Some(g)) => chunk % g.rows * g.columns + slot % g.columns,
        };
        self.plan.layout.before(first, phase.axis())
    }

    /// Slots of a line.
    fn line(&self, axis: Axis) -> u32 {
        match (axis, self.plan.layout.grid()) {
            (_, None) => self.plan.layout.slots(),
            (Axis::Row, Some(g)) => g.columns,
            (Axis::Column, Some(g)) => g.rows,
        }
    }

    fn schedule(&self) -> Schedule {
        Schedule {
            slots: self.plan.layout.slots(),
            elements: self.plan.elements,
            segment: self.plan.segment,
        }
    }
}

/// Whether integers travel under shared scales.
fn has_scales(wire: Wire) -> bool {
    match Form::of(wire) {
        Form::Floats(_) => false,
        Form::Integers(_) => true,
    }
}
