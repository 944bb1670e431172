//! Finished chunks between two views: what members say of them, and what a manifest makes of it (PROTOCOL section 6,
//! "Failure").

use super::bodies::{Manifest, wire_struct};
use crate::cbor::Bounded;
use crate::ids::{CidBytes, Hash32, PeerBytes, Round, View};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use std::collections::BTreeSet;

/// Slots of the largest ring that keeps finished chunks.
pub const MAX_KEPT: usize = 128;

/// A chunk that a manifest does not have summed again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// The chunk.
    pub chunk: u32,
    /// Hash of the manifest under which it was finished: its order, and the signatures behind it.
    pub origin: Hash32,
    /// Hash of its mean, as its owner's hop says that it went out.
    pub mean: Hash32,
    /// Slots whose servers hold it: a bit each, the lowest first.
    pub holders: ByteBuf,
}

impl Kept {
    /// The bits of some of a ring's slots.
    #[must_use]
    pub fn bits(slots: u32, holders: &BTreeSet<u32>) -> ByteBuf {
        let mut bits = vec![0u8; (slots as usize).div_ceil(8)];
        for slot in holders {
            if let Some(byte) = bits.get_mut(*slot as usize / 8) {
                *byte |= 1 << (slot % 8);
            }
        }
        ByteBuf::from(bits)
    }

    /// The slots whose bits are set. `None` where they are not some of a ring of so many slots.
    #[must_use]
    pub fn holders(&self, slots: u32) -> Option<BTreeSet<u32>> {
        let is_set = |slot: &u32| {
            let byte = self.holders.get(*slot as usize / 8);
            byte.is_some_and(|byte| byte >> (slot % 8) & 1 == 1)
        };
        let holders: BTreeSet<u32> = (0..slots).filter(is_set).collect();
        (!holders.is_empty() && Self::bits(slots, &holders) == self.holders).then_some(holders)
    }
}

impl Manifest {
    /// Whether another sums the same commits with the same weights, in whatever order and served by whomever.
    #[must_use]
    pub fn sums_the_same(&self, other: &Self) -> bool {
        self.contributions() == other.contributions()
    }

    fn contributions(&self) -> Vec<(&PeerBytes, &CidBytes, u64)> {
        let entries = self.entries.iter();
        let mut all: Vec<_> = entries.map(|e| (&e.member, &e.cid, e.weight)).collect();
        all.sort();
        all
    }
}

wire_struct! {
    /// What a member holds of a view's finished chunks, said when somebody complains: the next view need not sum them again.
    Holding {
        /// The job.
        job: CidBytes,
        /// The round.
        round: Round,
        /// The view.
        view: View,
        /// Hash of the manifest.
        manifest: Hash32,
        /// All that it holds.
        held: Bounded<HeldChunk, MAX_KEPT>,
    }
}

wire_struct! {
    /// A finished chunk.
    HeldChunk {
        /// The chunk.
        chunk: u32,
        /// Hash of its mean, as its owner's hop says that it went out.
        mean: Hash32,
    }
}
