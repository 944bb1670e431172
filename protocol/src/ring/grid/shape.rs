//! A slot's place in its grid, and what travels along its row and its column.

use crate::message::Phase;
use crate::quant::{self, BLOCK};
use crate::ring::{Axis, Grid, Plan, Schedule, Segment};
use std::ops::Range;

/// The place of one slot, and the schedules of its row and its column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) grid: Grid,
    pub(super) row: Schedule,
    pub(super) row_index: u32,
    pub(super) column: u32,
    /// The row chunk that this slot owns after the row's scatter-reduce.
    pub(super) owned: u32,
}

impl Shape {
    pub(super) fn new(plan: Plan, grid: Grid, slot: u32) -> Self {
        let column = slot % grid.columns;
        let row = Schedule {
            slots: grid.columns,
            elements: plan.elements,
            // Whole blocks, so that a segment has its own scales.
            segment: (plan.segment / BLOCK).max(1) * BLOCK,
        };
        Self {
            grid,
            row,
            row_index: slot / grid.columns,
            column,
            owned: row.owned(column),
        }
    }

    /// A ring as long as the phase's line; only its turns are used for columns.
    pub(super) fn line(&self, phase: Phase) -> (Schedule, u32) {
        match phase.axis() {
            Axis::Row => (self.row, self.column),
            Axis::Column => (
                Schedule {
                    slots: self.grid.rows,
                    ..self.row
                },
                self.row_index,
            ),
        }
    }

    pub(super) fn last_step(&self, phase: Phase) -> u32 {
        self.line(phase).0.last_step()
    }

    /// The chunk, or piece, that the slot before sends at `step`.
    pub(super) fn received(&self, phase: Phase, step: u32) -> u32 {
        let (schedule, position) = self.line(phase);
        schedule.received(phase, position, step)
    }

    /// Contributions in a sum that travels at `step`, missing slots counted.
    pub(super) fn contributions(&self, phase: Phase, step: u32) -> u32 {
        match phase.axis() {
            Axis::Row => step + 1,
            Axis::Column => (step + 1).saturating_mul(self.grid.columns),
        }
    }

    /// What travels in `phase` for a row chunk, as a range of it, or for a piece, as a range of the owned chunk: elements
    /// or blocks.
    pub(super) fn units(&self, phase: Phase, chunk: u32) -> Range<usize> {
        match phase {
            Phase::ScaleReduce | Phase::ScaleGather | Phase::ScatterReduce | Phase::AllGather => {
                0..self.row.units(phase, chunk)
            }
            Phase::ColumnScaleReduce | Phase::ColumnScaleGather => self.piece(chunk),
            Phase::ColumnScatterReduce | Phase::ColumnAllGather => {
                let (len, blocks) = (self.row.chunk(self.owned).len(), self.piece(chunk));
                (blocks.start * BLOCK).min(len)..(blocks.end * BLOCK).min(len)
            }
        }
    }

    /// Blocks of piece `k`.
    pub(super) fn piece(&self, k: u32) -> Range<usize> {
        let blocks = quant::blocks(self.row.chunk(self.owned).len());
        quant::chunk_range(crate::ids::ChunkIndex(k), self.grid.rows, blocks)
    }

    pub(super) fn segments(&self, phase: Phase, chunk: u32) -> u32 {
        let segments = self.units(phase, chunk).len().div_ceil(self.row.segment);
        u32::try_from(segments).unwrap_or(u32::MAX)
    }

    /// The units of a segment, in the coordinates of [`Self::units`].
    pub(super) fn range(&self, phase: Phase, chunk: u32, segment: u32) -> Range<usize> {
        let units = self.units(phase, chunk);
        let at = |g: usize| {
            units
                .start
                .saturating_add(g.saturating_mul(self.row.segment))
                .min(units.end)
        };
        at(segment as usize)..at((segment as usize).saturating_add(1))
    }

    /// The row chunk whose maxima a segment of the scale phases holds, and which of its blocks.
    pub(super) fn blocks(&self, s: &Segment) -> (u32, Range<usize>) {
        let range = self.range(s.phase, s.chunk, s.segment);
        match s.phase.axis() {
            Axis::Row => (s.chunk, range),
            Axis::Column => (self.owned, range),
        }
    }

    /// Segments that this slot receives in a phase.
    pub(super) fn expected(&self, phase: Phase) -> usize {
        (0..=self.last_step(phase))
            .map(|step| self.segments(phase, self.received(phase, step)) as usize)
            .sum()
    }

    /// Segments of all pieces of the owned chunk.
    pub(super) fn piece_segments(&self, phase: Phase) -> u32 {
        (0..self.grid.rows).map(|k| self.segments(phase, k)).sum()
    }
}
