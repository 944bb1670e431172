//! Blocks: the unit of storage and exchange, named by the hash of its bytes.

use cid::Cid;
use cid::multihash::Multihash;
use multihash_codetable::{Code, MultihashDigest};

/// The largest block that is stored, sent or accepted, in bytes (PROTOCOL section 8).
pub const MAX_BLOCK: usize = 2 << 20;
/// Codec of plain bytes.
pub const RAW: u64 = 0x55;
/// Codec of UnixFS nodes.
pub const DAG_PB: u64 = 0x70;
/// Codec of jobs, manifests and certificates.
pub const DAG_CBOR: u64 = 0x71;

const SHA2_256: u64 = 0x12;
const IDENTITY: u64 = 0x00;
const MAX_IDENTITY: usize = 128;

/// Why a CID or the bytes that claim it are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The CID names a hash that this node does not compute.
    #[error("{cid} uses hash function {code:#x}; only sha2-256 is supported")]
    UnsupportedHash {
        /// The CID.
        cid: Cid,
        /// Its multihash code.
        code: u64,
    },
    /// More bytes than a block may have.
    #[error(
        "a block of {size} bytes is over the limit of {MAX_BLOCK}; split the content into smaller chunks"
    )]
    TooLarge {
        /// Its size in bytes.
        size: usize,
    },
    /// The bytes do not hash to the CID.
    #[error("the bytes received for {expected} hash to {found}; they are damaged or forged")]
    Mismatch {
        /// The CID they should have had.
        expected: Cid,
        /// The CID they have.
        found: Cid,
    },
}

/// The CIDv1 of `data` under `codec`, with sha2-256.
#[must_use]
pub fn cid_of(codec: u64, data: &[u8]) -> Cid {
    Cid::new_v1(codec, Code::Sha2_256.digest(data))
}

/// Checks that this node can verify blocks of `cid`.
///
/// # Errors
/// [`BlockError::UnsupportedHash`].
pub fn check_supported(cid: &Cid) -> Result<(), BlockError> {
    let hash = cid.hash();
    let known = match hash.code() {
        SHA2_256 => hash.size() == 32,
        IDENTITY => usize::from(hash.size()) <= MAX_IDENTITY,
        _ => false,
    };
    if known {
        Ok(())
    } else {
        Err(BlockError::UnsupportedHash {
            cid: *cid,
            code: hash.code(),
        })
    }
}

/// Checks size and hash of `data` against `cid`.
///
/// # Errors
/// [`BlockError`], naming which.
pub fn verify(cid: &Cid, data: &[u8]) -> Result<(), BlockError> {
    check_supported(cid)?;
    if data.len() > MAX_BLOCK {
        return Err(BlockError::TooLarge { size: data.len() });
    }
    if let Some(inline) = inline_data(cid) {
        return if inline == data {
            Ok(())
        } else {
            Err(mismatch(cid, data))
        };
    }
    let digest: Multihash<64> = Code::Sha2_256.digest(data);
    if &digest == cid.hash() {
        Ok(())
    } else {
        Err(mismatch(cid, data))
    }
}

/// The content of an identity CID, which carries its own bytes.
#[must_use]
pub fn inline_data(cid: &Cid) -> Option<&[u8]> {
    (cid.hash().code() == IDENTITY).then(|| cid.hash().digest())
}

fn mismatch(cid: &Cid, data: &[u8]) -> BlockError {
    BlockError::Mismatch {
        expected: *cid,
        found: cid_of(cid.codec(), data),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_what_it_hashes_to() {
        let cid = cid_of(RAW, b"hello");
        assert_eq!(verify(&cid, b"hello"), Ok(()));
        assert!(matches!(verify(&cid, b"hellp"), Err(BlockError::Mismatch { .. })));
        assert!(matches!(
            verify(&cid, &vec![0; MAX_BLOCK + 1]),
            Err(BlockError::TooLarge { .. })
        ));
    }

    #[test]
    fn hashes_we_cannot_check_are_refused() {
        let cid = Cid::new_v1(RAW, Code::Sha2_512.digest(b"x"));
        assert!(matches!(
            check_supported(&cid),
            Err(BlockError::UnsupportedHash { code: 0x13, .. })
        ));
    }
}
