//! The two encodings of PROTOCOL section 0: DAG-CBOR for stored objects, packed CBOR arrays for wire messages.
//!
//! Only this module names serde_cbor and serde_ipld_dagcbor. Every reader checks a byte limit, decodes into the
//! caller's bounded type, refuses trailing bytes, encodes again and compares: one value has one valid encoding.

mod bounded;
mod packed;

pub use bounded::{Bounded, BoundedBytes, BoundedText};

use crate::ids::{CidBytes, Hash32};
use serde::{Serialize, de::DeserializeOwned};
use sha2::Digest;

/// Why bytes are no valid encoding of a value, or a value has none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CborError {
    /// Refused unread.
    #[error("{len} bytes where at most {limit} are accepted; ask the sender to keep to the limit")]
    TooLong {
        /// Bytes given.
        len: usize,
        /// The caller's limit.
        limit: usize,
    },
    /// Not CBOR, not of the expected type, over a bound, or with bytes left over.
    #[error("cannot decode {what}: {reason}")]
    Decode {
        /// The expected type.
        what: &'static str,
        /// The decoder's words.
        reason: String,
    },
    /// Decodes, but is not the one valid encoding of what it says.
    #[error("{what} is not in its canonical encoding (first difference at byte {offset})")]
    NotCanonical {
        /// The decoded type.
        what: &'static str,
        /// First byte that differs from the canonical encoding.
        offset: usize,
    },
    /// The type cannot be encoded: a float or a map in a wire message, for example.
    #[error("cannot encode {what}: {reason}")]
    Encode {
        /// The type.
        what: &'static str,
        /// The encoder's words.
        reason: String,
    },
    /// A message starts with an array of its kind and fields.
    #[error("not a message: it must be an array [kind, fields…] with a kind of 0 to 255")]
    NoMessage,
}

/// Encodes a stored object as DAG-CBOR: structs are maps with sorted keys.
///
/// # Errors
/// When the type has no DAG-CBOR form (integers beyond 64 bits, NaN, infinities, maps whose keys are not text).
pub fn to_dag<T: Serialize>(value: &T) -> Result<Vec<u8>, CborError> {
    serde_ipld_dagcbor::to_vec(value).map_err(|e| encode_error::<T>(&e))
}

/// Decodes a stored object of at most `limit` bytes.
///
/// # Errors
/// See [`CborError`].
pub fn from_dag<T: Serialize + DeserializeOwned>(bytes: &[u8], limit: usize) -> Result<T, CborError> {
    check_length(bytes, limit)?;
    let value: T = serde_ipld_dagcbor::from_slice(bytes).map_err(|e| decode_error::<T>(&e))?;
    check_canonical::<T>(bytes, &to_dag(&value)?)?;
    Ok(value)
}

/// Encodes a wire value: structs and tuples are arrays in field order, unit variants are their number, other variants
/// `[number, fields…]` (struct variants `[number, [fields…]]`).
///
/// # Errors
/// When the type holds a float, a map or a sequence of unknown length, which wire messages must not.
pub fn to_wire<T: Serialize>(value: &T) -> Result<Vec<u8>, CborError> {
    packed::to_vec(value).map_err(|e| encode_error::<T>(&e))
}

/// Decodes a wire value of at most `limit` bytes.
///
/// # Errors
/// See [`CborError`].
pub fn from_wire<T: Serialize + DeserializeOwned>(bytes: &[u8], limit: usize) -> Result<T, CborError> {
    check_length(bytes, limit)?;
    let value: T = packed::from_slice(bytes).map_err(|e| decode_error::<T>(&e))?;
    check_canonical::<T>(bytes, &to_wire(&value)?)?;
    Ok(value)
}

