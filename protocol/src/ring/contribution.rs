//! What one slot adds to the sum.

use super::hop;
use crate::buffers::Buffers;
use crate::quant;
use std::ops::Range;

/// Δ and its weight.
#[derive(Clone, Debug)]
pub struct Contribution {
    delta: Vec<f32>,
    weight: f32,
    room: Vec<f32>,
    buffers: Buffers,
}

impl Contribution {
    /// A delta (flat, in name order) weighing `weight` samples.
    #[must_use]
    pub fn new(delta: Vec<f32>, weight: u64) -> Self {
        Self {
            delta,
            weight: quant::weight_f32(weight),
            room: Vec::new(),
            buffers: Buffers::default(),
        }
    }

    /// The same, with a vector of an earlier round in whose room the mean may come: new memory has to be cleared, page by
    /// page, which costs as much as the arithmetic.
    #[must_use]
    pub fn with_room(self, room: Vec<f32>) -> Self {
        Self { room, ..self }
    }

    /// The same, with the memory that its segments come in and leave in.
    #[must_use]
    pub fn with_buffers(self, buffers: Buffers) -> Self {
        Self { buffers, ..self }
    }

    /// What a missing slot of a grid adds.
    #[must_use]
    pub fn nothing(elements: usize) -> Self {
        Self {
            delta: vec![0.0; elements],
            weight: 0.0,
            room: Vec::new(),
            buffers: Buffers::default(),
        }
    }

    /// Δ and its weight.
    pub(super) fn into_parts(self) -> (Vec<f32>, f32) {
        (self.delta, self.weight)
    }

    /// Memory of segments.
    pub(super) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.delta.len()
    }

    /// No elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.delta.is_empty()
    }

    /// Δ of a range, to be used up in place.
    pub(super) fn part(&mut self, range: Range<usize>) -> &mut [f32] {
        &mut self.delta[range]
    }

    /// The weight, as a factor.
    pub(super) fn weight(&self) -> f32 {
        self.weight
    }

    /// What is left in Δ's place.
    pub(super) fn left(&self) -> &[f32] {
        &self.delta
    }

    /// As many numbers as Δ has, whatever they are.
    pub(super) fn take_room(&mut self) -> Vec<f32> {
        let mut room = std::mem::take(&mut self.room);
        if room.capacity() < self.delta.len() {
            return vec![0.0; self.delta.len()];
        }
        room.resize(self.delta.len(), 0.0);
        room
    }

    /// The same, given away.
    pub(super) fn take_left(&mut self) -> Vec<f32> {
        std::mem::take(&mut self.delta)
    }

    /// The largest |Δ × weight| of each block of a chunk.
    #[must_use]
    pub fn absmax(&self, chunk: Range<usize>) -> Vec<f32> {
        hop::int::block_absmax(&self.delta[chunk], self.weight)
    }
}
