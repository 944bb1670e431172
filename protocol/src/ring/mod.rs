//! Ring all-reduce of one slot, pure: segments in, segments out (PROTOCOL section 6).
//!
//! A slot's machine knows neither who serves the other slots nor how its segments travel. Whoever drives it delivers each
//! predecessor's segment to [`Ring::receive`] and carries away what lands in the outbox.

mod contribution;
mod grid;
mod hop;
mod layout;
mod machine;
mod order;
mod replay;
mod schedule;

pub use contribution::Contribution;
pub use grid::GridRing;
pub use layout::{Axis, Grid, Layout};
pub use machine::{Machine, Plan};
pub use order::{Costs, order};
pub use replay::{Part, replay, replay_in};
pub use schedule::Schedule;

use crate::job::spec::Wire;
use crate::message::Phase;
use crate::pack;
use crate::quant::{self, BLOCK, Q8};
use hop::BadElement;
use hop::float::{self, F32};
use hop::int::{self, Own};
use std::collections::BTreeSet;
use std::ops::Range;

/// What one slot needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Shape of the all-reduce.
    pub schedule: Schedule,
    /// This slot.
    pub slot: u32,
    /// Precision on the wire.
    pub wire: Wire,
    /// Σ of the manifest's weights.
    pub total_weight: u64,
}

/// A segment on its way to the next slot, or from the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Phase.
    pub phase: Phase,
    /// Step of the phase.
    pub step: u32,
    /// Chunk of the flat vector.
    pub chunk: u32,
    /// Segment of the chunk.
    pub segment: u32,
    /// Encoded elements.
    pub payload: Vec<u8>,
}

/// What is wrong with a segment; the predecessor's fault, unless the network doubles frames.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// Not what the schedule expects.
    #[error("{phase:?} step {step}: chunk {chunk} segment {segment} is not expected here")]
    Unexpected {
        /// Phase.
        phase: Phase,
        /// Step.
        step: u32,
        /// Chunk.
        chunk: u32,
        /// Segment.
        segment: u32,
    },
    /// Came before.
    #[error("{phase:?} step {step} segment {segment} came twice")]
    Twice {
        /// Phase.
        phase: Phase,
        /// Step.
        step: u32,
        /// Segment.
        segment: u32,
    },
    /// Wrong number of bytes.
    #[error("{phase:?} step {step} segment {segment} has {got} bytes in place of {want}")]
    Length {
        /// Phase.
        phase: Phase,
        /// Step.
        step: u32,
        /// Segment.
        segment: u32,
        /// Bytes received.
        got: usize,
        /// Bytes expected.
        want: usize,
    },
    /// A value that no honest sum can hold.
    #[error("{phase:?} step {step} segment {segment}: element {element} is not finite or out of bounds")]
    Value {
        /// Phase.
        phase: Phase,
        /// Step.
        step: u32,
        /// Segment.
        segment: u32,
        /// Element of the segment.
        element: usize,
    },
}

/// The mean of all contributions, and what this slot's rounding left over.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduced {
    /// Σ weight·Δ / Σ weight; the same bits at every slot.
    pub mean: Vec<f32>,
    /// (weighted Δ − integer·scale)/weight for q8; zeros for f32.
    pub residual: Vec<f32>,
}

/// The machine of one slot.
#[derive(Debug)]
pub struct Ring {
    config: Config,
    own: Contribution,
    /// Block scales of each chunk, once joined (q8).
    scales: Vec<Option<Vec<f32>>>,
    /// Segments of ScaleReduce and ScaleGather joined so far, by chunk.
    maxima: Vec<Vec<f32>>,
    /// The mean as it comes (q8). Floats need no room for it: it takes the place of what was added before.
    mean: Vec<f32>,
    seen: BTreeSet<(Phase, u32, u32)>,
    /// Segments that came before the scales they need.
    early: Vec<Segment>,
    missing: usize,
}

impl Ring {
    /// A slot's machine with its contribution Δ × weight.
    #[must_use]
    pub fn new(config: Config, own: Contribution) -> Self {
        let s = config.schedule;
        let phases: &[Phase] = match config.wire {
            Wire::F32 => &[Phase::ScatterReduce, Phase::AllGather],
            Wire::Q8 => &[
                Phase::ScaleReduce,
                Phase::ScaleGather,
                Phase::ScatterReduce,
                Phase::AllGather,
            ],
        };
        let maxima = (0..s.slots)
            .map(|c| match config.wire {
                Wire::F32 => Vec::new(),
                Wire::Q8 => own.absmax(s.chunk(c)),
            })
            .collect();
        Self {
            scales: vec![None; s.slots as usize],
            maxima,
            mean: match config.wire {
                Wire::F32 => Vec::new(),
                Wire::Q8 => vec![0.0; s.elements],
            },
            seen: BTreeSet::new(),
            early: Vec::new(),
            missing: s.total_received(phases, config.slot),
            config,
            own,
        }
    }

