//! Byte-shuffle: the bytes of a run of elements transposed, all first bytes, then all second bytes, …; the integers and
//! the scales of q8 and q4 apart.

use super::format::Part;

/// Transposes the bytes of each part.
pub(super) fn shuffle(data: &[u8], parts: [Part; 2]) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len());
    let (first, second) = data.split_at(parts[0].len().min(data.len()));
    for (run, part) in [(first, parts[0]), (second, parts[1])] {
        for byte in 0..part.size {
            out.extend(run.iter().skip(byte).step_by(part.size));
        }
    }
    out
}

/// The inverse of [`shuffle`].
pub(super) fn unshuffle(data: &[u8], parts: [Part; 2]) -> Vec<u8> {
    let mut out = vec![0; data.len()];
    let (first, second) = data.split_at(parts[0].len().min(data.len()));
    let (out_first, out_second) = out.split_at_mut(first.len());
    for (run, to, part) in [(first, out_first, parts[0]), (second, out_second, parts[1])] {
        for (byte, plane) in run.chunks(part.count.max(1)).enumerate() {
            to.iter_mut()
                .skip(byte)
                .step_by(part.size)
                .zip(plane)
                .for_each(|(to, from)| *to = *from);
        }
    }
    out
}
