//! The auth block: who stands for a delta, and the signatures.

use crate::cbor::{self, BoundedBytes, CborError};
use crate::delta::metadata::Timestamp;
use crate::ids::{CidBytes, Hash32, PeerBytes, Round};
use serde::{Deserialize, Serialize};

/// The domain of a delta's signatures.
pub const DOMAIN: &str = "gym/delta/v1";

/// Kinds of evidence that a worker runs what it says (PROTOCOL section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attestation {
    /// None.
    #[default]
    None,
    /// A measurement by the program itself; never counts as hardware.
    Software,
    /// A TPM 2.0 quote.
    Tpm2,
    /// AMD SEV-SNP.
    SevSnp,
    /// Intel TDX.
    Tdx,
    /// NVIDIA confidential computing.
    NvidiaCc,
}

/// What a worker says of its delta; signed together with the content hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthBody {
    /// The worker.
    pub peer: PeerBytes,
    /// The job's id.
    pub job: CidBytes,
    /// The round.
    pub round: Round,
    /// State hash that the delta starts from.
    pub parent: Hash32,
    /// Rises with every delta of this worker; written down, flushed, before it is used.
    pub sequence: u64,
    /// When it was signed.
    pub timestamp: Timestamp,
    /// The evidence that comes with it.
    pub attestation: Attestation,
}

/// A worker's signatures over a delta.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeltaSignatures {
    /// Ed25519.
    pub ed25519: BoundedBytes<64>,
    /// ML-DSA-87, where given.
    pub mldsa: Option<BoundedBytes<4627>>,
}

/// The auth block: a body and its signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    /// What is signed.
    pub body: AuthBody,
    /// By whom, so they say: [`super::Delta::verify`] finds out.
    pub signatures: DeltaSignatures,
}

/// Whoever holds a worker's keys.
pub trait DeltaSigner {
    /// Signs `u8 length ‖ domain ‖ genesis hash ‖ body` (PROTOCOL section 0), the signer knowing the genesis hash.
    fn sign(&self, domain: &'static str, body: &[u8]) -> DeltaSignatures;
}

impl AuthBody {
    /// What both keys sign: `content_hash ‖ DAG-CBOR(self)`.
    pub(super) fn signed_bytes(&self, content_hash: &Hash32) -> Result<Vec<u8>, CborError> {
        let mut bytes = content_hash.0.to_vec();
        bytes.extend(cbor::to_dag(self)?);
        Ok(bytes)
    }
}

/// The block as one map.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AuthMap {
    peer: PeerBytes,
    job: CidBytes,
    round: Round,
    parent: Hash32,
    sequence: u64,
    timestamp: Timestamp,
    attestation: Attestation,
    ed25519: BoundedBytes<64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mldsa: Option<BoundedBytes<4627>>,
}

impl Serialize for Auth {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let AuthBody {
            peer,
            job,
            round,
            parent,
            sequence,
            timestamp,
            attestation,
        } = self.body.clone();
        let DeltaSignatures { ed25519, mldsa } = self.signatures.clone();
        AuthMap {
            peer,
            job,
            round,
            parent,
            sequence,
            timestamp,
            attestation,
            ed25519,
            mldsa,
        }
        .serialize(s)
    }
}

impl<'de> Deserialize<'de> for Auth {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let map = AuthMap::deserialize(d)?;
        let AuthMap {
            peer,
            job,
            round,
            parent,
            sequence,
            timestamp,
            attestation,
            ed25519,
            mldsa,
        } = map;
        Ok(Self {
            body: AuthBody {
                peer,
                job,
                round,
                parent,
                sequence,
                timestamp,
                attestation,
            },
            signatures: DeltaSignatures { ed25519, mldsa },
        })
    }
}
