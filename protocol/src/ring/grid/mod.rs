//! All-reduce of one slot of a grid (PROTOCOL section 6): scatter-reduce along the row, all-reduce along the column on what
//! the row left here, all-gather along the row.
//!
//! Along a row of `b` slots the vector has `b` chunks, as in a ring. The chunk a slot owns is cut into `a` pieces of whole
//! quantisation blocks, piece k having blocks `[⌊k·B/a⌋, ⌊(k+1)·B/a⌋)` of B: they go around the column. Blocks restart at
//! the row chunk's start. At f32 the sum of a chunk is its rows' sums, each in row order from slot c on, added in column
//! order from row k on for piece k.

mod means;
mod scales;
mod shape;
mod sum;
mod sums;

use super::{Axis, Contribution, Grid, Place, Plan, Reduced, RingError, Segment};
use crate::job::spec::Wire;
use crate::message::Phase;
use crate::pack;
use crate::quant::{self, Form, Q8};
use shape::Shape;
use std::collections::BTreeSet;
use sum::Sum;

/// Segments of what is sent at a place.
pub(super) fn segments(plan: Plan, grid: Grid, place: Place) -> u32 {
    Shape::new(plan, grid, place.slot).segments(place.phase, place.chunk)
}

const PHASES_FLOATS: &[Phase] = &[
    Phase::ScatterReduce,
    Phase::ColumnScatterReduce,
    Phase::ColumnAllGather,
    Phase::AllGather,
];
const PHASES_INTEGERS: &[Phase] = &[
    Phase::ScaleReduce,
    Phase::ColumnScaleReduce,
    Phase::ColumnScaleGather,
    Phase::ScaleGather,
    Phase::ScatterReduce,
    Phase::ColumnScatterReduce,
    Phase::ColumnAllGather,
    Phase::AllGather,
];

/// The machine of one slot of a grid.
#[derive(Debug)]
pub struct GridRing {
    shape: Shape,
    wire: Wire,
    total_weight: u64,
    delta: Vec<f32>,
    weight: f32,
    /// Block maxima joined so far, and block scales once joined over the whole grid, by row chunk (integers).
    maxima: Vec<Vec<f32>>,
    scales: Vec<Option<Vec<f32>>>,
    /// The row's sum of the chunk this slot owns, and which of its segments are there.
    row_sum: Sum,
    mean: Vec<f32>,
    /// The owned chunk's mean as it travels (integers).
    encoded: Q8,
    left: Left,
    seen: BTreeSet<(Phase, u32, u32)>,
    /// Segments that came before what they are added to.
    early: Vec<Segment>,
    missing: usize,
}

/// Segments of the owned chunk that each stage still waits for.
#[derive(Debug)]
struct Left {
    row_maxima: u32,
    column_maxima: u32,
    row_sum: u32,
    column_mean: u32,
}

impl GridRing {
    /// A slot's machine with its contribution Δ × weight; a missing slot's is zeros of weight 0.
    #[must_use]
    pub fn new(plan: Plan, grid: Grid, slot: u32, own: Contribution) -> Self {
        let shape = Shape::new(plan, grid, slot);
        let (row, owned) = (shape.row, shape.owned);
        let (delta, weight) = own.into_parts();
        let phases = match Form::of(plan.wire) {
            Form::Floats(_) => PHASES_FLOATS,
            Form::Integers(_) => PHASES_INTEGERS,
        };
        let maxima = (0..grid.columns)
            .map(|c| match Form::of(plan.wire) {
                Form::Floats(_) => Vec::new(),
                Form::Integers(_) => quant::block_absmax(&delta[row.chunk(c)], weight),
            })
            .collect();
        let len = row.chunk(owned).len();
        let encoded = match Form::of(plan.wire) {
            Form::Floats(_) => Q8::default(),
            Form::Integers(_) => Q8 {
                integers: vec![0; len],
                scales: vec![0.0; quant::blocks(len)],
            },
        };
        Self {
            maxima,
            scales: vec![None; grid.columns as usize],
            row_sum: Sum::zeros(Form::of(plan.wire), len),
            mean: vec![0.0; plan.elements],
            encoded,
            left: Left {
                row_maxima: row.segments(Phase::ScaleReduce, owned),
                column_maxima: shape.piece_segments(Phase::ColumnScaleGather),
                row_sum: row.segments(Phase::ScatterReduce, owned),
                column_mean: shape.piece_segments(Phase::ColumnAllGather),
            },
            seen: BTreeSet::new(),
            early: Vec::new(),
            missing: phases.iter().map(|p| shape.expected(*p)).sum(),
            wire: plan.wire,
            total_weight: plan.total_weight,
            delta,
            weight,
            shape,
        }
    }

