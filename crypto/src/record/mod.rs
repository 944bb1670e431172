//! Identity records: which ML-DSA-87 key belongs to which peer id (section 2).
//!
//! Records of one peer are numbered from 0. Each is signed by both its own keys; from number 1 on it is also signed by
//! the ML-DSA key of the record before. The first is worth what pins it: genesis, a stake registration or a job roster.

mod evidence;
#[cfg(test)]
mod tests;

pub use evidence::{Equivocation, NotEvidence, prove_equivocation};

use crate::canonical::{self, CanonicalError};
use crate::identity::{Identity, PEER_BYTES, Peer, ed25519_from_peer};
use crate::signing::{GenesisHash, PublicKeys, SignatureError, Signatures, verify_mldsa};
use crate::{mldsa, sha3_256};
use serde::{Deserialize, Serialize};

/// The domain of a record's signatures.
pub const DOMAIN: &str = "gym/identity/v1";
/// Most bytes a signed record may have: two ML-DSA signatures, one ML-DSA key and small change.
pub const MAX_RECORD_BYTES: usize = 16 * 1024;
/// How far ahead of the reader's clock `issued` may be, in seconds.
pub const CLOCK_SKEW_SECONDS: u64 = 120;

/// SHA3-256 of a record's DAG-CBOR body: how a record is named.
pub type RecordHash = [u8; 32];

/// The body of a record, a DAG-CBOR map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdentityRecord {
    /// The libp2p peer id that this record speaks for.
    #[serde(with = "serde_bytes")]
    pub peer: [u8; PEER_BYTES],
    /// The Ed25519 key, the one inside `peer`.
    #[serde(with = "serde_bytes")]
    pub ed25519: [u8; 32],
    /// The ML-DSA-87 key.
    pub mldsa: mldsa::PublicKey,
    /// Rises by one with each record of this peer, from 0. Never used twice: write it down before signing.
    pub number: u64,
    /// Valid from, Unix seconds.
    pub issued: u64,
    /// Valid before, Unix seconds.
    pub expires: u64,
}

impl IdentityRecord {
    fn new(identity: &Identity, number: u64, validity: Validity) -> Self {
        Self {
            peer: identity.peer_bytes(),
            ed25519: identity.public().ed25519,
            mldsa: identity.public().mldsa.clone(),
            number,
            issued: validity.issued,
            expires: validity.expires,
        }
    }

    /// The DAG-CBOR bytes that are signed and hashed.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        canonical::encode(self)
    }

    /// The record's name.
    #[must_use]
    pub fn record_hash(&self) -> RecordHash {
        sha3_256(&[&self.body()])
    }

    /// Both public keys.
    #[must_use]
    pub fn keys(&self) -> PublicKeys {
        PublicKeys {
            ed25519: self.ed25519,
            mldsa: self.mldsa.clone(),
        }
    }
}

/// When a record counts, Unix seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// From.
    pub issued: u64,
    /// Before.
    pub expires: u64,
}

/// A record with its signatures, as it travels and is stored. Worth nothing before [`SignedRecord::verify`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedRecord {
    /// What is signed.
    pub body: IdentityRecord,
    /// By both keys in the body.
    pub signatures: Signatures,
    /// By the ML-DSA key of the record before; none for number 0.
    #[serde(with = "serde_bytes")]
    pub previous: Option<Vec<u8>>,
}

