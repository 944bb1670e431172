//! Ring segments that come before the manifest of their view: only from members, and no more than a predecessor can have.

use super::Event;
use crate::ids::PeerBytes;
use crate::message::LinkHeader;
use crate::ring::HOP_BYTES;
use std::collections::BTreeMap;

/// What a segment is counted as beside its elements: its header and its hop.
const AROUND: usize = 1_024;
/// The most bytes of an element in a segment.
const ELEMENT: usize = 4;

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Of all senders together.
    bytes: usize,
    /// The longest segment.
    longest: usize,
}

impl Room {
    /// A predecessor runs ahead by less than a whole vector: its sums wait for ours then. Of a grid there are two.
    pub(super) fn of(elements: usize, segment: usize, members: usize) -> Self {
        let segments = elements / segment.max(1) + 4 * members;
        Self {
            bytes: (ELEMENT * elements + AROUND * segments).saturating_mul(2),
            longest: (ELEMENT * segment).saturating_add(HOP_BYTES),
        }
    }
}

/// What one peer has sent.
#[derive(Debug, Default)]
struct Sent {
    segments: Vec<(LinkHeader, Vec<u8>)>,
    bytes: usize,
}

/// The segments kept, by sender.
#[derive(Debug, Default)]
pub(super) struct Early {
    of: BTreeMap<PeerBytes, Sent>,
    bytes: usize,
}

impl Early {
    /// Keeps a segment. Where there is no room, whoever has sent most gives way: what comes of it last, as its sums follow
    /// from the first.
    pub(super) fn keep(&mut self, from: PeerBytes, header: LinkHeader, payload: Vec<u8>, room: Room) {
        let size = AROUND + payload.len();
        if payload.len() > room.longest {
            return;
        }
        let own = self.of.get(&from).map_or(0, |sent| sent.bytes) + size;
        while self.bytes + size > room.bytes {
            let most = self.of.values_mut().max_by_key(|sent| sent.bytes);
            let Some(most) = most.filter(|most| most.bytes > own) else {
                return;
            };
            let last = most
                .segments
                .pop()
                .map_or(0, |(_, payload)| AROUND + payload.len());
            most.bytes -= last;
            self.bytes -= last;
        }
        let sent = self.of.entry(from).or_default();
        sent.bytes += size;
        self.bytes += size;
        sent.segments.push((header, payload));
    }

    /// Everything, in the order in which each peer has sent it.
    pub(super) fn take(&mut self) -> Vec<Event> {
        let all = std::mem::take(self).of.into_iter();
        all.flat_map(|(from, sent)| {
            sent.segments
                .into_iter()
                .map(move |(header, payload)| Event::Segment {
                    from: from.clone(),
                    header,
                    payload,
                })
        })
        .collect()
    }
}
