//! Byte-shuffle: the bytes of a run of elements transposed, all first bytes, then all second bytes, …; the integers and
//! the scales of q8 and q4 apart. Both directions work on any stretch of the shuffled bytes, so neither form is copied
//! whole.

use super::format::Part;
use super::source::grow;
use std::ops::Range;

/// Appends the shuffled bytes `range` of a tensor's `data`.
pub(super) fn gather(data: &[u8], parts: [Part; 2], range: Range<usize>, out: &mut Vec<u8>) {
    for stretch in stretches(parts, range) {
        let Stretch {
            part, plane, count, ..
        } = stretch;
        let from = &data[stretch.elements()];
        match part.size {
            1 => out.extend_from_slice(from),
            2 => gather_plane::<2>(from, plane, out),
            4 => gather_plane::<4>(from, plane, out),
            8 => gather_plane::<8>(from, plane, out),
            size => out.extend(from.iter().skip(plane).step_by(size).take(count)),
        }
    }
}

/// Puts the shuffled bytes that begin at `at` where they belong in `data`, which grows as elements begin and has `end`
/// bytes at last. Returns which bytes of it are final now, in order: those whose last byte has come.
pub(super) fn scatter(
    data: &mut Vec<u8>,
    parts: [Part; 2],
    at: usize,
    mut bytes: &[u8],
    mut complete: impl FnMut(&[u8]),
) {
    let end = parts[0].len() + parts[1].len();
    for stretch in stretches(parts, at..at + bytes.len()) {
        let Stretch {
            part, plane, count, ..
        } = stretch;
        let (plane_bytes, rest) = bytes.split_at(count);
        bytes = rest;
        let elements = stretch.elements();
        if data.len() < elements.end {
            grow(data, elements.end, end);
        }
        let to = &mut data[elements];
        match part.size {
            1 => to.copy_from_slice(plane_bytes),
            2 => scatter_plane::<2>(to, plane, plane_bytes),
            4 => scatter_plane::<4>(to, plane, plane_bytes),
            8 => scatter_plane::<8>(to, plane, plane_bytes),
            size => (to.iter_mut().skip(plane).step_by(size).zip(plane_bytes)).for_each(|(t, f)| *t = *f),
        }
        if plane + 1 == part.size {
            complete(to);
        }
    }
}

/// A stretch of one byte plane of one part.
struct Stretch {
    part: Part,
    /// Where the part begins in the data.
    base: usize,
    plane: usize,
    /// The first element.
    first: usize,
    count: usize,
}

impl Stretch {
    /// The bytes of its elements in the data.
    fn elements(&self) -> Range<usize> {
        let start = self.base + self.first * self.part.size;
        start..start + self.count * self.part.size
    }
}

/// The stretches that a range of the shuffled bytes consists of.
fn stretches(parts: [Part; 2], range: Range<usize>) -> impl Iterator<Item = Stretch> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        if at >= range.end {
            return None;
        }
        let (part, base) = if at < parts[0].len() {
            (parts[0], 0)
        } else {
            (parts[1], parts[0].len())
        };
        let (plane, first) = ((at - base) / part.count, (at - base) % part.count);
        let count = (part.count - first).min(range.end - at);
        at += count;
        Some(Stretch {
            part,
            base,
            plane,
            first,
            count,
        })
    })
}

fn gather_plane<const SIZE: usize>(elements: &[u8], plane: usize, out: &mut Vec<u8>) {
    out.extend(elements.as_chunks::<SIZE>().0.iter().map(|bytes| bytes[plane]));
}

fn scatter_plane<const SIZE: usize>(elements: &mut [u8], plane: usize, bytes: &[u8]) {
    let elements = elements.as_chunks_mut::<SIZE>().0;
    for (element, byte) in elements.iter_mut().zip(bytes) {
        element[plane] = *byte;
    }
}
