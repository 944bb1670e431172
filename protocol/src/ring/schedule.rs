//! Who sends which chunk when: the standard ring schedule (PROTOCOL section 6, as in Horovod and NCCL).

use crate::ids::ChunkIndex;
use crate::message::Phase;
use crate::quant::{blocks, chunk_range};
use std::ops::Range;

/// The shape of one all-reduce: N slots over L elements, cut into segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// N.
    pub slots: u32,
    /// L.
    pub elements: usize,
    /// Elements a segment.
    pub segment: usize,
}

impl Schedule {
    /// Elements of chunk `c`, as a range of the flat vector.
    #[must_use]
    pub fn chunk(&self, c: u32) -> Range<usize> {
        chunk_range(ChunkIndex(c), self.slots, self.elements)
    }

    /// What travels in `phase` for chunk `c`: elements, or blocks of them.
    #[must_use]
    pub fn units(&self, phase: Phase, c: u32) -> usize {
        let len = self.chunk(c).len();
        match phase {
            Phase::ScaleReduce | Phase::ScaleGather | Phase::ColumnScaleReduce | Phase::ColumnScaleGather => {
                blocks(len)
            }
            Phase::ScatterReduce | Phase::AllGather | Phase::ColumnScatterReduce | Phase::ColumnAllGather => {
                len
            }
        }
    }

    /// Segments of chunk `c` in `phase`; none for an empty chunk.
    #[must_use]
    pub fn segments(&self, phase: Phase, c: u32) -> u32 {
        u32::try_from(self.units(phase, c).div_ceil(self.segment)).unwrap_or(u32::MAX)
    }

    /// The units of segment `g`, as a range of the chunk.
    #[must_use]
    pub fn segment_range(&self, phase: Phase, c: u32, g: u32) -> Range<usize> {
        let units = self.units(phase, c);
        let start = (g as usize).saturating_mul(self.segment).min(units);
        start..start.saturating_add(self.segment).min(units)
    }

    /// The chunk that slot `i` receives at `step` of `phase`: the one its predecessor sends.
    #[must_use]
    pub fn received(&self, phase: Phase, i: u32, step: u32) -> u32 {
        let n = i64::from(self.slots);
        let offset = match phase {
            Phase::ScaleReduce
            | Phase::ScatterReduce
            | Phase::ColumnScaleReduce
            | Phase::ColumnScatterReduce => -1 - i64::from(step),
            Phase::ScaleGather | Phase::AllGather | Phase::ColumnScaleGather | Phase::ColumnAllGather => {
                -i64::from(step)
            }
        };
        u32::try_from((i64::from(i) + offset).rem_euclid(n)).unwrap_or(0)
    }

    /// The step at which slot `i` receives chunk `c` in the reduce phases; `None` for the chunk whose sum begins there.
    #[must_use]
    pub fn reduced_at(&self, i: u32, c: u32) -> Option<u32> {
        let n = i64::from(self.slots.max(1));
        let steps = (i64::from(i) - i64::from(c)).rem_euclid(n);
        u32::try_from(steps).ok()?.checked_sub(1)
    }

    /// The chunk that slot `i` owns after the reduce phases.
    #[must_use]
    pub fn owned(&self, i: u32) -> u32 {
        (i + 1) % self.slots
    }

    /// The last step of every phase.
    #[must_use]
    pub fn last_step(&self) -> u32 {
        self.slots.saturating_sub(2)
    }

    /// Segments that slot `i` receives over the given phases.
    #[must_use]
    pub fn total_received(&self, phases: &[Phase], i: u32) -> usize {
        phases
            .iter()
            .flat_map(|p| (0..self.slots.saturating_sub(1)).map(move |s| (*p, s)))
            .map(|(p, s)| self.segments(p, self.received(p, i, s)) as usize)
            .sum()
    }
}

impl Phase {
    /// The reduce phase whose outcome a gather passes on; `None` for the reduce phases.
    #[must_use]
    pub fn gathers(self) -> Option<Self> {
        match self {
            Self::ScaleGather => Some(Self::ScaleReduce),
            Self::AllGather => Some(Self::ScatterReduce),
            Self::ColumnScaleGather => Some(Self::ColumnScaleReduce),
            Self::ColumnAllGather => Some(Self::ColumnScatterReduce),
            Self::ScaleReduce | Self::ScatterReduce | Self::ColumnScaleReduce | Self::ColumnScatterReduce => {
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_receives_what_its_predecessor_sends() {
        for n in 2..7u32 {
            let s = Schedule {
                slots: n,
                elements: 100,
                segment: 8,
            };
            for i in 0..n {
                let before = (i + n - 1) % n;
                for step in 0..n - 1 {
                    let sent_reduce = (before + 2 * n - step) % n;
                    assert_eq!(s.received(Phase::ScatterReduce, i, step), sent_reduce);
                    assert_eq!(s.reduced_at(i, sent_reduce), Some(step));
                    let sent_gather = (before + 1 + 2 * n - step) % n;
                    assert_eq!(s.received(Phase::AllGather, i, step), sent_gather);
                }
                assert_eq!(s.received(Phase::ScatterReduce, i, s.last_step()), s.owned(i));
                assert_eq!(s.reduced_at(i, i), None);
            }
        }
    }

    #[test]
    fn segments_cover_a_chunk() {
        let s = Schedule {
            slots: 3,
            elements: 1001,
            segment: 100,
        };
        for c in 0..3 {
            let total: usize = (0..s.segments(Phase::ScatterReduce, c))
                .map(|g| s.segment_range(Phase::ScatterReduce, c, g).len())
                .sum();
            assert_eq!(total, s.chunk(c).len());
        }
    }
}
