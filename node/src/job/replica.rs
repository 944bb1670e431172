//! A commit on its way to its holders: cut into parts for the sealed link, put together and checked on the other side.

use super::commit::Files;
use gym_protocol::cbor;
use gym_protocol::ids::{CidBytes, Hash32, PeerBytes};
use gym_protocol::message::{LinkHeader, LinkKind};
use serde_bytes::ByteBuf;
use std::collections::BTreeMap;

/// Bytes of a part.
const PART: usize = 1 << 20;
/// Bytes of the largest commit that is held for somebody.
pub(crate) const MAX_REPLICA: usize = 256 << 20;
/// Parts of the largest.
const MAX_PARTS: u32 = (MAX_REPLICA / PART) as u32;
/// Bytes of all replicas that are being put together.
const MAX_BYTES: usize = 4 * MAX_REPLICA;

/// A whole replica: roster, salt, directory and its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replica {
    pub(crate) roster: Hash32,
    pub(crate) salt: Hash32,
    pub(crate) cid: CidBytes,
    pub(crate) files: Files,
}

type Wire = (Hash32, Hash32, CidBytes, Vec<(String, ByteBuf)>);

impl Replica {
    fn encode(&self) -> Option<Vec<u8>> {
        let files = self
            .files
            .iter()
            .map(|(n, b)| (n.clone(), ByteBuf::from(b.clone())))
            .collect();
        let wire: Wire = (self.roster, self.salt, self.cid.clone(), files);
        cbor::to_wire(&wire).ok()
    }

    /// `None` when the bytes are no replica. Files stand in the order of their names, each once: a replica has one encoding.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (roster, salt, cid, files): Wire = cbor::from_wire(bytes, MAX_REPLICA).ok()?;
        if !files.is_sorted_by(|(a, _), (b, _)| a < b) {
            return None;
        }
        let files = files.into_iter().map(|(n, b)| (n, b.into_vec())).collect();
        Some(Self {
            roster,
            salt,
            cid,
            files,
        })
    }

    /// Its frames for `to`, in order.
    pub(crate) fn frames(
        &self,
        job: &CidBytes,
        round: u64,
        sender: &PeerBytes,
        to: &PeerBytes,
    ) -> Vec<(LinkHeader, Vec<u8>)> {
        let bytes = self.encode().unwrap_or_default();
        let parts = u32::try_from(bytes.chunks(PART).len()).unwrap_or(u32::MAX);
        let header = |part: u32| LinkHeader {
            kind: LinkKind::Replica.number(),
            job: job.clone(),
            round,
            view: 0,
            manifest: Hash32::ZERO,
            phase: 0,
            step: 0,
            chunk: part,
            segment: parts,
            slot: 0,
            sender: sender.clone(),
            receiver: to.clone(),
        };
        (0u32..)
            .zip(bytes.chunks(PART))
            .map(|(i, part)| (header(i), part.to_vec()))
            .collect()
    }
}

/// A replica that is arriving.
#[derive(Debug)]
struct Open {
    round: u64,
    next: u32,
    bytes: Vec<u8>,
}

/// Replicas that are arriving, one for each sender.
#[derive(Debug)]
pub(crate) struct Assembly {
    open: BTreeMap<PeerBytes, Open>,
    /// Bytes of all of them.
    room: usize,
}

impl Default for Assembly {
    fn default() -> Self {
        Self {
            open: BTreeMap::new(),
            room: MAX_BYTES,
        }
    }
}

/// What a part made of its replica.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// More parts are to come.
    More,
    /// The replica's bytes are complete.
    Whole(Vec<u8>),
    /// Out of order or too long; the replica is dropped.
    Wrong,
}

impl Assembly {
    /// Takes the next part; links are in order, so parts are too.
    pub(crate) fn add(&mut self, from: &PeerBytes, header: &LinkHeader, payload: &[u8]) -> Part {
        if header.chunk == 0 {
            // A sender has one commit at a time: an earlier one that never became whole makes room.
            let open = Open {
                round: header.round,
                next: 0,
                bytes: Vec::new(),
            };
            self.open.insert(from.clone(), open);
        }
        let Some(open) = self.open.get_mut(from) else {
            return Part::Wrong;
        };
        let fits =
            open.bytes.len().saturating_add(payload.len()) <= MAX_REPLICA && header.segment <= MAX_PARTS;
        if (open.round, open.next) != (header.round, header.chunk) || !fits {
            self.open.remove(from);
            return Part::Wrong;
        }
        open.bytes.extend_from_slice(payload);
        open.next += 1;
        if open.next < header.segment {
            self.make_room(from);
            return Part::More;
        }
        let whole = self.open.remove(from);
        Part::Whole(whole.map(|open| open.bytes).unwrap_or_default())
    }