/// What a record is held against.
#[derive(Debug, Clone, Copy)]
pub enum Anchor<'a> {
    /// Nothing yet: the record only agrees with itself. Enough to list a stranger, not to trust its ML-DSA key.
    Itself,
    /// Genesis, a stake registration or a roster names this very record.
    Pinned(&'a RecordHash),
    /// The record before, itself verified.
    Previous(&'a VerifiedRecord),
}

/// Why a record does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The bytes are no record.
    #[error("identity record: {0}")]
    Encoding(#[from] CanonicalError),
    /// The peer id is not that of the Ed25519 key.
    #[error("identity record: the peer id is not that of its Ed25519 key")]
    Peer,
    /// One of its own signatures is bad.
    #[error("identity record: {0}")]
    Signature(#[from] SignatureError),
    /// The signature of the record before is missing, superfluous or bad.
    #[error("identity record {number}: the signature by the previous record's ML-DSA key {problem}")]
    Chain {
        /// The record's number.
        number: u64,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The number does not follow the previous record's.
    #[error("identity record: number {number} does not follow {previous}")]
    Number {
        /// The record's number.
        number: u64,
        /// The number of the record before.
        previous: u64,
    },
    /// The previous record is another peer's.
    #[error("identity record: the previous record belongs to another peer id")]
    OtherPeer,
    /// Not the record that was pinned.
    #[error("identity record: its hash is {found}, pinned is {pinned}")]
    NotPinned {
        /// Hash of the record.
        found: String,
        /// Hash expected.
        pinned: String,
    },
    /// Past its end.
    #[error("identity record: expired at {expires}, it is {now}; its owner must issue the next one")]
    Expired {
        /// End of validity.
        expires: u64,
        /// The reader's time.
        now: u64,
    },
    /// Issued in the future, or ends before it begins.
    #[error(
        "identity record: valid from {issued} to {expires}, which is impossible at {now}; check both clocks"
    )]
    Time {
        /// Begin of validity.
        issued: u64,
        /// End of validity.
        expires: u64,
        /// The reader's time.
        now: u64,
    },
}

impl SignedRecord {
    /// The first record of an identity, number 0.
    #[must_use]
    pub fn first(identity: &Identity, genesis: &GenesisHash, validity: Validity) -> Self {
        let body = IdentityRecord::new(identity, 0, validity);
        let signatures = identity.sign_both(DOMAIN, genesis, &body.body());
        Self {
            body,
            signatures,
            previous: None,
        }
    }

    /// The record after `previous`. `old` holds the keys of `previous`; `identity`, which may be the same, those of the
    /// new record (the Ed25519 key stays, or it would be another peer).
    ///
    /// # Errors
    /// When the numbers are used up or the keys are not those of one peer.
    pub fn next(
        identity: &Identity,
        old: &Identity,
        previous: &VerifiedRecord,
        genesis: &GenesisHash,
        validity: Validity,
    ) -> Result<Self, RecordError> {
        let last = previous.record.number;
        let number = last.checked_add(1).ok_or(RecordError::Number {
            number: last,
            previous: last,
        })?;
        if previous.keys != *old.public() || identity.peer_bytes() != previous.record.peer {
            return Err(RecordError::OtherPeer);
        }
        let record = IdentityRecord::new(identity, number, validity);
        let body = record.body();
        Ok(Self {
            signatures: identity.sign_both(DOMAIN, genesis, &body),
            previous: Some(old.sign_mldsa(DOMAIN, genesis, &body)),
            body: record,
        })
    }

    /// Canonical DAG-CBOR.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        canonical::encode(self)
    }

    /// Reads [`Self::encode`]'s bytes: at most [`MAX_RECORD_BYTES`], nothing after, the one valid encoding.
    ///
    /// # Errors
    /// When they are anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        Ok(canonical::decode(bytes, MAX_RECORD_BYTES)?)
    }

    /// The record's name.
    #[must_use]
    pub fn record_hash(&self) -> RecordHash {
        self.body.record_hash()
    }

    /// Checks everything that can be: peer id, signatures, times at `now` (Unix seconds), number and anchor.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn verify(
        &self,
        genesis: &GenesisHash,
        now: u64,
        anchor: Anchor<'_>,
    ) -> Result<VerifiedRecord, RecordError> {
        self.check_times(now)?;
        let hash = self.record_hash();
        self.check_anchor(&hash, anchor)?;
        self.check_signatures(genesis)?;
        if let Anchor::Previous(previous) = anchor {
            self.check_chain(genesis, &previous.record.mldsa)?;
        }
        Ok(VerifiedRecord {
            keys: self.body.keys(),
            record: self.body.clone(),
            hash,
        })
    }

    fn check_times(&self, now: u64) -> Result<(), RecordError> {
        let IdentityRecord { issued, expires, .. } = self.body;
        if issued >= expires || issued > now.saturating_add(CLOCK_SKEW_SECONDS) {
            return Err(RecordError::Time { issued, expires, now });
        }
        if expires <= now {
            return Err(RecordError::Expired { expires, now });
        }
        Ok(())
    }

    fn check_anchor(&self, hash: &RecordHash, anchor: Anchor<'_>) -> Result<(), RecordError> {
        match anchor {
            Anchor::Itself => Ok(()),
            Anchor::Pinned(pinned) if pinned == hash => Ok(()),
            Anchor::Pinned(pinned) => Err(RecordError::NotPinned {
                found: hex::encode(hash),
                pinned: hex::encode(pinned),
            }),
            Anchor::Previous(previous) if previous.record.peer != self.body.peer => {
                Err(RecordError::OtherPeer)
            }
            Anchor::Previous(previous) if previous.record.number.checked_add(1) == Some(self.body.number) => {
                Ok(())
            }
            Anchor::Previous(previous) => Err(RecordError::Number {
                number: self.body.number,
                previous: previous.record.number,
            }),
        }
    }

    /// The peer id and the record's own signatures; that of the record before must be there, from number 1 on.
    fn check_signatures(&self, genesis: &GenesisHash) -> Result<(), RecordError> {
        let number = self.body.number;
        match (number, &self.previous) {
            (0, None) | (1.., Some(_)) => {}
            (0, Some(_)) => {
                return Err(RecordError::Chain {
                    number,
                    problem: "cannot be there",
                });
            }
            (1.., None) => {
                return Err(RecordError::Chain {
                    number,
                    problem: "is missing",
                });
            }
        }
        if ed25519_from_peer(&self.body.peer) != Ok(self.body.ed25519) {
            return Err(RecordError::Peer);
        }
        Ok(self
            .body
            .keys()
            .verify_both(DOMAIN, genesis, &self.body.body(), &self.signatures)?)
    }

    fn check_chain(&self, genesis: &GenesisHash, key: &mldsa::PublicKey) -> Result<(), RecordError> {
        let number = self.body.number;
        let signature = self.previous.as_deref().unwrap_or_default();
        verify_mldsa(key, DOMAIN, genesis, &self.body.body(), signature).map_err(|_| RecordError::Chain {
            number,
            problem: "does not verify",
        })
    }
}

/// A record that passed [`SignedRecord::verify`]; how far to trust it depends on the anchor it was held against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedRecord {
    record: IdentityRecord,
    keys: PublicKeys,
    hash: RecordHash,
}

impl VerifiedRecord {
    /// The record.
    #[must_use]
    pub fn record(&self) -> &IdentityRecord {
        &self.record
    }

    /// Its public keys.
    #[must_use]
    pub fn keys(&self) -> &PublicKeys {
        &self.keys
    }

    /// Its name.
    #[must_use]
    pub fn hash(&self) -> &RecordHash {
        &self.hash
    }

    /// The peer id.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.record.peer
    }
}
