//! Sums that grow along the row, then along the column.

use super::GridRing;
use super::sum::Sum;
use crate::message::Phase;
use crate::quant::{BLOCK, Form};
use crate::ring::{RingError, Segment};
use std::ops::Range;

impl GridRing {
    /// Sends one's own contribution to one's own chunk: step 0.
    pub(super) fn start_chunk(&self, chunk: u32, out: &mut Vec<Segment>) {
        for g in 0..self.shape.segments(Phase::ScatterReduce, chunk) {
            let sum = self.own_part(chunk, g);
            out.push(self.sum_segment(Phase::ScatterReduce, 0, chunk, g, &sum));
        }
    }

    fn own_part(&self, chunk: u32, g: u32) -> Sum {
        let range = self.shape.range(Phase::ScatterReduce, chunk, g);
        let start = self.shape.row.chunk(chunk).start;
        let flat = start + range.start..start + range.end;
        Sum::own(
            Form::of(self.wire),
            &self.delta[flat],
            self.weight,
            self.block_scales(chunk, &range),
        )
    }

    pub(super) fn block_scales(&self, chunk: u32, range: &Range<usize>) -> &[f32] {
        self.scales[chunk as usize]
            .as_deref()
            .and_then(|s| s.get(range.start / BLOCK..range.end.div_ceil(BLOCK)))
            .unwrap_or(&[])
    }

    pub(super) fn take_row_sum(&mut self, s: &Segment, out: &mut Vec<Segment>) -> Result<(), RingError> {
        let own = self.own_part(s.chunk, s.segment);
        let sum = self.read_sum(s)?.plus(&own);
        if s.step < self.shape.last_step(s.phase) {
            out.push(self.sum_segment(s.phase, s.step + 1, s.chunk, s.segment, &sum));
            return Ok(());
        }
        let range = self.shape.range(s.phase, s.chunk, s.segment);
        self.row_sum.put(range.start, &sum);
        self.left.row_sum -= 1;
        if self.left.row_sum == 0 {
            let piece = self.shape.row_index;
            for g in 0..self.shape.segments(Phase::ColumnScatterReduce, piece) {
                let range = self.shape.range(Phase::ColumnScatterReduce, piece, g);
                let sum = self.row_sum.slice(range);
                out.push(self.sum_segment(Phase::ColumnScatterReduce, 0, piece, g, &sum));
            }
        }
        Ok(())
    }

    pub(super) fn take_column_sum(&mut self, s: &Segment, out: &mut Vec<Segment>) -> Result<(), RingError> {
        let range = self.shape.range(s.phase, s.chunk, s.segment);
        let own = self.row_sum.slice(range.clone());
        let sum = self.read_sum(s)?.plus(&own);
        if s.step < self.shape.last_step(s.phase) {
            out.push(self.sum_segment(s.phase, s.step + 1, s.chunk, s.segment, &sum));
            return Ok(());
        }
        let payload = self.divide(&range, sum);
        out.push(Segment {
            phase: Phase::ColumnAllGather,
            step: 0,
            chunk: s.chunk,
            segment: s.segment,
            payload,
        });
        self.count_column_mean(out);
        Ok(())
    }

    fn read_sum(&self, s: &Segment) -> Result<Sum, RingError> {
        let units = self.shape.range(s.phase, s.chunk, s.segment).len();
        Sum::read(
            Form::of(self.wire),
            s,
            self.shape.contributions(s.phase, s.step),
            units,
        )
    }

    fn sum_segment(&self, phase: Phase, step: u32, chunk: u32, segment: u32, sum: &Sum) -> Segment {
        Segment {
            phase,
            step,
            chunk,
            segment,
            payload: sum.payload(self.shape.contributions(phase, step)),
        }
    }
}