/// Encodes the message `[kind, fields…]`, the fields being those of a struct or tuple with at most 22 of them.
///
/// # Errors
/// As [`to_wire`], and when `fields` is no struct or tuple.
pub fn to_message<T: Serialize>(kind: u8, fields: &T) -> Result<Vec<u8>, CborError> {
    let body = to_wire(fields)?;
    let Some((head @ 0x80..=0x96, rest)) = body.split_first().map(|(h, r)| (*h, r)) else {
        return Err(encode_error::<T>(
            &"a message's fields are a struct or tuple of at most 22",
        ));
    };
    let mut out = vec![head + 1];
    out.extend(to_wire(&kind)?);
    out.extend_from_slice(rest);
    Ok(out)
}

/// The kind of a message, without decoding it.
///
/// # Errors
/// [`CborError::NoMessage`] when it has none.
pub fn message_kind(bytes: &[u8]) -> Result<u8, CborError> {
    split_message(bytes).map(|(kind, _, _)| kind)
}

/// Decodes the fields of a message of at most `limit` bytes; its kind is [`message_kind`]'s.
///
/// # Errors
/// See [`CborError`].
pub fn from_message<T: Serialize + DeserializeOwned>(bytes: &[u8], limit: usize) -> Result<T, CborError> {
    check_length(bytes, limit)?;
    let (_, fields, rest) = split_message(bytes)?;
    let mut body = vec![0x80 + fields];
    body.extend_from_slice(rest);
    from_wire(&body, limit)
}

/// (kind, number of fields, encoded fields).
fn split_message(bytes: &[u8]) -> Result<(u8, u8, &[u8]), CborError> {
    match bytes {
        [head @ 0x81..=0x97, kind @ 0..=0x17, rest @ ..] => Ok((*kind, head - 0x81, rest)),
        [head @ 0x81..=0x97, 0x18, kind @ 0x18..=0xff, rest @ ..] => Ok((*kind, head - 0x81, rest)),
        _ => Err(CborError::NoMessage),
    }
}

/// SHA3-256 of an encoded object: genesis, roster, manifest hash and beacon (section 0).
#[must_use]
pub fn object_hash(dag: &[u8]) -> Hash32 {
    sha3_256(&[dag])
}

/// SHA3-256 of the parts, one after the other.
#[must_use]
pub fn sha3_256(parts: &[&[u8]]) -> Hash32 {
    use sha3::Digest;
    let mut hasher = sha3::Sha3_256::new();
    for part in parts {
        hasher.update(part);
    }
    Hash32(hasher.finalize().into())
}

/// The CIDv1 (dag-cbor, sha2-256) of an encoded object: a job's id is that of its body.
#[must_use]
pub fn dag_cid(dag: &[u8]) -> CidBytes {
    const PREFIX: [u8; 4] = [0x01, 0x71, 0x12, 0x20]; // version, codec, hash, its length
    let mut bytes = PREFIX.to_vec();
    bytes.extend_from_slice(&sha2::Sha256::digest(dag));
    CidBytes::new(bytes).unwrap_or_default()
}

fn check_length(bytes: &[u8], limit: usize) -> Result<(), CborError> {
    let len = bytes.len();
    if len > limit {
        return Err(CborError::TooLong { len, limit });
    }
    Ok(())
}

fn check_canonical<T>(got: &[u8], canonical: &[u8]) -> Result<(), CborError> {
    if got == canonical {
        return Ok(());
    }
    let same = got.iter().zip(canonical).take_while(|(a, b)| a == b).count();
    Err(CborError::NotCanonical {
        what: type_name::<T>(),
        offset: same,
    })
}

fn type_name<T>() -> &'static str {
    let full = std::any::type_name::<T>();
    if full.contains('<') {
        full
    } else {
        full.rsplit("::").next().unwrap_or(full)
    }
}

fn encode_error<T>(e: &impl ToString) -> CborError {
    CborError::Encode {
        what: type_name::<T>(),
        reason: e.to_string(),
    }
}

fn decode_error<T>(e: &impl ToString) -> CborError {
    CborError::Decode {
        what: type_name::<T>(),
        reason: e.to_string(),
    }
}

#[cfg(test)]
mod tests;