    /// Sends what needs nothing from others.
    pub fn start(&mut self, out: &mut Vec<Segment>) {
        let chunk = self.shape.column;
        match Form::of(self.wire) {
            Form::Floats(_) => self.start_chunk(chunk, out),
            Form::Integers(_) => self.send_maxima(Phase::ScaleReduce, chunk, out),
        }
    }

    /// Takes a segment from the slot before, in the row or in the column.
    ///
    /// # Errors
    /// What is wrong with it, or with an earlier one that it releases. The sum cannot be finished then.
    pub fn receive(&mut self, segment: Segment, out: &mut Vec<Segment>) -> Result<(), RingError> {
        self.check(&segment)?;
        self.early.push(segment);
        while let Some(at) = self.early.iter().position(|s| self.is_ready(s)) {
            // In the order they came: what goes out then has its order too.
            let segment = self.early.remove(at);
            self.take(segment, out)?;
        }
        Ok(())
    }

    /// The result, once every segment has come.
    #[must_use]
    pub fn finish(&self) -> Option<Reduced> {
        (self.missing == 0 && self.early.is_empty()).then(|| Reduced {
            mean: self.mean.clone(),
            residual: self.residual(),
        })
    }

    /// What rounding left over under the joined scales; zeros for floats.
    fn residual(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.delta.len()];
        let Form::Integers(levels) = Form::of(self.wire) else {
            return out;
        };
        for (c, scales) in (0u32..).zip(&self.scales) {
            let Some(scales) = scales else { continue };
            let chunk = self.shape.row.chunk(c);
            let delta = &self.delta[chunk.clone()];
            let integers = quant::quantise(delta, self.weight, scales, levels);
            out[chunk].copy_from_slice(&quant::residual(delta, self.weight, &integers, scales));
        }
        out
    }

    /// The line whose segments it waits for: the first stage that is not over says it.
    #[must_use]
    pub fn waits_along(&self) -> Axis {
        let left = &self.left;
        let scales = matches!(Form::of(self.wire), Form::Integers(_));
        let stages = [
            (scales && left.row_maxima > 0, Axis::Row),
            (scales && left.column_maxima > 0, Axis::Column),
            (left.row_sum > 0, Axis::Row),
            (left.column_mean > 0, Axis::Column),
        ];
        let first = stages.iter().find(|(waits, _)| *waits);
        first.map_or(Axis::Row, |(_, axis)| *axis)
    }

    /// Segments still to come.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.missing
    }

    /// Refuses what the schedule does not expect, without looking into the payload.
    pub(super) fn check(&self, s: &Segment) -> Result<(), RingError> {
        let Segment {
            phase,
            step,
            chunk,
            segment,
            ..
        } = *s;
        let phases = match Form::of(self.wire) {
            Form::Floats(_) => PHASES_FLOATS,
            Form::Integers(_) => PHASES_INTEGERS,
        };
        let expected = phases.contains(&phase)
            && step <= self.shape.last_step(phase)
            && chunk == self.shape.received(phase, step)
            && segment < self.shape.segments(phase, chunk);
        if !expected {
            return Err(RingError::Unexpected {
                phase,
                step,
                chunk,
                segment,
            });
        }
        let place = (phase, step, segment);
        let waits = |e: &Segment| (e.phase, e.step, e.segment) == place;
        if self.seen.contains(&place) || self.early.iter().any(waits) {
            return Err(RingError::Twice { phase, step, segment });
        }
        let (got, want) = (s.payload.len(), self.payload_len(s));
        if got != want {
            return Err(RingError::Length {
                phase,
                step,
                segment,
                got,
                want,
            });
        }
        Ok(())
    }

    fn payload_len(&self, s: &Segment) -> usize {
        let units = self.shape.range(s.phase, s.chunk, s.segment).len();
        match (Form::of(self.wire), s.phase) {
            (Form::Integers(levels), Phase::ScatterReduce | Phase::ColumnScatterReduce) => {
                let contributions = self.shape.contributions(s.phase, s.step);
                pack::packed_len(units, pack::width(levels, contributions))
            }
            (Form::Integers(_), Phase::AllGather | Phase::ColumnAllGather) => Q8::byte_len(units),
            (Form::Integers(_), _) => units * 4,
            (Form::Floats(float), _) => units * float.bytes(),
        }
    }

    /// Whether what the segment is added to is there. What a gather brings would stand where sums are still to be added: it waits
    /// until its own sum has passed here.
    fn is_ready(&self, s: &Segment) -> bool {
        let floats = matches!(Form::of(self.wire), Form::Floats(_));
        let has_scales = || floats || self.scales[s.chunk as usize].is_some();
        let begins_here = self.shape.line(s.phase).1 == s.chunk;
        match s.phase {
            Phase::ScaleReduce => true,
            Phase::ScatterReduce => has_scales(),
            Phase::ColumnScaleReduce => self.left.row_maxima == 0,
            Phase::ColumnScatterReduce => self.left.row_sum == 0,
            Phase::AllGather if begins_here => has_scales(),
            Phase::ColumnScaleGather if begins_here => self.left.row_maxima == 0,
            Phase::ColumnAllGather if begins_here => self.left.row_sum == 0,
            Phase::ScaleGather | Phase::AllGather | Phase::ColumnScaleGather | Phase::ColumnAllGather => {
                self.sums_of(s).all(|sum| self.seen.contains(&sum))
            }
        }
    }

    /// The segments of the sum that must have passed here before a gather's segment: the same one in a column; in a row, which
    /// gathers whole chunks, all of the chunk.
    fn sums_of(&self, s: &Segment) -> impl Iterator<Item = (Phase, u32, u32)> {
        let (line, position) = self.shape.line(s.phase);
        let reduce = s.phase.gathers();
        let sum = reduce.and_then(|phase| Some((phase, line.reduced_at(position, s.chunk)?)));
        let segments = match s.phase.axis() {
            Axis::Row => 0..self.shape.segments(s.phase, s.chunk),
            Axis::Column => s.segment..s.segment + 1,
        };
        sum.into_iter()
            .flat_map(move |(phase, step)| segments.clone().map(move |g| (phase, step, g)))
    }

    fn take(&mut self, s: Segment, out: &mut Vec<Segment>) -> Result<(), RingError> {
        let place = (s.phase, s.step, s.segment);
        match s.phase {
            Phase::ScaleReduce | Phase::ColumnScaleReduce => self.take_scale_reduce(&s, out)?,
            Phase::ScaleGather | Phase::ColumnScaleGather => self.take_scale_gather(s, out)?,
            Phase::ScatterReduce => self.take_row_sum(&s, out)?,
            Phase::ColumnScatterReduce => self.take_column_sum(&s, out)?,
            Phase::AllGather | Phase::ColumnAllGather => self.take_mean(s, out)?,
        }
        self.seen.insert(place);
        self.missing -= 1;
        Ok(())
    }
}