    /// The largest of the others go first: honest commits are of one size, and a flood is larger.
    fn make_room(&mut self, from: &PeerBytes) {
        while self.bytes() > self.room {
            let others = self.open.iter().filter(|(sender, _)| *sender != from);
            let Some(largest) = others.max_by_key(|(_, open)| open.bytes.len()) else {
                return;
            };
            let largest = largest.0.clone();
            self.open.remove(&largest);
        }
    }

    fn bytes(&self) -> usize {
        self.open.values().map(|open| open.bytes.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> PeerBytes {
        PeerBytes::new(vec![n; 4]).unwrap()
    }

    #[test]
    fn parts_become_the_replica_again() {
        let replica = Replica {
            roster: Hash32([1; 32]),
            salt: Hash32([2; 32]),
            cid: CidBytes::new(vec![3; 36]).unwrap(),
            files: Files::from([
                ("delta.bin".into(), vec![7; 3 * PART + 5]),
                ("rollouts".into(), vec![]),
            ]),
        };
        let frames = replica.frames(&CidBytes::default(), 4, &peer(1), &peer(2));
        assert_eq!(frames.len(), 4);
        let mut assembly = Assembly::default();
        for (i, (header, payload)) in frames.iter().enumerate() {
            match assembly.add(&peer(1), header, payload) {
                Part::More => assert!(i < 3),
                Part::Whole(bytes) => assert_eq!(Replica::decode(&bytes), Some(replica.clone())),
                Part::Wrong => panic!("part {i}"),
            }
        }
        assert_eq!(
            assembly.add(&peer(1), &frames[2].0, &frames[2].1),
            Part::Wrong,
            "out of order"
        );
        for round in 0..10 {
            let begun = LinkHeader {
                round,
                ..frames[0].0.clone()
            };
            assembly.add(&peer(1), &begun, &frames[0].1);
            assert_eq!(assembly.open.len(), 1, "one replica for each sender");
        }
    }

    #[test]
    fn a_replica_has_one_encoding() {
        let file = |name: &str| (name.to_owned(), ByteBuf::from(vec![7]));
        let decode = |files: Vec<(String, ByteBuf)>| {
            let wire: Wire = (Hash32([1; 32]), Hash32([2; 32]), CidBytes::default(), files);
            Replica::decode(&cbor::to_wire(&wire).unwrap())
        };
        assert!(decode(vec![file("a"), file("b")]).is_some());
        assert_eq!(decode(vec![file("b"), file("a")]), None, "in another order");
        assert_eq!(decode(vec![file("a"), file("a")]), None, "twice");
    }

    /// Members that send without end, and never to the end.
    #[test]
    fn a_flood_takes_no_more_than_its_room_and_drives_out_no_small_commit() {
        let header = |from: u8, chunk: u32, segment: u32| LinkHeader {
            kind: LinkKind::Replica.number(),
            job: CidBytes::default(),
            round: 1,
            view: 0,
            manifest: Hash32::ZERO,
            phase: 0,
            step: 0,
            chunk,
            segment,
            slot: 0,
            sender: peer(from),
            receiver: peer(0),
        };
        let room = 64 << 10;
        let mut assembly = Assembly {
            room,
            ..Assembly::default()
        };
        assert_eq!(assembly.add(&peer(1), &header(1, 0, 2), &[7; 100]), Part::More);
        for chunk in 0..31 {
            for from in 2..200 {
                if assembly.open.contains_key(&peer(from)) || chunk == 0 {
                    assembly.add(&peer(from), &header(from, chunk, 256), &[0; 1000]);
                }
                assert!(assembly.bytes() <= room);
            }
        }
        assert!(assembly.bytes() > room / 2, "the flood is one");
        let whole = Part::Whole([&[7; 100][..], &[8; 100]].concat());
        assert_eq!(assembly.add(&peer(1), &header(1, 1, 2), &[8; 100]), whole);
        assert_eq!(
            assembly.add(&peer(1), &header(1, 0, MAX_PARTS + 1), &[]),
            Part::Wrong
        );
    }
}
