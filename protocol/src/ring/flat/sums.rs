//! Sums that grow along the ring, and means that go around it.

use super::Ring;
use crate::message::Phase;
use crate::quant::{self, BLOCK, Form, Levels};
use crate::ring::hop::int::{self, Own};
use crate::ring::hop::{BadElement, float};
use crate::ring::{RingError, Segment};
use std::ops::Range;

impl Ring {
    /// Sends one's own contribution to one's own chunk: step 0. Alone in the ring, it is the sum.
    pub(super) fn start_chunk(&mut self, chunk: u32, out: &mut Vec<Segment>) {
        for g in 0..self.config.schedule.segments(Phase::ScatterReduce, chunk) {
            let part = self.part(chunk, g);
            if self.config.schedule.slots == 1 {
                self.finish_alone(&part);
                continue;
            }
            let payload = match Form::of(self.config.wire) {
                Form::Floats(float) => {
                    let weight = self.own.weight();
                    let buffers = self.own.buffers().clone();
                    float::begin(float, self.own.part(part.flat), weight, &buffers)
                }
                Form::Integers(levels) => {
                    let most = self.config.schedule.last_step() + 1;
                    let buffers = self.own.buffers().clone();
                    int::begin(&mut self.own_integers(&part, levels), most, &buffers)
                }
            };
            out.push(Segment {
                phase: Phase::ScatterReduce,
                step: 0,
                chunk,
                segment: g,
                payload,
            });
        }
    }

    /// One's own part is the sum, and nobody else wants the mean.
    fn finish_alone(&mut self, part: &Place) {
        let total = quant::weight_f32(self.config.total_weight);
        match Form::of(self.config.wire) {
            Form::Floats(float) => {
                let weight = self.own.weight();
                let delta = self.own.part(part.flat.clone());
                float::close_alone(float, delta, weight, total);
            }
            Form::Integers(levels) => {
                let mut mean = std::mem::take(&mut self.mean);
                let own = &mut self.own_integers(part, levels);
                // Nothing came in that could be bad.
                let _ = int::close(&mut Vec::new(), 0, own, total, &mut mean[part.flat.clone()]);
                self.mean = mean;
            }
        }
    }

    pub(super) fn take_scatter_reduce(
        &mut self,
        s: Segment,
        out: &mut Vec<Segment>,
    ) -> Result<(), RingError> {
        let (phase, step, chunk, segment) = (s.phase, s.step, s.chunk, s.segment);
        let last = step == self.config.schedule.last_step();
        let added = if last { self.close(s) } else { self.add(s) };
        let payload = added.map_err(|BadElement(element)| RingError::Value {
            phase,
            step,
            segment,
            element,
        })?;
        let (phase, step) = if last {
            (Phase::AllGather, 0)
        } else {
            (phase, step + 1)
        };
        out.push(Segment {
            phase,
            step,
            chunk,
            segment,
            payload,
        });
        Ok(())
    }

    /// A partial sum with one's own part added.
    fn add(&mut self, s: Segment) -> Result<Vec<u8>, BadElement> {
        let part = self.part(s.chunk, s.segment);
        let (weight, mut payload) = (self.own.weight(), s.payload);
        match Form::of(self.config.wire) {
            Form::Floats(float) => {
                float::add(float, &mut payload, s.step + 1, self.own.part(part.flat), weight)?;
            }
            Form::Integers(levels) => {
                int::add(&mut payload, s.step + 1, &mut self.own_integers(&part, levels))?;
            }
        }
        Ok(payload)
    }

    /// The owner adds the last part, divides once, keeps the mean as the others will read it, and sends it on its way.
    fn close(&mut self, s: Segment) -> Result<Vec<u8>, BadElement> {
        let part = self.part(s.chunk, s.segment);
        let total = quant::weight_f32(self.config.total_weight);
        let (weight, mut payload) = (self.own.weight(), s.payload);
        match Form::of(self.config.wire) {
            Form::Floats(float) => {
                let delta = self.own.part(part.flat);
                float::close(float, &mut payload, s.step + 1, delta, (weight, total))?;
            }
            Form::Integers(levels) => {
                let mut mean = std::mem::take(&mut self.mean);
                let own = &mut self.own_integers(&part, levels);
                let to = &mut mean[part.flat.clone()];
                let closed = int::close(&mut payload, s.step + 1, own, total, to);
                self.mean = mean;
                closed?;
            }
        }
        self.gather(s.chunk, s.segment, &payload);
        Ok(payload)
    }

    pub(super) fn take_all_gather(&mut self, s: Segment, out: &mut Vec<Segment>) -> Result<(), RingError> {
        self.read_mean(&s)?;
        let last = self.config.schedule.last_step();
        let step = if self.kept.contains(s.chunk) {
            self.kept_step(s.chunk)
        } else {
            (s.step < last).then_some(s.step + 1)
        };
        match step {
            Some(step) => out.push(Segment { step, ..s }),
            None => self.own.buffers().give(s.payload),
        }
        Ok(())
    }

    /// Where a segment of elements lies.
    pub(super) fn part(&self, chunk: u32, g: u32) -> Place {
        let schedule = &self.config.schedule;
        let range = schedule.segment_range(Phase::ScatterReduce, chunk, g);
        let start = schedule.chunk(chunk).start;
        Place {
            chunk,
            flat: start + range.start..start + range.end,
            // Segments are whole blocks, save the last.
            blocks: range.start / BLOCK..range.end.div_ceil(BLOCK),
        }
    }

    /// One's own part of a segment under its joined scales.
    fn own_integers(&mut self, part: &Place, levels: Levels) -> Own<'_> {
        let scales = self.scales[part.chunk as usize].as_deref();
        let weight = self.own.weight();
        Own {
            weight,
            levels,
            scales: scales.and_then(|s| s.get(part.blocks.clone())).unwrap_or(&[]),
            delta: self.own.part(part.flat.clone()),
        }
    }
}

/// A segment of elements: in the flat vector, and its blocks in its chunk.
pub(super) struct Place {
    chunk: u32,
    pub(super) flat: Range<usize>,
    pub(super) blocks: Range<usize>,
}
