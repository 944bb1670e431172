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
/// Replicas being put together at one time.
const MAX_OPEN: usize = 64;

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

/// Replicas that are arriving, by sender and round.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    open: BTreeMap<(PeerBytes, u64), Vec<u8>>,
    next: BTreeMap<(PeerBytes, u64), u32>,
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
        let key = (from.clone(), header.round);
        if header.chunk == 0 {
            // A sender has one commit at a time: an earlier one that never became whole makes room.
            self.open.retain(|(sender, _), _| sender != from);
            self.next.retain(|(sender, _), _| sender != from);
            self.open.insert(key.clone(), Vec::new());
            self.next.insert(key.clone(), 0);
        }
        let expected = self.next.get(&key).copied();
        let Some(bytes) = self.open.get_mut(&key) else {
            return Part::Wrong;
        };
        if expected != Some(header.chunk) || bytes.len() + payload.len() > MAX_REPLICA {
            self.forget(&key);
            return Part::Wrong;
        }
        bytes.extend_from_slice(payload);
        if header.chunk + 1 < header.segment {
            self.next.insert(key, header.chunk + 1);
            self.shrink();
            return Part::More;
        }
        let whole = std::mem::take(bytes);
        self.forget(&key);
        Part::Whole(whole)
    }

    fn forget(&mut self, key: &(PeerBytes, u64)) {
        self.open.remove(key);
        self.next.remove(key);
    }

    fn shrink(&mut self) {
        while self.open.len() > MAX_OPEN {
            let Some(first) = self.open.keys().next().cloned() else {
                return;
            };
            self.forget(&first);
        }
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
}
