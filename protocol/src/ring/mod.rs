//! Ring all-reduce of one slot, pure: segments in, segments out (PROTOCOL section 6).
//!
//! A slot's machine knows neither who serves the other slots nor how its segments travel. Whoever drives it delivers each
//! predecessor's segment to [`Ring::receive`] and carries away what lands in the outbox.

mod contribution;
mod grid;
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
use crate::pack::{self, PackError};
use crate::quant::{self, BLOCK, Q8};
use std::collections::BTreeSet;

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
            mean: vec![0.0; s.elements],
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
        (self.missing == 0 && self.early.is_empty()).then(|| Reduced {
            mean: self.mean.clone(),
            residual: self
                .own
                .residual(self.config.wire, &self.config.schedule, &self.scales),
        })
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
        let schedule = self.config.schedule;
        for g in 0..schedule.segments(Phase::ScatterReduce, chunk) {
            let sum = self.own_part(chunk, g);
            if schedule.slots == 1 {
                self.finish_segment(chunk, g, &sum, out);
            } else {
                out.push(self.reduce_segment(0, chunk, g, &sum));
            }
        }
    }

    fn take_scatter_reduce(&mut self, s: Segment, out: &mut Vec<Segment>) -> Result<(), RingError> {
        let incoming = self.decode_sum(&s)?;
        let own = self.own_part(s.chunk, s.segment);
        let sum = incoming.plus(&own);
        if s.step < self.config.schedule.last_step() {
            out.push(self.reduce_segment(s.step + 1, s.chunk, s.segment, &sum));
        } else {
            self.finish_segment(s.chunk, s.segment, &sum, out);
        }
        Ok(())
    }

    /// The owner divides once and sends the mean on its way.
    fn finish_segment(&mut self, chunk: u32, g: u32, sum: &Sum, out: &mut Vec<Segment>) {
        let schedule = self.config.schedule;
        let range = schedule.segment_range(Phase::AllGather, chunk, g);
        let total = quant::weight_f32(self.config.total_weight);
        let mean = match sum {
            Sum::Float(v) => {
                let mut mean = v.clone();
                quant::divide_in_place(&mut mean, total);
                mean
            }
            Sum::Int(v) => quant::mean(v, self.segment_scales(chunk, &range), total),
        };
        let (payload, applied) = match self.config.wire {
            Wire::F32 => (f32_bytes(&mean), mean),
            Wire::Q8 => {
                let q8 = Q8::encode(&mean);
                (q8.to_bytes(), q8.decode())
            }
        };
        self.put_mean(chunk, &range, &applied);
        if schedule.slots > 1 {
            out.push(Segment {
                phase: Phase::AllGather,
                step: 0,
                chunk,
                segment: g,
                payload,
            });
        }
    }

    fn take_all_gather(&mut self, s: Segment, out: &mut Vec<Segment>) -> Result<(), RingError> {
        let range = self.config.schedule.segment_range(s.phase, s.chunk, s.segment);
        let decoded = match self.config.wire {
            Wire::F32 => Some(f32_values(&s.payload)),
            Wire::Q8 => Q8::from_bytes(&s.payload, range.len()).ok().map(|q8| q8.decode()),
        };
        let bad = |element| RingError::Value {
            phase: s.phase,
            step: s.step,
            segment: s.segment,
            element,
        };
        let values = decoded.ok_or_else(|| bad(0))?;
        if let Some(element) = values.iter().position(|v| !v.is_finite()) {
            return Err(bad(element));
        }
        self.put_mean(s.chunk, &range, &values);
        if s.step < self.config.schedule.last_step() {
            out.push(Segment {
                step: s.step + 1,
                ..s
            });
        }
        Ok(())
    }

    fn put_mean(&mut self, chunk: u32, range: &std::ops::Range<usize>, values: &[f32]) {
        let start = self.config.schedule.chunk(chunk).start;
        self.mean[start + range.start..start + range.end].copy_from_slice(values);
    }

    fn own_part(&self, chunk: u32, g: u32) -> Sum {
        let schedule = &self.config.schedule;
        let range = schedule.segment_range(Phase::ScatterReduce, chunk, g);
        let start = schedule.chunk(chunk).start;
        let flat = start + range.start..start + range.end;
        match self.config.wire {
            Wire::F32 => Sum::Float(self.own.weighted(flat)),
            Wire::Q8 => Sum::Int(quant::widen(
                &self.own.integers(flat, self.segment_scales(chunk, &range)),
            )),
        }
    }

    /// Scales of the blocks of a segment: segments are whole blocks, save the last.
    fn segment_scales(&self, chunk: u32, range: &std::ops::Range<usize>) -> &[f32] {
        self.scales[chunk as usize]
            .as_deref()
            .and_then(|s| s.get(range.start / BLOCK..range.end.div_ceil(BLOCK)))
            .unwrap_or(&[])
    }

    fn decode_sum(&self, s: &Segment) -> Result<Sum, RingError> {
        let bad = |element| RingError::Value {
            phase: s.phase,
            step: s.step,
            segment: s.segment,
            element,
        };
        let units = self
            .config
            .schedule
            .segment_range(s.phase, s.chunk, s.segment)
            .len();
        match self.config.wire {
            Wire::F32 => {
                let values = f32_values(&s.payload);
                match values.iter().position(|v| !v.is_finite()) {
                    Some(element) => Err(bad(element)),
                    None => Ok(Sum::Float(values)),
                }
            }
            Wire::Q8 => pack::unpack(&s.payload, s.step + 1, units)
                .map(Sum::Int)
                .map_err(|e| match e {
                    PackError::Range { element, .. } => bad(element),
                    PackError::Length { .. } | PackError::Padding => bad(units),
                }),
        }
    }

    fn reduce_segment(&self, step: u32, chunk: u32, segment: u32, sum: &Sum) -> Segment {
        let payload = match sum {
            Sum::Float(v) => f32_bytes(v),
            Sum::Int(v) => pack::pack(v, step + 1),
        };
        Segment {
            phase: Phase::ScatterReduce,
            step,
            chunk,
            segment,
            payload,
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

/// A partial sum.
enum Sum {
    Float(Vec<f32>),
    Int(Vec<i32>),
}

impl Sum {
    /// Incoming + own, in this order.
    fn plus(self, own: &Self) -> Self {
        match (self, own) {
            (Self::Float(mut a), Self::Float(b)) => {
                quant::add_in_place(&mut a, b);
                Self::Float(a)
            }
            (Self::Int(mut a), Self::Int(b)) => {
                a.iter_mut().zip(b).for_each(|(x, y)| *x += *y);
                Self::Int(a)
            }
            (other, _) => other,
        }
    }
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
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
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
