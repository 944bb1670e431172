//! What a node says about the machine it runs on, and what that is worth (section 7).
//!
//! This version verifies software evidence only: a statement signed by the node itself. It never counts as hardware.
//! A claim of a hardware kind is refused until a verifier for it exists.

use crate::canonical::{self, CanonicalError};
use crate::identity::{Identity, PEER_BYTES};
use crate::record::{RecordHash, VerifiedRecord};
use crate::signing::{GenesisHash, SignatureError, Signatures};
use serde::{Deserialize, Serialize};

/// The domain of evidence signatures.
pub const DOMAIN: &str = "gym/attestation/v1";
/// Most bytes software evidence may have.
pub const MAX_EVIDENCE_BYTES: usize = 8 * 1024;

/// A kind of attestation, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Nothing is claimed.
    #[default]
    None,
    /// The node's own signed word.
    Software,
    /// A TPM 2.0 quote of the boot chain.
    Tpm2,
    /// An AMD SEV-SNP confidential virtual machine.
    SevSnp,
    /// An Intel TDX confidential virtual machine.
    Tdx,
    /// An NVIDIA GPU in confidential-computing mode, inside a confidential virtual machine.
    NvidiaCc,
}

impl Kind {
    /// Whether a job whose least accepted kind is `least` accepts this one. SEV-SNP and TDX are worth the same.
    #[must_use]
    pub fn meets(self, least: Self) -> bool {
        self.level() >= least.level()
    }

    /// Whether hardware vouches for it.
    #[must_use]
    pub fn is_hardware(self) -> bool {
        self.level() > Self::Software.level()
    }

    fn level(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Software => 1,
            Self::Tpm2 => 2,
            Self::SevSnp | Self::Tdx => 3,
            Self::NvidiaCc => 4,
        }
    }
}

/// The body of software evidence, a DAG-CBOR map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoftwareClaim {
    /// Who claims.
    #[serde(with = "serde_bytes")]
    pub peer: [u8; PEER_BYTES],
    /// The identity record in force.
    #[serde(with = "serde_bytes")]
    pub record: RecordHash,
    /// SHA3-256 of the program file.
    #[serde(with = "serde_bytes")]
    pub program: [u8; 32],
    /// The challenge this answers, so that old evidence cannot be shown again.
    #[serde(with = "serde_bytes")]
    pub nonce: [u8; 32],
}

/// Software evidence as it travels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoftwareEvidence {
    /// What is claimed.
    pub claim: SoftwareClaim,
    /// By both keys of the claimant.
    pub signatures: Signatures,
}

impl SoftwareEvidence {
    /// Signs the claim that this node, known by `record`, runs `program`, for a verifier who sent `nonce`.
    #[must_use]
    pub fn sign(
        identity: &Identity,
        record: RecordHash,
        genesis: &GenesisHash,
        program: [u8; 32],
        nonce: [u8; 32],
    ) -> Self {
        let claim = SoftwareClaim {
            peer: identity.peer_bytes(),
            record,
            program,
            nonce,
        };
        let signatures = identity.sign_both(DOMAIN, genesis, &canonical::encode(&claim));
        Self { claim, signatures }
    }

    /// Canonical DAG-CBOR.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        canonical::encode(self)
    }
}