    /// Sends what needs nothing from others.
    pub fn start(&mut self, out: &mut Vec<Segment>) {
        let slot = self.config.slot;
        match self.config.wire {
            Wire::F32 => self.start_chunk(slot, out),
            // Alone, nothing can have come early.
            Wire::Q8 if self.config.schedule.slots == 1 => self.scales_joined(0, out).unwrap_or_default(),
            Wire::Q8 => self.send_maxima(Phase::ScaleReduce, 0, slot, out),
        }
    }

    /// Takes a predecessor's segment.
    ///
    /// # Errors
    /// What is wrong with it, or with an earlier one that it releases. The sum cannot be finished then: a new view starts over.
    pub fn receive(&mut self, segment: Segment, out: &mut Vec<Segment>) -> Result<(), RingError> {
        self.check(&segment)?;
        if self.needs_scales(&segment) {
            self.early.push(segment);
            return Ok(());
        }
        self.take(segment, out)
    }

    /// The result, once every segment has come.
    #[must_use]
    pub fn finish(&self) -> Option<Reduced> {
        self.is_finished().then(|| match self.config.wire {
            Wire::F32 => Reduced {
                mean: self.own.left().to_vec(),
                residual: vec![0.0; self.own.len()],
            },
            Wire::Q8 => Reduced {
                mean: self.mean.clone(),
                residual: self.own.left().to_vec(),
            },
        })
    }

    /// As [`Self::finish`], without copying: the machine is of no use afterwards.
    pub fn take_result(&mut self) -> Option<Reduced> {
        self.is_finished().then(|| {
            let (left, elements) = (self.own.take_left(), self.config.schedule.elements);
            match self.config.wire {
                Wire::F32 => Reduced {
                    mean: left,
                    residual: vec![0.0; elements],
                },
                Wire::Q8 => Reduced {
                    mean: std::mem::take(&mut self.mean),
                    residual: left,
                },
            }
        })
    }

    fn is_finished(&self) -> bool {
        self.missing == 0 && self.early.is_empty()
    }

