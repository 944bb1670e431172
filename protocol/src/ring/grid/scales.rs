//! Block maxima, joined along the row, then along the column.

use super::GridRing;
use super::sum::read_maxima;
use crate::message::Phase;
use crate::quant::{self, Float, Form};
use crate::ring::hop::float;
use crate::ring::{RingError, Segment};

impl GridRing {
    pub(super) fn take_scale_reduce(&mut self, s: &Segment, out: &mut Vec<Segment>) -> Result<(), RingError> {
        let theirs = read_maxima(s)?;
        let (chunk, range) = self.shape.blocks(s);
        quant::max_in_place(&mut self.maxima[chunk as usize][range], &theirs);
        if s.step < self.shape.last_step(s.phase) {
            self.send_maxima_segment(s.phase, s.step + 1, s.chunk, s.segment, out);
        } else if s.phase == Phase::ScaleReduce {
            self.left.row_maxima -= 1;
            if self.left.row_maxima == 0 {
                self.send_maxima(Phase::ColumnScaleReduce, self.shape.row_index, out);
            }
        } else {
            self.send_maxima_segment(Phase::ColumnScaleGather, 0, s.chunk, s.segment, out);
            self.count_column_maxima(out);
        }
        Ok(())
    }

    pub(super) fn take_scale_gather(&mut self, s: Segment, out: &mut Vec<Segment>) -> Result<(), RingError> {
        let joined = read_maxima(&s)?;
        let (chunk, range) = self.shape.blocks(&s);
        self.maxima[chunk as usize][range].copy_from_slice(&joined);
        let (phase, step) = (s.phase, s.step);
        if step < self.shape.last_step(phase) {
            out.push(Segment { step: step + 1, ..s });
        }
        if phase == Phase::ColumnScaleGather {
            self.count_column_maxima(out);
        } else {
            let seen = (0..self.shape.segments(phase, chunk))
                .filter(|g| self.seen.contains(&(phase, step, *g)))
                .count();
            if seen + 1 == self.shape.segments(phase, chunk) as usize {
                self.join_scales(chunk, out);
            }
        }
        Ok(())
    }

    /// Once the column has joined the owned chunk's maxima they go around the row.
    fn count_column_maxima(&mut self, out: &mut Vec<Segment>) {
        self.left.column_maxima -= 1;
        if self.left.column_maxima == 0 {
            let owned = self.shape.owned;
            self.send_maxima(Phase::ScaleGather, owned, out);
            self.join_scales(owned, out);
        }
    }

    fn join_scales(&mut self, chunk: u32, out: &mut Vec<Segment>) {
        if let Form::Integers(levels) = Form::of(self.wire) {
            self.scales[chunk as usize] = Some(quant::scales(&self.maxima[chunk as usize], levels));
        }
        if chunk == self.shape.column {
            self.start_chunk(chunk, out);
        }
    }

    pub(super) fn send_maxima(&self, phase: Phase, chunk: u32, out: &mut Vec<Segment>) {
        for g in 0..self.shape.segments(phase, chunk) {
            self.send_maxima_segment(phase, 0, chunk, g, out);
        }
    }

    fn send_maxima_segment(&self, phase: Phase, step: u32, chunk: u32, segment: u32, out: &mut Vec<Segment>) {
        let mut s = Segment {
            phase,
            step,
            chunk,
            segment,
            payload: Vec::new(),
        };
        let (row_chunk, range) = self.shape.blocks(&s);
        s.payload = float::encode(Float::F32, &self.maxima[row_chunk as usize][range]);
        out.push(s);
    }
}
