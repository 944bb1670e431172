//! A CAR file's header: its roots.

use cid::Cid;
use serde::{Deserialize, Serialize};

use super::CarError;

/// Bytes of a header: far more roots than anyone has.
pub(super) const MAX_HEADER: u64 = 1 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    #[serde(default)]
    roots: Vec<Cid>,
    version: u64,
}

/// What stands at the start of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// Version 1, with these roots.
    Roots(Vec<Cid>),
    /// Version 2: a version 1 file lies inside.
    Wrapped,
}

pub(super) fn encode(roots: &[Cid]) -> Result<Vec<u8>, CarError> {
    let header = Header {
        roots: roots.to_vec(),
        version: 1,
    };
    serde_ipld_dagcbor::to_vec(&header).map_err(|_| CarError::Header {
        reason: "its header cannot be encoded",
    })
}

pub(super) fn decode(bytes: &[u8]) -> Result<Start, CarError> {
    let header: Header = serde_ipld_dagcbor::from_slice(bytes).map_err(|_| CarError::Header {
        reason: "its header is no DAG-CBOR map of roots and version",
    })?;
    match header.version {
        1 => Ok(Start::Roots(header.roots)),
        2 => Ok(Start::Wrapped),
        _ => Err(CarError::Header {
            reason: "its version is neither 1 nor 2",
        }),
    }
}
