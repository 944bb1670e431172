//! Newtypes for everything that is named on the wire, so that a round is never taken for a rank.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A SHA3-256 (or BLAKE3) digest, 32 bytes, a CBOR byte string.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Hash32(pub [u8; 32]);

impl Hash32 {
    /// The all-zero digest: "no manifest yet" in associated data, "no parent" before round 0.
    pub const ZERO: Self = Self([0; 32]);

    /// Lower-case hexadecimal, 64 characters.
    #[must_use]
    pub fn to_hex(&self) -> String {
        hex::encode(self.0)
    }

    /// The first 8 hexadecimal characters, for logs.
    #[must_use]
    pub fn short(&self) -> String {
        hex::encode(&self.0[..4])
    }

    /// Parses 64 hexadecimal characters.
    ///
    /// # Errors
    /// When `s` is not exactly 32 bytes of hexadecimal.
    pub fn from_hex(s: &str) -> Result<Self, hex::FromHexError> {
        let mut out = [0; 32];
        hex::decode_to_slice(s, &mut out)?;
        Ok(Self(out))
    }
}

impl fmt::Debug for Hash32 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

impl fmt::Display for Hash32 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

impl AsRef<[u8]> for Hash32 {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Serialize for Hash32 {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Hash32 {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let bytes = serde_bytes::ByteBuf::deserialize(d)?;
        let array: [u8; 32] = bytes
            .as_slice()
            .try_into()
            .map_err(|_| serde::de::Error::invalid_length(bytes.len(), &"32 bytes"))?;
        Ok(Self(array))
    }
}

/// The longest peer id and CID accepted, in bytes (an Ed25519 peer id is 38, a CIDv1 sha2-256 is 36).
pub const MAX_ID_BYTES: usize = 64;

macro_rules! byte_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(Vec<u8>);

        impl $name {
            /// Wraps bytes; `None` when there are more than [`MAX_ID_BYTES`].
            #[must_use]
            pub fn new(bytes: Vec<u8>) -> Option<Self> {
                (bytes.len() <= MAX_ID_BYTES).then_some(Self(bytes))
            }

            /// The bytes.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8] {
                &self.0
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_bytes(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let bytes = serde_bytes::ByteBuf::deserialize(d)?.into_vec();
                let len = bytes.len();
                Self::new(bytes).ok_or_else(|| serde::de::Error::invalid_length(len, &"at most 64 bytes"))
            }
        }
    };
}

byte_id! {
    /// A libp2p PeerId's bytes (the multihash of the public key).
    PeerBytes
}
byte_id! {
    /// A CID's bytes. Shown in its usual base32 form.
    CidBytes
}

impl CidBytes {
    /// The CIDv1 (dag-cbor, sha2-256) of an encoded object needs a hasher the caller has; this wraps a parsed CID.
    #[must_use]
    pub fn from_cid(cid: &cid::Cid) -> Self {
        Self(cid.to_bytes())
    }

    /// Parses the bytes as a CID.
    ///
    /// # Errors
    /// When they are none.
    pub fn to_cid(&self) -> Result<cid::Cid, cid::Error> {
        cid::Cid::try_from(self.0.as_slice())
    }
}

impl fmt::Display for CidBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_cid() {
            Ok(cid) => cid.fmt(f),
            Err(_) => write!(f, "0x{}", hex::encode(&self.0)),
        }
    }
}

impl fmt::Debug for CidBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

const BASE58: &[u8; 58] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";

impl fmt::Display for PeerBytes {
    /// base58btc, as libp2p prints peer ids.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits: Vec<u8> = Vec::new();
        for &byte in &self.0 {
            let mut carry = u32::from(byte);
            for d in &mut digits {
                carry += u32::from(*d) << 8;
                *d = (carry % 58) as u8;
                carry /= 58;
            }
            while carry > 0 {
                digits.push((carry % 58) as u8);
                carry /= 58;
            }
        }
        let zeros = self.0.iter().take_while(|b| **b == 0).count();
        let text: String = std::iter::repeat_n(0u8, zeros)
            .chain(digits.into_iter().rev())
            .map(|d| BASE58[d as usize] as char)
            .collect();
        f.write_str(&text)
    }
}

impl fmt::Debug for PeerBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The next one.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number_id! {
    /// A round of a job, from 0.
    Round(u64)
}
number_id! {
    /// A view of a round: which manifest order is tried, from 0.
    View(u32)
}
number_id! {
    /// A place in a roster or manifest, from 0.
    Rank(u32)
}
number_id! {
    /// A chunk of the flat vector, from 0.
    ChunkIndex(u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_ids_print_as_libp2p_prints_them() {
        let id = hex::decode("0024080112200000000000000000000000000000000000000000000000000000000000000000")
            .unwrap();
        assert!(PeerBytes::new(id).unwrap().to_string().starts_with("12D3KooW"));
    }

    #[test]
    fn long_ids_are_refused() {
        assert!(PeerBytes::new(vec![0; 65]).is_none());
    }
}
