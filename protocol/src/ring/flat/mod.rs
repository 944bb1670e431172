//! The machine of one slot of a ring.

mod kept;
mod scales;
mod sums;

use super::{Carried, Contribution, KeptChunks, Reduced, RingError, Schedule, Segment};
use crate::job::spec::Wire;
use crate::message::Phase;
use crate::pack;
use crate::quant::{Form, Q8};
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

/// The machine of one slot.
#[derive(Debug)]
pub struct Ring {
    config: Config,
    own: Contribution,
    /// Block scales of each chunk, once joined (integers).
    scales: Vec<Option<Vec<f32>>>,
    /// Segments of ScaleReduce and ScaleGather joined so far, by chunk.
    maxima: Vec<Vec<f32>>,
    /// The mean as it comes (integers). Floats need no room for it: it takes the place of what was added before.
    mean: Vec<f32>,
    /// Segments of each chunk's mean that are here, and the scales they stand under (integers).
    gathered: Vec<u32>,
    mean_scales: Vec<Vec<f32>>,
    /// What an earlier view has finished.
    kept: KeptChunks,
    seen: BTreeSet<(Phase, u32, u32)>,
    /// Segments that came before the scales they need.
    early: Vec<Segment>,
    missing: usize,
}

impl Ring {
    /// A slot's machine with its contribution Δ × weight.
    #[must_use]
    pub fn new(config: Config, own: Contribution) -> Self {
        Self::keeping(config, own, KeptChunks::default(), Carried::default())
    }

    /// The same where an earlier view has finished some chunks already, with what this slot brings of them.
    #[must_use]
    pub fn keeping(config: Config, mut own: Contribution, kept: KeptChunks, carried: Carried) -> Self {
        let s = config.schedule;
        let phases: &[Phase] = match Form::of(config.wire) {
            Form::Floats(_) => &[Phase::ScatterReduce, Phase::AllGather],
            Form::Integers(_) => &[
                Phase::ScaleReduce,
                Phase::ScaleGather,
                Phase::ScatterReduce,
                Phase::AllGather,
            ],
        };
        let maxima = (0..s.slots)
            .map(|c| match Form::of(config.wire) {
                Form::Floats(_) => Vec::new(),
                Form::Integers(_) if kept.contains(c) => Vec::new(),
                Form::Integers(_) => own.absmax(s.chunk(c)),
            })
            .collect();
        let mut ring = Self {
            scales: vec![None; s.slots as usize],
            gathered: vec![0; s.slots as usize],
            mean_scales: vec![Vec::new(); s.slots as usize],
            maxima,
            mean: match Form::of(config.wire) {
                Form::Floats(_) => Vec::new(),
                Form::Integers(_) => own.take_room(),
            },
            seen: BTreeSet::new(),
            early: Vec::new(),
            missing: missing(s, phases, config.slot, &kept),
            kept,
            config,
            own,
        };
        ring.take_over(carried);
        ring
    }

