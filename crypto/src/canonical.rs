//! Stored objects as DAG-CBOR with one valid encoding (section 0).

use serde::{Serialize, de::DeserializeOwned};

/// Why bytes are not the one valid encoding of an object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CanonicalError {
    /// More bytes than the object can need; nothing was parsed.
    #[error("{len} bytes, at most {limit} are read")]
    TooLong {
        /// Bytes given.
        len: usize,
        /// Most that are read.
        limit: usize,
    },
    /// Not DAG-CBOR of this object, or bytes follow it.
    #[error("not a valid DAG-CBOR object: {0}")]
    Malformed(String),
    /// It parses, but its encoder would have written other bytes.
    #[error("not the canonical encoding of its value")]
    NotCanonical,
}

/// Decodes the one valid encoding of `T`: limit first, trailing bytes refused, re-encoded and compared.
pub(crate) fn decode<T: Serialize + DeserializeOwned>(
    bytes: &[u8],
    limit: usize,
) -> Result<T, CanonicalError> {
    if bytes.len() > limit {
        return Err(CanonicalError::TooLong {
            len: bytes.len(),
            limit,
        });
    }
    let malformed = |e: &dyn std::fmt::Display| CanonicalError::Malformed(e.to_string());
    let value: T = serde_ipld_dagcbor::from_slice(bytes).map_err(|e| malformed(&e))?;
    if serde_ipld_dagcbor::to_vec(&value).map_err(|e| malformed(&e))? != bytes {
        return Err(CanonicalError::NotCanonical);
    }
    Ok(value)
}

/// Encodes a value of this crate's own types, which DAG-CBOR can always hold.
pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    serde_ipld_dagcbor::to_vec(value).expect("integers, bytes and text encode into memory")
}