/// Why evidence does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttestationError {
    /// The bytes are no evidence.
    #[error("software evidence: {0}")]
    Encoding(#[from] CanonicalError),
    /// Bytes came with a claim of nothing.
    #[error("evidence of {0} bytes came with attestation kind none, which has none")]
    Superfluous(usize),
    /// This version cannot verify the kind.
    #[error("attestation kind {0:?} cannot be verified by this version; it does not count")]
    Unsupported(Kind),
    /// Another node's evidence, or under another record.
    #[error("software evidence is of another peer or identity record")]
    Peer,
    /// Not an answer to this challenge.
    #[error("software evidence does not answer the challenge that was sent")]
    Nonce,
    /// A signature is bad.
    #[error("software evidence: {0}")]
    Signature(#[from] SignatureError),
}

/// What a claim of `kind` with `evidence` by the peer of `record` is worth: at most `Software`, in this version.
///
/// # Errors
/// When the evidence does not carry the claim.
pub fn verify(
    kind: Kind,
    evidence: &[u8],
    record: &VerifiedRecord,
    genesis: &GenesisHash,
    nonce: &[u8; 32],
) -> Result<Kind, AttestationError> {
    match kind {
        Kind::None if evidence.is_empty() => Ok(Kind::None),
        Kind::None => Err(AttestationError::Superfluous(evidence.len())),
        Kind::Software => verify_software(evidence, record, genesis, nonce).map(|()| Kind::Software),
        Kind::Tpm2 | Kind::SevSnp | Kind::Tdx | Kind::NvidiaCc => Err(AttestationError::Unsupported(kind)),
    }
}

fn verify_software(
    evidence: &[u8],
    record: &VerifiedRecord,
    genesis: &GenesisHash,
    nonce: &[u8; 32],
) -> Result<(), AttestationError> {
    let SoftwareEvidence { claim, signatures } = canonical::decode(evidence, MAX_EVIDENCE_BYTES)?;
    if claim.peer != *record.peer() || claim.record != *record.hash() {
        return Err(AttestationError::Peer);
    }
    if claim.nonce != *nonce {
        return Err(AttestationError::Nonce);
    }
    Ok(record
        .keys()
        .verify_both(DOMAIN, genesis, &canonical::encode(&claim), &signatures)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Anchor, SignedRecord, Validity};

    const GENESIS: GenesisHash = [1; 32];

    fn node() -> (Identity, VerifiedRecord) {
        let identity = Identity::generate().unwrap();
        let record = SignedRecord::first(
            &identity,
            &GENESIS,
            Validity {
                issued: 0,
                expires: 100,
            },
        );
        let record = record.verify(&GENESIS, 50, Anchor::Itself).unwrap();
        (identity, record)
    }

    #[test]
    fn software_never_counts_as_hardware() {
        assert!(!Kind::Software.is_hardware() && !Kind::None.is_hardware());
        for hardware in [Kind::Tpm2, Kind::SevSnp, Kind::Tdx, Kind::NvidiaCc] {
            assert!(hardware.is_hardware());
            assert!(!Kind::Software.meets(hardware));
            assert!(hardware.meets(Kind::Software) && hardware.meets(Kind::None));
        }
        assert!(Kind::SevSnp.meets(Kind::Tdx) && Kind::Tdx.meets(Kind::SevSnp));
        assert!(!Kind::Tpm2.meets(Kind::Tdx) && Kind::NvidiaCc.meets(Kind::Tdx));
    }

    #[test]
    fn kinds_have_their_names() {
        let names = ["none", "software", "tpm2", "sev_snp", "tdx", "nvidia_cc"];
        let kinds = [
            Kind::None,
            Kind::Software,
            Kind::Tpm2,
            Kind::SevSnp,
            Kind::Tdx,
            Kind::NvidiaCc,
        ];
        for (kind, name) in kinds.into_iter().zip(names) {
            assert_eq!(serde_json::to_value(kind).unwrap(), name);
        }
    }

    #[test]
    fn software_evidence_verifies_once_for_its_node_and_challenge() {
        let (identity, record) = node();
        let evidence = SoftwareEvidence::sign(&identity, *record.hash(), &GENESIS, [5; 32], [6; 32]).encode();
        let check = |e: &[u8], r: &VerifiedRecord, n| verify(Kind::Software, e, r, &GENESIS, n);
        assert_eq!(check(&evidence, &record, &[6; 32]), Ok(Kind::Software));
        assert_eq!(check(&evidence, &record, &[7; 32]), Err(AttestationError::Nonce));
        assert_eq!(check(&evidence, &node().1, &[6; 32]), Err(AttestationError::Peer));
        let mut changed: SoftwareEvidence = canonical::decode(&evidence, MAX_EVIDENCE_BYTES).unwrap();
        changed.claim.program = [9; 32];
        let result = check(&changed.encode(), &record, &[6; 32]);
        assert_eq!(result, Err(AttestationError::Signature(SignatureError::Ed25519)));
    }

    #[test]
    fn a_hardware_claim_with_software_evidence_is_refused() {
        let (identity, record) = node();
        let evidence = SoftwareEvidence::sign(&identity, *record.hash(), &GENESIS, [5; 32], [6; 32]).encode();
        for kind in [Kind::Tpm2, Kind::SevSnp, Kind::Tdx, Kind::NvidiaCc] {
            let result = verify(kind, &evidence, &record, &GENESIS, &[6; 32]);
            assert_eq!(result, Err(AttestationError::Unsupported(kind)));
        }
        assert_eq!(
            verify(Kind::None, &[], &record, &GENESIS, &[6; 32]),
            Ok(Kind::None)
        );
        assert!(verify(Kind::None, &evidence, &record, &GENESIS, &[6; 32]).is_err());
    }
}