    /// Segments still to come.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.missing
    }

    /// Refuses what the schedule does not expect, without looking into the payload.
    fn check(&self, s: &Segment) -> Result<(), RingError> {
        let schedule = &self.config.schedule;
        let in_wire = match s.phase {
            Phase::ScatterReduce | Phase::AllGather => true,
            Phase::ScaleReduce | Phase::ScaleGather => self.config.wire == Wire::Q8,
            Phase::ColumnScaleReduce
            | Phase::ColumnScaleGather
            | Phase::ColumnScatterReduce
            | Phase::ColumnAllGather => false,
        };
        let expected = in_wire
            && schedule.slots > 1
            && s.step <= schedule.last_step()
            && s.chunk == schedule.received(s.phase, self.config.slot, s.step)
            && s.segment < schedule.segments(s.phase, s.chunk);
        let Segment {
            phase,
            step,
            chunk,
            segment,
            ..
        } = *s;
        if !expected {
            return Err(RingError::Unexpected {
                phase,
                step,
                chunk,
                segment,
            });
        }
        if self.seen.contains(&(phase, step, segment)) || self.early.iter().any(|e| same_place(e, s)) {
            return Err(RingError::Twice { phase, step, segment });
        }
        let want = self.payload_len(s);
        if s.payload.len() != want {
            return Err(RingError::Length {
                phase,
                step,
                segment,
                got: s.payload.len(),
                want,
            });
        }
        Ok(())
    }

    fn payload_len(&self, s: &Segment) -> usize {
        let units = self
            .config
            .schedule
            .segment_range(s.phase, s.chunk, s.segment)
            .len();
        match (self.config.wire, s.phase) {
            (Wire::Q8, Phase::ScatterReduce) => pack::packed_len(units, pack::width(s.step + 1)),
            (Wire::Q8, Phase::AllGather) => Q8::byte_len(units),
            _ => units * 4,
        }
    }

    fn needs_scales(&self, s: &Segment) -> bool {
        self.config.wire == Wire::Q8
            && s.phase == Phase::ScatterReduce
            && self.scales[s.chunk as usize].is_none()
    }

    fn take(&mut self, s: Segment, out: &mut Vec<Segment>) -> Result<(), RingError> {
        let place = (s.phase, s.step, s.segment);
        match s.phase {
            Phase::ScaleReduce => self.take_scale_reduce(s, out)?,
            Phase::ScaleGather => self.take_scale_gather(s, out)?,
            Phase::ScatterReduce => self.take_scatter_reduce(s, out)?,
            Phase::AllGather => self.take_all_gather(s, out)?,
            // Refused by `check`: a ring has no columns.
            Phase::ColumnScaleReduce
            | Phase::ColumnScaleGather
            | Phase::ColumnScatterReduce
            | Phase::ColumnAllGather => return Ok(()),
        }
        self.seen.insert(place);
        self.missing -= 1;
        Ok(())
    }

    fn take_scale_reduce(&mut self, s: Segment, out: &mut Vec<Segment>) -> Result<(), RingError> {
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

    fn take_scale_gather(&mut self, s: Segment, out: &mut Vec<Segment>) -> Result<(), RingError> {
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

    fn scales_joined(&mut self, chunk: u32, out: &mut Vec<Segment>) -> Result<(), RingError> {
        let scales = quant::scales(&self.maxima[chunk as usize]);
        self.scales[chunk as usize] = Some(scales);
        if chunk == self.config.slot {
            self.start_chunk(chunk, out);
        }
        let (ready, early) = std::mem::take(&mut self.early)
            .into_iter()
            .partition(|s| s.chunk == chunk);
        self.early = early;
        ready.into_iter().try_for_each(|segment| self.take(segment, out))
    }

    /// Sends one's own contribution to one's own chunk: step 0. Alone in the ring, it is the sum.
    fn start_chunk(&mut self, chunk: u32, out: &mut Vec<Segment>) {
        for g in 0..self.config.schedule.segments(Phase::ScatterReduce, chunk) {
            let part = self.part(chunk, g);
            if self.config.schedule.slots == 1 {
                self.finish_alone(&part);
                continue;
            }
            let payload = match self.config.wire {
                Wire::F32 => {
                    let weight = self.own.weight();
                    float::begin::<F32, 4>(self.own.part(part.flat), weight)
                }
                Wire::Q8 => int::begin(&mut self.own_integers(&part)),
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
        match self.config.wire {
            Wire::F32 => {
                let weight = self.own.weight();
                let delta = self.own.part(part.flat.clone());
                float::close_alone(delta, weight, total);
            }
            Wire::Q8 => {
                let mut mean = std::mem::take(&mut self.mean);
                let own = &mut self.own_integers(part);
                // Nothing came in that could be bad.
                let _ = int::close(None, 0, own, total, &mut mean[part.flat.clone()]);
                self.mean = mean;
            }
        }
    }

    fn take_scatter_reduce(&mut self, s: Segment, out: &mut Vec<Segment>) -> Result<(), RingError> {
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
        match self.config.wire {
            Wire::F32 => {
                let (weight, mut payload) = (self.own.weight(), s.payload);
                float::add::<F32, 4>(&mut payload, self.own.part(part.flat), weight)?;
                Ok(payload)
            }
            Wire::Q8 => int::add(&s.payload, s.step + 1, &mut self.own_integers(&part)),
        }
    }

    /// The owner adds the last part, divides once, keeps the mean as the others will read it, and sends it on its way.
    fn close(&mut self, s: Segment) -> Result<Vec<u8>, BadElement> {
        let part = self.part(s.chunk, s.segment);
        let total = quant::weight_f32(self.config.total_weight);
        match self.config.wire {
            Wire::F32 => {
                let (weight, mut payload) = (self.own.weight(), s.payload);
                float::close::<F32, 4>(&mut payload, self.own.part(part.flat), weight, total)?;
                Ok(payload)
            }
            Wire::Q8 => {
                let mut mean = std::mem::take(&mut self.mean);
                let own = &mut self.own_integers(&part);
                let to = &mut mean[part.flat.clone()];
                let payload = int::close(Some(&s.payload), s.step + 1, own, total, to);
                self.mean = mean;
                payload
            }
        }
    }

    fn take_all_gather(&mut self, mut s: Segment, out: &mut Vec<Segment>) -> Result<(), RingError> {
        let flat = self.part(s.chunk, s.segment).flat;
        let read = match self.config.wire {
            Wire::F32 => float::read::<F32, 4>(&mut s.payload, self.own.part(flat)),
            Wire::Q8 => int::read(&s.payload, &mut self.mean[flat]),
        };
        read.map_err(|BadElement(element)| RingError::Value {
            phase: s.phase,
            step: s.step,
            segment: s.segment,
            element,
        })?;
        if s.step < self.config.schedule.last_step() {
            out.push(Segment {
                step: s.step + 1,
                ..s
            });
        }
        Ok(())
    }

    /// Where a segment of elements lies.
    fn part(&self, chunk: u32, g: u32) -> Place {
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
    fn own_integers(&mut self, part: &Place) -> Own<'_> {
        let scales = self.scales[part.chunk as usize].as_deref();
        let weight = self.own.weight();
        Own {
            weight,
            scales: scales.and_then(|s| s.get(part.blocks.clone())).unwrap_or(&[]),
            delta: self.own.part(part.flat.clone()),
        }
    }

    fn send_maxima(&self, phase: Phase, step: u32, chunk: u32, out: &mut Vec<Segment>) {
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

/// A segment of elements: in the flat vector, and its blocks in its chunk.
struct Place {
    chunk: u32,
    flat: Range<usize>,
    blocks: Range<usize>,
}

fn same_place(a: &Segment, b: &Segment) -> bool {
    (a.phase, a.step, a.segment) == (b.phase, b.step, b.segment)
}

fn decode_maxima(s: &Segment) -> Result<Vec<f32>, RingError> {
    let values = f32_values(&s.payload);
    match values.iter().position(|v| !v.is_finite() || *v < 0.0) {
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

#[cfg(test)]
mod tests;
