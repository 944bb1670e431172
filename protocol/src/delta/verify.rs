//! Who made a delta, and whether it is the one that is awaited.

use super::auth::{Auth, DOMAIN};
use super::decode::Delta;
use super::metadata::TimestampError;
use crate::cbor::CborError;
use crate::ids::{CidBytes, Hash32, PeerBytes, Round};
use crate::message::{Verifier, VerifyError};

/// The delta that a member must have committed.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// Who.
    pub peer: &'a PeerBytes,
    /// For which job.
    pub job: &'a CidBytes,
    /// In which round.
    pub round: Round,
    /// From which state.
    pub parent: &'a Hash32,
    /// The highest sequence seen of this worker; `None` before its first.
    pub last_sequence: Option<u64>,
    /// The reader's clock, seconds since 1970.
    pub now: i64,
    /// How far ahead of it a timestamp may be, seconds (120 by default: genesis `clock_skew_seconds`).
    pub clock_skew: i64,
}

/// Why a well-formed delta does not count.
#[derive(Debug, thiserror::Error)]
pub enum DeltaVerifyError {
    /// A committed delta has both trailers.
    #[error("the file has no {block} block, and a committed delta has metadata and auth")]
    Missing {
        /// `metadata` or `auth`.
        block: &'static str,
    },
    /// Another worker, job, round or parent.
    #[error("auth.{key} is {found}, and {expected} is awaited")]
    Mismatch {
        /// The key.
        key: &'static str,
        /// What the file says.
        found: String,
        /// What it should say.
        expected: String,
    },
    /// Metadata and auth contradict each other.
    #[error("metadata.{key} differs from auth.{key}")]
    Contradiction {
        /// The key.
        key: &'static str,
    },
    /// Used before.
    #[error("sequence {found} does not rise above {last}: the delta is old, or its worker lost its counter")]
    Sequence {
        /// The file's.
        found: u64,
        /// The highest seen.
        last: u64,
    },
    /// From the future.
    #[error(
        "auth.timestamp is {ahead} s ahead of this clock; at most {allowed} s are allowed. Check both clocks"
    )]
    Clock {
        /// Seconds ahead.
        ahead: i64,
        /// Seconds allowed.
        allowed: i64,
    },
    /// Not a time.
    #[error(transparent)]
    Timestamp(#[from] TimestampError),
    /// The signed bytes cannot be built.
    #[error(transparent)]
    Encoding(#[from] CborError),
    /// Not signed by whom it says.
    #[error("signatures of {peer}: {source}")]
    Signature {
        /// The claimed worker.
        peer: PeerBytes,
        /// Which one, and why.
        source: VerifyError,
    },
}

impl Delta {
    /// Checks that a committed delta is the one that is awaited and that its worker signed it.
    ///
    /// # Errors
    /// The first thing wrong.
    pub fn verify(
        &self,
        expected: &Expected<'_>,
        verifier: &(impl Verifier + ?Sized),
    ) -> Result<(), DeltaVerifyError> {
        let auth = self
            .auth
            .as_ref()
            .ok_or(DeltaVerifyError::Missing { block: "auth" })?;
        check_identity(auth, expected)?;
        self.check_metadata(auth)?;
        check_sequence(auth.body.sequence, expected.last_sequence)?;
        check_clock(auth, expected)?;
        self.verify_signatures(verifier)
    }

    /// Checks the signatures alone: that `auth.body.peer` stands for this content.
    ///
    /// # Errors
    /// No auth block, or a signature that is missing or wrong.
    pub fn verify_signatures(&self, verifier: &(impl Verifier + ?Sized)) -> Result<(), DeltaVerifyError> {
        let auth = self
            .auth
            .as_ref()
            .ok_or(DeltaVerifyError::Missing { block: "auth" })?;
        let (body, signatures) = (&auth.body, &auth.signatures);
        let signed = body.signed_bytes(&self.content_hash)?;
        verifier
            .verify(
                &body.peer,
                DOMAIN,
                &signed,
                &signatures.ed25519,
                signatures.mldsa.as_deref(),
            )
            .map_err(|source| DeltaVerifyError::Signature {
                peer: body.peer.clone(),
                source,
            })
    }

    fn check_metadata(&self, auth: &Auth) -> Result<(), DeltaVerifyError> {
        let metadata = self
            .metadata
            .as_ref()
            .ok_or(DeltaVerifyError::Missing { block: "metadata" })?;
        if metadata.job.as_ref().is_some_and(|job| *job != auth.body.job) {
            return Err(DeltaVerifyError::Contradiction { key: "job" });
        }
        if metadata.round.is_some_and(|round| round != auth.body.round.0) {
            return Err(DeltaVerifyError::Contradiction { key: "round" });
        }
        Ok(())
    }
}

fn check_identity(auth: &Auth, expected: &Expected<'_>) -> Result<(), DeltaVerifyError> {
    let body = &auth.body;
    same("peer", &body.peer, expected.peer)?;
    same("job", &body.job, expected.job)?;
    same("round", &body.round, &expected.round)?;
    same("parent", &body.parent, expected.parent)
}

fn same<T: PartialEq + ToString>(key: &'static str, found: &T, expected: &T) -> Result<(), DeltaVerifyError> {
    if found == expected {
        return Ok(());
    }
    Err(DeltaVerifyError::Mismatch {
        key,
        found: found.to_string(),
        expected: expected.to_string(),
    })
}

fn check_sequence(found: u64, last: Option<u64>) -> Result<(), DeltaVerifyError> {
    match last {
        Some(last) if found <= last => Err(DeltaVerifyError::Sequence { found, last }),
        _ => Ok(()),
    }
}

fn check_clock(auth: &Auth, expected: &Expected<'_>) -> Result<(), DeltaVerifyError> {
    let ahead = auth.body.timestamp.unix_seconds()?.saturating_sub(expected.now);
    if ahead > expected.clock_skew {
        return Err(DeltaVerifyError::Clock {
            ahead,
            allowed: expected.clock_skew,
        });
    }
    Ok(())
}
