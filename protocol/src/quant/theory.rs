//! The exact number of payload bytes a member of a flat ring sends, to hold measured traffic against.

use super::{Float, Form, Levels, Q8, blocks, chunk_range, segments};
use crate::ids::{ChunkIndex, Rank};
use crate::job::spec::Wire;
use crate::pack::{packed_len, width};

/// Payload bytes (before sealing) that `member` of `n` sends to reduce `l` elements once.
#[must_use]
pub fn ring_payload_bytes(wire: Wire, n: u32, l: usize, member: Rank) -> u64 {
    match Form::of(wire) {
        Form::Floats(float) => ring_payload_bytes_floats(float, n, l, member),
        Form::Integers(levels) => ring_payload_bytes_integers(levels, n, l, member),
    }
}

/// Scatter-reduce and all-gather, B bytes an element: 2(n−1)/n·l·B when n divides l.
#[must_use]
pub fn ring_payload_bytes_floats(float: Float, n: u32, l: usize, member: Rank) -> u64 {
    let sent = Schedule { n, l, member };
    let scatter: usize = sent.reduce().map(|(_, len)| float.bytes() * len).sum();
    let gather: usize = sent.gather().map(|len| float.bytes() * len).sum();
    (scatter + gather) as u64
}

/// At q8 and q4: the scale ring both ways, packed hops of growing width, and the mean encoded as q8.
#[must_use]
pub fn ring_payload_bytes_integers(levels: Levels, n: u32, l: usize, member: Rank) -> u64 {
    let sent = Schedule { n, l, member };
    let scale_reduce: usize = sent.reduce().map(|(_, len)| 4 * blocks(len)).sum();
    let scale_gather: usize = sent.gather().map(|len| 4 * blocks(len)).sum();
    let scatter: usize = sent
        .reduce()
        .map(|(held, len)| packed_chunk(len, levels, held))
        .sum();
    let gather: usize = sent.gather().map(Q8::byte_len).sum();
    (scale_reduce + scale_gather + scatter + gather) as u64
}

/// Segments are packed one by one, each rounded up to whole bytes.
fn packed_chunk(len: usize, levels: Levels, contributions: u32) -> usize {
    segments(len)
        .map(|s| packed_len(s.len(), width(levels, contributions)))
        .sum()
}

struct Schedule {
    n: u32,
    l: usize,
    member: Rank,
}

impl Schedule {
    /// (contributions carried, elements) of each chunk sent while reducing: chunk (i − s) mod n at step s.
    fn reduce(&self) -> impl Iterator<Item = (u32, usize)> {
        self.steps().map(|s| (s + 1, self.chunk_len(0, s)))
    }

    /// Elements of each chunk sent while gathering: chunk (i + 1 − s) mod n at step s.
    fn gather(&self) -> impl Iterator<Item = usize> {
        self.steps().map(|s| self.chunk_len(1, s))
    }

    fn steps(&self) -> std::ops::Range<u32> {
        0..self.n.saturating_sub(1)
    }

    fn chunk_len(&self, ahead: u64, step: u32) -> usize {
        let n = u64::from(self.n);
        let c = (u64::from(self.member.0) + ahead + n - u64::from(step)) % n;
        chunk_range(ChunkIndex(c as u32), self.n, self.l).len()
    }
}
