//! The hash of a chunk, segment by segment: BLAKE3 of the segments' hashes, so that hashing overlaps with all else and needs
//! no order.

use crate::ids::Hash32;

/// The segments hashed so far.
#[derive(Debug)]
pub(in crate::ring) struct Tally {
    hashes: Vec<Option<[u8; 32]>>,
}

impl Tally {
    pub(in crate::ring) fn new(segments: u32) -> Self {
        Self {
            hashes: vec![None; segments as usize],
        }
    }

    pub(in crate::ring) fn add(&mut self, segment: u32, payload: &[u8]) {
        if let Some(place) = self.hashes.get_mut(segment as usize) {
            *place = Some(*blake3::hash(payload).as_bytes());
        }
    }

    /// The chunk's hash, once all segments are there.
    pub(in crate::ring) fn hash(&self) -> Option<Hash32> {
        let mut whole = blake3::Hasher::new();
        for segment in &self.hashes {
            whole.update(segment.as_ref()?);
        }
        Some(Hash32(*whole.finalize().as_bytes()))
    }
}

/// What `came` or `previous` says of several hops: nothing, the one, or BLAKE3 over all.
pub(in crate::ring) fn together(hashes: &[Hash32]) -> Hash32 {
    match hashes {
        [] => Hash32::ZERO,
        [one] => *one,
        several => digest(several.iter().map(|h| &h.0[..])),
    }
}

/// BLAKE3 of the parts, one after the other.
pub(in crate::ring) fn digest<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Hash32 {
    let mut whole = blake3::Hasher::new();
    parts.for_each(|part| {
        whole.update(part);
    });
    Hash32(*whole.finalize().as_bytes())
}