    /// Sends what needs nothing from others.
    pub fn start(&mut self, out: &mut Vec<Segment>) {
        let slot = self.config.slot;
        self.send_kept(out);
        if self.kept.contains(slot) {
            return;
        }
        match Form::of(self.config.wire) {
            Form::Floats(_) => self.start_chunk(slot, out),
            // Alone, nothing can have come early.
            Form::Integers(_) if self.config.schedule.slots == 1 => {
                self.scales_joined(0, out).unwrap_or_default()
            }
            Form::Integers(_) => self.send_maxima(Phase::ScaleReduce, 0, slot, out),
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
        self.is_finished().then(|| match Form::of(self.config.wire) {
            Form::Floats(_) => Reduced {
                mean: self.own.left().to_vec(),
                residual: vec![0.0; self.own.len()],
            },
            Form::Integers(_) => Reduced {
                mean: self.mean.clone(),
                residual: self.own.left().to_vec(),
            },
        })
    }

    /// As [`Self::finish`], without copying: the machine is of no use afterwards.
    pub fn take_result(&mut self) -> Option<Reduced> {
        self.is_finished().then(|| {
            let (left, elements) = (self.own.take_left(), self.config.schedule.elements);
            match Form::of(self.config.wire) {
                Form::Floats(_) => Reduced {
                    mean: left,
                    residual: vec![0.0; elements],
                },
                Form::Integers(_) => Reduced {
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
    pub(super) fn check(&self, s: &Segment) -> Result<(), RingError> {
        let schedule = &self.config.schedule;
        let in_wire = match s.phase {
            Phase::ScatterReduce | Phase::AllGather => true,
            Phase::ScaleReduce | Phase::ScaleGather => self.has_scales(),
            Phase::ColumnScaleReduce
            | Phase::ColumnScaleGather
            | Phase::ColumnScatterReduce
            | Phase::ColumnAllGather => false,
        };
        let expected = in_wire
            && schedule.slots > 1
            && self.is_step(s)
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
        if !self.is_due(s) {
            return Err(RingError::Early {
                phase,
                step,
                chunk,
                segment,
            });
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

    /// Whether the phase has such a step for the chunk here. A kept mean comes where it is lacking, even to its owner's slot: a
    /// step after the last.
    fn is_step(&self, s: &Segment) -> bool {
        let last = self.config.schedule.last_step();
        if !self.kept.contains(s.chunk) {
            return s.step <= last;
        }
        s.phase == Phase::AllGather && s.step <= last + 1 && self.kept.is_lacking(s.chunk, self.config.slot)
    }

    /// What a gather brings follows from what was taken and sent on here before. Taken earlier it would stand where this slot's
    /// own part is still to be added.
    fn is_due(&self, s: &Segment) -> bool {
        let Some(reduce) = s.phase.gathers().filter(|_| !self.kept.contains(s.chunk)) else {
            return true;
        };
        match self.config.schedule.reduced_at(self.config.slot, s.chunk) {
            Some(step) => self.seen.contains(&(reduce, step, s.segment)),
            None => {
                reduce == Phase::ScaleReduce || !self.has_scales() || self.scales[s.chunk as usize].is_some()
            }
        }
    }

    fn payload_len(&self, s: &Segment) -> usize {
        let units = self
            .config
            .schedule
            .segment_range(s.phase, s.chunk, s.segment)
            .len();
        match (Form::of(self.config.wire), s.phase) {
            (Form::Integers(levels), Phase::ScatterReduce) => {
                pack::packed_len(units, pack::width(levels, s.step + 1))
            }
            (Form::Integers(_), Phase::AllGather) => Q8::byte_len(units),
            (Form::Integers(_), _) => units * 4,
            (Form::Floats(float), _) => units * float.bytes(),
        }
    }

    fn needs_scales(&self, s: &Segment) -> bool {
        self.has_scales() && s.phase == Phase::ScatterReduce && self.scales[s.chunk as usize].is_none()
    }

    fn has_scales(&self) -> bool {
        matches!(Form::of(self.config.wire), Form::Integers(_))
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
}

/// Segments that slot `i` is to receive.
fn missing(s: Schedule, phases: &[Phase], i: u32, kept: &KeptChunks) -> usize {
    let steps = 0..s.slots.saturating_sub(1);
    let summed = phases
        .iter()
        .flat_map(|p| steps.clone().map(move |step| (*p, s.received(*p, i, step))))
        .filter(|(_, c)| !kept.contains(*c));
    // What is held comes off when it is taken over.
    let whole = kept.0.keys().map(|c| (Phase::AllGather, *c));
    summed.chain(whole).map(|(p, c)| s.segments(p, c) as usize).sum()
}

fn same_place(a: &Segment, b: &Segment) -> bool {
    (a.phase, a.step, a.segment) == (b.phase, b.step, b.segment)
}
