//! The small ring of block maxima: shared scales for what is summed in integers.

use super::Ring;
use crate::message::Phase;
use crate::quant::{self, Form};
use crate::ring::{RingError, Segment};

impl Ring {
    pub(super) fn take_scale_reduce(&mut self, s: Segment, out: &mut Vec<Segment>) -> Result<(), RingError> {
        let theirs = decode_maxima(&s)?;
        let range = self.config.schedule.segment_range(s.phase, s.chunk, s.segment);
        let own = &mut self.maxima[s.chunk as usize][range];
        for (mine, other) in own.iter_mut().zip(&theirs) {
            *mine = mine.max(*other);
        }
        if s.step < self.config.schedule.last_step() {
            self.send_maxima_segment(Phase::ScaleReduce, s.step + 1, s.chunk, s.segment, out);
            return Ok(());
        }
        self.send_maxima_segment(Phase::ScaleGather, 0, s.chunk, s.segment, out);
        self.join_when_complete(Phase::ScaleReduce, &s, out)
    }

    pub(super) fn take_scale_gather(&mut self, s: Segment, out: &mut Vec<Segment>) -> Result<(), RingError> {
        let joined = decode_maxima(&s)?;
        let range = self.config.schedule.segment_range(s.phase, s.chunk, s.segment);
        self.maxima[s.chunk as usize][range].copy_from_slice(&joined);
        if s.step < self.config.schedule.last_step() {
            self.send_maxima_segment(Phase::ScaleGather, s.step + 1, s.chunk, s.segment, out);
        }
        self.join_when_complete(Phase::ScaleGather, &s, out)
    }

    /// Once the last segment of a chunk's joined maxima is here, its sums may start or go on.
    fn join_when_complete(
        &mut self,
        phase: Phase,
        s: &Segment,
        out: &mut Vec<Segment>,
    ) -> Result<(), RingError> {
        let all = self.config.schedule.segments(phase, s.chunk);
        let have = (0..all)
            .filter(|g| *g == s.segment || self.seen.contains(&(phase, s.step, *g)))
            .count();
        if have == all as usize {
            self.scales_joined(s.chunk, out)
        } else {
            Ok(())
        }
    }

    pub(super) fn scales_joined(&mut self, chunk: u32, out: &mut Vec<Segment>) -> Result<(), RingError> {
        if let Form::Integers(levels) = Form::of(self.config.wire) {
            self.scales[chunk as usize] = Some(quant::scales(&self.maxima[chunk as usize], levels));
        }
        if chunk == self.config.slot {
            self.start_chunk(chunk, out);
        }
        let (ready, early) = std::mem::take(&mut self.early)
            .into_iter()
            .partition(|s| s.chunk == chunk);
        self.early = early;
        ready.into_iter().try_for_each(|segment| self.take(segment, out))
    }

    pub(super) fn send_maxima(&self, phase: Phase, step: u32, chunk: u32, out: &mut Vec<Segment>) {
        for g in 0..self.config.schedule.segments(phase, chunk) {
            self.send_maxima_segment(phase, step, chunk, g, out);
        }
    }

    fn send_maxima_segment(&self, phase: Phase, step: u32, chunk: u32, segment: u32, out: &mut Vec<Segment>) {
        let range = self.config.schedule.segment_range(phase, chunk, segment);
        let payload = f32_bytes(&self.maxima[chunk as usize][range]);
        out.push(Segment {
            phase,
            step,
            chunk,
            segment,
            payload,
        });
    }
}

fn decode_maxima(s: &Segment) -> Result<Vec<f32>, RingError> {
    let values = f32_values(&s.payload);
    match values.iter().position(|v| !(0.0..=quant::MAX_SHARE).contains(v)) {
        Some(element) => Err(RingError::Value {
            phase: s.phase,
            step: s.step,
            segment: s.segment,
            element,
        }),
        None => Ok(values),
    }
}

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    quant::scales_to_bytes(values)
}

fn f32_values(bytes: &[u8]) -> Vec<f32> {
    bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect()
}
