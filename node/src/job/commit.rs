//! Building one's own commit, and checking another's (PROTOCOL sections 3 and 5).

use super::edge::{KnownKeys, Signer};
use super::form::Awaited;
use super::state::Names;
use crate::counter::{Counter, CounterError};
use crate::identity::NodeIdentity;
use gym_protocol::cbor;
use gym_protocol::delta::{
    Attestation, AuthBody, Compression, DeltaDecodeError, DeltaEncodeError, Expected, Limits, Metadata,
    RawTensor, Timestamp, TimestampError, Trailers, ValueError, decode, encode_as_given, encode_file,
};
use gym_protocol::ids::{Hash32, Round};
use gym_protocol::member::DeltaFacts;
use gym_protocol::message::Reason;
use gym_protocol::quant::{MAX_DELTA, out_of_bounds};
use gym_protocol::tensor::{LayoutError, TensorSet};
use std::collections::BTreeMap;
use std::path::Path;

/// The delta's name in a commit directory.
pub(crate) const DELTA: &str = "delta.bin";
/// The rollouts' name in it.
pub(crate) const ROLLOUTS: &str = "rollouts";

/// The files of a commit directory.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// What training says of its result.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trained {
    pub(crate) samples: u64,
    pub(crate) tokens: u64,
    pub(crate) loss: f64,
    /// JSON lines: row, sample, token ids, log-probabilities, reward.
    pub(crate) rollouts: Vec<u8>,
}

/// What a delta is made from.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    pub(crate) names: &'a Names,
    pub(crate) layout: &'a TensorSet,
    pub(crate) delta: &'a [f32],
    pub(crate) round: Round,
    pub(crate) parent: Hash32,
    pub(crate) trained: &'a Trained,
}

/// Why a commit cannot be built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommitError {
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Encode(#[from] DeltaEncodeError),
    #[error(transparent)]
    Counter(#[from] CounterError),
    #[error(transparent)]
    Time(#[from] TimestampError),
}

/// Whether a delta's values are looked at before they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// They are: nothing non-finite is committed.
    Checked,
    /// The first is replaced by a NaN: a fault that others must refuse.
    WithNan,
}

/// Encodes and signs a commit's files. The sequence number is on disk before the delta that carries it exists.
pub(crate) fn build(
    draft: &Draft<'_>,
    values: Values,
    identity: &NodeIdentity,
    sequence: &Path,
) -> Result<Files, CommitError> {
    let sequence = Counter::open(sequence)?.advance()?;
    let now = Timestamp::from_unix(i64::try_from(crate::identity::unix_now()).unwrap_or(i64::MAX))?;
    let metadata = Metadata {
        timestamp: Some(now.clone()),
        job: Some(draft.names.job.clone()),
        round: Some(draft.round.0),
        loss: draft.trained.loss.is_finite().then_some(draft.trained.loss),
        samples: Some(draft.trained.samples),
        tokens: Some(draft.trained.tokens),
        ..Metadata::default()
    };
    let auth = AuthBody {
        peer: identity.peer(),
        job: draft.names.job.clone(),
        round: draft.round,
        parent: draft.parent,
        sequence,
        timestamp: now,
        attestation: Attestation::None,
    };
    let mut tensors = draft.layout.with_flat(draft.delta)?;
    if values == Values::WithNan
        && let Some(first) = tensors.0.values_mut().find_map(|t| t.data.first_mut())
    {
        *first = f32::NAN;
    }
    let raw = tensors
        .0
        .iter()
        .map(|(name, t)| (name.clone(), RawTensor::from(t)))
        .collect();
    let signer = Signer(identity);
    let trailers = Trailers {
        metadata: Some(&metadata),
        auth: Some((&auth, &signer)),
    };
    let delta = match values {
        Values::Checked => encode_file(&raw, trailers, Compression::ShuffleLz4),
        Values::WithNan => encode_as_given(&raw, trailers, Compression::ShuffleLz4),
    }?;
    Ok(Files::from([
        (DELTA.to_owned(), delta),
        (ROLLOUTS.to_owned(), draft.trained.rollouts.clone()),
    ]))
}

/// A delta file's form: layout, signatures, round, parent, sequence, clock, finite values. The reason, and more for the
/// log, when it does not hold.
pub(crate) fn check(
    bytes: &[u8],
    awaited: &Awaited,
    keys: &KnownKeys,
) -> Result<DeltaFacts, (Reason, String)> {
    let delta = decode(bytes, &Limits::for_f32(awaited.layout.elements()))
        .map_err(|e| (reason_of(&e), e.to_string()))?;
    let expected = Expected {
        peer: &awaited.member,
        job: &awaited.names.job,
        round: awaited.round,
        parent: &awaited.parent,
        last_sequence: awaited.sequences.before(&awaited.member, awaited.round),
        now: i64::try_from(crate::identity::unix_now()).unwrap_or(i64::MAX),
        clock_skew: i64::try_from(awaited.clock_skew).unwrap_or(i64::MAX),
    };
    delta
        .verify(&expected, keys)
        .map_err(|e| (Reason::Malformed, e.to_string()))?;
    let samples = delta.metadata.as_ref().and_then(|m| m.samples).unwrap_or(0);
    let set = delta
        .tensor_set()
        .map_err(|e| (Reason::Malformed, e.to_string()))?;
    awaited
        .layout
        .fits(&set)
        .map_err(|why| (Reason::Malformed, why))?;
    if let Some(auth) = &delta.auth {
        awaited
            .sequences
            .remember(&awaited.member, awaited.round, auth.body.sequence);
    }
    let delta = set.flatten();
    if let Some(at) = out_of_bounds(&delta) {
        let why = format!("element {at} is beyond ±{MAX_DELTA}: it is too large to be summed");
        return Err((Reason::NotFinite, why));
    }
    Ok(DeltaFacts {
        member: awaited.member.clone(),
        round: awaited.round,
        parent: awaited.parent,
        samples,
        delta,
    })
}

fn reason_of(e: &DeltaDecodeError) -> Reason {
    if matches!(
        e,
        DeltaDecodeError::Value {
            source: ValueError::NotFinite { .. },
            ..
        }
    ) {
        Reason::NotFinite
    } else {
        Reason::Malformed
    }
}

/// 32 bytes nobody can guess.
pub(crate) fn salt() -> Hash32 {
    let mut salt = [0; 32];
    // Without the system's randomness the salt is a hash of time and process: the commitment still binds.
    if getrandom::fill(&mut salt).is_err() {
        let seed = format!("{:?} {}", std::time::SystemTime::now(), std::process::id());
        return cbor::sha3_256(&[seed.as_bytes()]);
    }
    Hash32(salt)
}
