//! Means that an earlier view has finished: taken over, passed on where they are lacking, given to the next view.

use super::Ring;
use crate::message::Phase;
use crate::quant::{Form, blocks};
use crate::ring::hop::{float, int};
use crate::ring::{Carried, RingError, Segment};

impl Ring {
    /// Takes over what this slot holds. A mean that does not fit is not taken, and is missed until the ring is given up.
    pub(super) fn take_over(&mut self, carried: Carried) {
        let Carried { means, left } = carried;
        if self.has_scales() {
            for chunk in self.kept.0.keys() {
                // What is not known is lost: the chunk is not quantised again.
                self.own.part(self.config.schedule.chunk(*chunk)).fill(0.0);
            }
        }
        for (chunk, mut left) in left {
            let room = self.config.schedule.chunk(chunk);
            if self.has_scales() && left.len() == room.len() {
                self.own.part(room).swap_with_slice(&mut left);
            }
        }
        for (chunk, mean) in means {
            let fits = self.kept.contains(chunk)
                && !self.kept.is_lacking(chunk, self.config.slot)
                && self.mean_segments(chunk) as usize == mean.segments.len();
            if !fits {
                continue;
            }
            for (segment, payload) in (0u32..).zip(mean.segments) {
                let s = Segment {
                    phase: Phase::AllGather,
                    step: 0,
                    chunk,
                    segment,
                    payload,
                };
                if s.payload.len() == self.payload_len(&s) && self.read_mean(&s).is_ok() {
                    self.missing -= 1;
                }
            }
        }
    }

    /// Sends every kept mean that is held here and lacking at the next slot.
    pub(super) fn send_kept(&self, out: &mut Vec<Segment>) {
        for chunk in self.kept.0.keys().copied() {
            let Some(step) = self.kept_step(chunk).filter(|_| self.is_finished_chunk(chunk)) else {
                continue;
            };
            let segments = self.mean_payloads(chunk, self.mean_so_far());
            out.extend((0u32..).zip(segments).map(|(segment, payload)| Segment {
                phase: Phase::AllGather,
                step,
                chunk,
                segment,
                payload,
            }));
        }
    }

    /// The step at which a kept mean goes on to the next slot; `None` where it does not.
    pub(super) fn kept_step(&self, chunk: u32) -> Option<u32> {
        let slots = self.config.schedule.slots;
        let next = (self.config.slot + 1) % slots.max(1);
        let step = (next + slots - chunk % slots.max(1)) % slots.max(1);
        self.kept.is_lacking(chunk, next).then_some(step)
    }

    /// Whether the chunk's mean is here, whole.
    pub(in crate::ring) fn is_finished_chunk(&self, chunk: u32) -> bool {
        let gathered = self.gathered.get(chunk as usize).copied();
        gathered == Some(self.mean_segments(chunk))
    }

    fn mean_segments(&self, chunk: u32) -> u32 {
        self.config.schedule.segments(Phase::AllGather, chunk)
    }

    /// Where means are while the ring runs.
    fn mean_so_far(&self) -> &[f32] {
        match Form::of(self.config.wire) {
            Form::Floats(_) => self.own.left(),
            Form::Integers(_) => &self.mean,
        }
    }

    /// A finished chunk's segments as they travelled, from the ring's result where that was taken.
    pub(in crate::ring) fn segments_of(&self, chunk: u32, result: Option<&[f32]>) -> Option<Vec<Vec<u8>>> {
        let mean = result.unwrap_or_else(|| self.mean_so_far());
        let whole = self.is_finished_chunk(chunk) && mean.len() == self.config.schedule.elements;
        whole.then(|| self.mean_payloads(chunk, mean))
    }

    /// What rounding left over of this slot's own part of a chunk, while the ring's result was not taken.
    pub(in crate::ring) fn left_of(&self, chunk: u32) -> Option<&[f32]> {
        let left = self.own.left().get(self.config.schedule.chunk(chunk));
        left.filter(|_| self.has_scales())
    }

    /// Encodes a mean as it travels: values that were read are their own encoding, integers stand under the scales they came
    /// with.
    fn mean_payloads(&self, chunk: u32, mean: &[f32]) -> Vec<Vec<u8>> {
        (0..self.mean_segments(chunk))
            .map(|g| {
                let part = self.part(chunk, g);
                let values = &mean[part.flat];
                match Form::of(self.config.wire) {
                    Form::Floats(float) => float::encode(float, values),
                    Form::Integers(_) => {
                        let scales = self.mean_scales[chunk as usize].get(part.blocks);
                        int::encode_under(values, scales.unwrap_or(&[]))
                    }
                }
            })
            .collect()
    }

    /// Takes a segment of a mean.
    pub(super) fn read_mean(&mut self, s: &Segment) -> Result<(), RingError> {
        let flat = self.part(s.chunk, s.segment).flat;
        let read = match Form::of(self.config.wire) {
            Form::Floats(float) => float::read(float, &s.payload, self.own.part(flat)),
            Form::Integers(_) => int::read(&s.payload, &mut self.mean[flat]),
        };
        read.map_err(|bad| RingError::Value {
            phase: s.phase,
            step: s.step,
            segment: s.segment,
            element: bad.0,
        })?;
        self.gather(s.chunk, s.segment, &s.payload);
        Ok(())
    }

    /// Notes that a segment of a mean is here, and the scales it stands under.
    pub(super) fn gather(&mut self, chunk: u32, segment: u32, payload: &[u8]) {
        self.gathered[chunk as usize] += 1;
        if !self.has_scales() {
            return;
        }
        let (part, elements) = (self.part(chunk, segment), self.config.schedule.chunk(chunk).len());
        let scales = &mut self.mean_scales[chunk as usize];
        scales.resize(blocks(elements), 0.0);
        let tail = payload.get(part.flat.len()..).unwrap_or_default();
        for (to, scale) in scales[part.blocks].iter_mut().zip(tail.as_chunks::<4>().0) {
            *to = f32::from_le_bytes(*scale);
        }
    }
}
