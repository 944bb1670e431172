//! Two different bodies with one number are evidence of fraud (section 2).

use super::{RecordError, SignedRecord, VerifiedRecord};
use crate::identity::Peer;
use crate::signing::GenesisHash;

/// Proof that a peer signed two records with one number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Equivocation {
    /// Who did.
    pub peer: Peer,
    /// The number used twice.
    pub number: u64,
}

/// Why two records prove nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotEvidence {
    /// Two records of different peers.
    #[error("the records belong to different peers")]
    DifferentPeers,
    /// Two records in sequence.
    #[error("the records have different numbers")]
    DifferentNumbers,
    /// One record, perhaps with other signatures: signing is randomised.
    #[error("the records have the same body")]
    SameBody,
    /// One of them is not signed as it should be.
    #[error(transparent)]
    Invalid(#[from] RecordError),
    /// Without the record before, only one and the same ML-DSA key makes both the peer's own.
    #[error("the records name different ML-DSA keys and no previous record binds them to the peer")]
    Unbound,
}

/// Whether `a` and `b` prove that a peer used a number twice. Bodies are compared, not signatures, and times do not
/// matter. Somebody who broke Ed25519 alone must not be able to frame a peer, so both must be bound to it by an ML-DSA
/// key: that of `previous` (the record before), or with none known the same key in both.
///
/// # Errors
/// Says why they prove nothing.
pub fn prove_equivocation(
    genesis: &GenesisHash,
    a: &SignedRecord,
    b: &SignedRecord,
    previous: Option<&VerifiedRecord>,
) -> Result<Equivocation, NotEvidence> {
    let (peer, number) = (a.body.peer, a.body.number);
    if peer != b.body.peer {
        return Err(NotEvidence::DifferentPeers);
    }
    if number != b.body.number {
        return Err(NotEvidence::DifferentNumbers);
    }
    if a.body == b.body {
        return Err(NotEvidence::SameBody);
    }
    if previous.is_none() && a.body.mldsa != b.body.mldsa {
        return Err(NotEvidence::Unbound);
    }
    for record in [a, b] {
        record.check_signatures(genesis)?;
        if let Some(previous) = previous {
            record.check_anchor(&record.record_hash(), super::Anchor::Previous(previous))?;
            record.check_chain(genesis, &previous.record.mldsa)?;
        }
    }
    Ok(Equivocation { peer, number })
}
