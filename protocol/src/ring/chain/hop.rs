//! A hop's word on a chunk: what came in, what goes out, on whose signatures it builds (PROTOCOL section 6).

use super::Scope;
use crate::cbor;
use crate::ids::{CidBytes, Hash32, PeerBytes};
use crate::message::Phase;

/// Domain of a hop's signature.
pub const HOP_DOMAIN: &str = "gym/hop/v1";

/// Bytes of a hop behind a chunk's last segment.
pub const HOP_BYTES: usize = 160;

/// Bytes of a hop with its place, as chains are kept and handed out.
pub const PLACED_BYTES: usize = 1 + 3 * 4 + HOP_BYTES;

/// Keys that sign and check hops: Ed25519 alone. The node implements it with its own, the simulator with stand-ins.
pub trait HopKeys: std::fmt::Debug + Send + Sync {
    /// Signs `body` under [`HOP_DOMAIN`] with this node's key.
    fn sign(&self, body: &[u8]) -> [u8; 64];

    /// Whether `signature` is `signer`'s over `body` under [`HOP_DOMAIN`].
    fn verify(&self, signer: &PeerBytes, body: &[u8], signature: &[u8; 64]) -> bool;
}

/// Which hop: the chunk that `slot` sends at `step` of `phase`. What a gather passes on is its owner's at step 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Phase.
    pub phase: Phase,
    /// Step of the phase.
    pub step: u32,
    /// Chunk, or piece of a column.
    pub chunk: u32,
    /// Who sends.
    pub slot: u32,
}

/// What a hop signs of a chunk, and its signature. On the wire the four fields, 160 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Hash of what came in: of the hop it builds on, or BLAKE3 of those hashes where there are several; zeros at the start.
    pub came: Hash32,
    /// Hash of what goes out: BLAKE3 of its segments' BLAKE3 hashes, in order.
    pub went: Hash32,
    /// BLAKE3 of the signatures it builds on, one after the other; zeros at the start.
    pub previous: Hash32,
    /// Ed25519.
    pub signature: [u8; 64],
}

impl Hop {
    /// As it travels.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HOP_BYTES] {
        let mut out = [0; HOP_BYTES];
        for (to, hash) in out
            .as_chunks_mut::<32>()
            .0
            .iter_mut()
            .zip([self.came, self.went, self.previous])
        {
            *to = hash.0;
        }
        out[96..].copy_from_slice(&self.signature);
        out
    }

    /// Reads what [`Self::to_bytes`] wrote; any bytes are a hop, if not a valid one.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; HOP_BYTES]) -> Self {
        let hash = |i: usize| bytes.as_chunks::<32>().0.get(i).copied().unwrap_or_default();
        let mut signature = [0; 64];
        signature.copy_from_slice(&bytes[96..]);
        Self {
            came: Hash32(hash(0)),
            went: Hash32(hash(1)),
            previous: Hash32(hash(2)),
            signature,
        }
    }

    /// Signs for `place`.
    pub(in crate::ring) fn sign(
        scope: &Scope,
        place: Place,
        [came, went, previous]: [Hash32; 3],
        keys: &dyn HopKeys,
    ) -> Self {
        let unsigned = Self {
            came,
            went,
            previous,
            signature: [0; 64],
        };
        let signature = unsigned
            .body(scope, place)
            .map_or([0; 64], |body| keys.sign(&body));
        Self {
            signature,
            ..unsigned
        }
    }

    /// Whether the server of the place's slot signed this.
    #[must_use]
    pub fn is_signed(&self, scope: &Scope, place: Place, keys: &dyn HopKeys) -> bool {
        let Some(seat) = scope.seat(place.slot) else {
            return false;
        };
        self.body(scope, place)
            .is_some_and(|body| keys.verify(seat.server, &body, &self.signature))
    }

    /// The same word, whatever its signature.
    #[must_use]
    pub fn says_the_same(&self, other: &Self) -> bool {
        (self.came, self.went, self.previous) == (other.came, other.went, other.previous)
    }

    /// The signed bytes: a CBOR array. Bodies of this crate encode.
    fn body(&self, scope: &Scope, place: Place) -> Option<Vec<u8>> {
        let seat = scope.seat(place.slot)?;
        let header: (&CidBytes, u64, u32, Hash32, u8, u32, u32, u32, &PeerBytes) = (
            &scope.manifest.job,
            scope.manifest.round.0,
            scope.manifest.view.0,
            scope.hash,
            place.phase.number(),
            place.step,
            place.chunk,
            place.slot,
            seat.server,
        );
        let nothing = CidBytes::default();
        let cid = seat.cid.unwrap_or(&nothing);
        cbor::to_wire(&(header, cid, self.came, self.went, self.previous)).ok()
    }
}

/// A hop with its place, as chains are kept and handed out: phase, step, chunk and slot before its 160 bytes.
#[must_use]
pub fn placed_to_bytes(place: Place, hop: &Hop) -> [u8; PLACED_BYTES] {
    let mut out = [0; PLACED_BYTES];
    out[0] = place.phase.number();
    for (to, n) in out[1..13]
        .as_chunks_mut::<4>()
        .0
        .iter_mut()
        .zip([place.step, place.chunk, place.slot])
    {
        *to = n.to_le_bytes();
    }
    out[13..].copy_from_slice(&hop.to_bytes());
    out
}

/// Reads hops with their places. `None` when a byte is left over or a phase does not exist.
#[must_use]
pub fn placed_from_bytes(bytes: &[u8]) -> Option<Vec<(Place, Hop)>> {
    let (records, rest) = bytes.as_chunks::<PLACED_BYTES>();
    let read = |record: &[u8; PLACED_BYTES]| {
        let number = |i: usize| {
            record[1..13]
                .as_chunks::<4>()
                .0
                .get(i)
                .map(|b| u32::from_le_bytes(*b))
        };
        let place = Place {
            phase: Phase::from_number(record[0])?,
            step: number(0)?,
            chunk: number(1)?,
            slot: number(2)?,
        };
        Some((place, Hop::from_bytes(record.last_chunk::<HOP_BYTES>()?)))
    };
    rest.is_empty().then(|| records.iter().map(read).collect())?
}
