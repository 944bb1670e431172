//! What is signed, everywhere: `u8 length ‖ domain ‖ genesis hash ‖ body` (section 0).
//!
//! The domain keeps a signature for one purpose from serving another, the genesis hash one network's from serving
//! another's.

use crate::mldsa;
use serde::{Deserialize, Serialize};

/// The genesis hash of a network: SHA3-256 of its DAG-CBOR body.
pub type GenesisHash = [u8; 32];

/// The bytes to sign for `body` in `domain` (`gym/<what>/v1`) on the network `genesis`.
///
/// # Panics
/// When `domain`, which is a constant of the program, is longer than 255 bytes.
#[must_use]
pub fn signing_input(domain: &str, genesis: &GenesisHash, body: &[u8]) -> Vec<u8> {
    let length = u8::try_from(domain.len()).expect("a domain has at most 255 bytes");
    let mut input = Vec::with_capacity(1 + domain.len() + genesis.len() + body.len());
    input.push(length);
    input.extend_from_slice(domain.as_bytes());
    input.extend_from_slice(genesis);
    input.extend_from_slice(body);
    input
}

/// Both signatures over one signing input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signatures {
    /// Ed25519, 64 bytes.
    #[serde(with = "serde_bytes")]
    pub ed25519: [u8; 64],
    /// ML-DSA-87, [`mldsa::SIGNATURE_BYTES`] bytes; other lengths never verify.
    #[serde(with = "serde_bytes")]
    pub mldsa: Vec<u8>,
}

/// The two public keys of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKeys {
    /// Ed25519, the key inside the peer id.
    pub ed25519: [u8; 32],
    /// ML-DSA-87.
    pub mldsa: mldsa::PublicKey,
}

impl PublicKeys {
    /// Verifies both signatures; neither alone is enough.
    ///
    /// # Errors
    /// Names the first one that does not verify.
    pub fn verify_both(
        &self,
        domain: &str,
        genesis: &GenesisHash,
        body: &[u8],
        signatures: &Signatures,
    ) -> Result<(), SignatureError> {
        let input = signing_input(domain, genesis, body);
        check_ed25519(&self.ed25519, &input, &signatures.ed25519)?;
        check_mldsa(&self.mldsa, &input, &signatures.mldsa)
    }
}

/// Which signature does not verify.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The bytes are no Ed25519 public key, or one of small order.
    #[error("the Ed25519 public key is not a valid curve point of large order")]
    Ed25519Key,
    /// The Ed25519 signature is not by this key over these bytes.
    #[error("the Ed25519 signature does not verify")]
    Ed25519,
    /// The ML-DSA-87 signature is not by this key over these bytes.
    #[error("the ML-DSA-87 signature does not verify")]
    MlDsa,
}

/// Verifies an Ed25519 signature strictly (RFC 8032 with small-order keys and malleable encodings refused).
///
/// # Errors
/// When the key or the signature is bad.
pub fn verify_ed25519(
    public: &[u8; 32],
    domain: &str,
    genesis: &GenesisHash,
    body: &[u8],
    signature: &[u8; 64],
) -> Result<(), SignatureError> {
    check_ed25519(public, &signing_input(domain, genesis, body), signature)
}

/// Verifies an ML-DSA-87 signature (empty context).
///
/// # Errors
/// When the signature has another length or does not verify.
pub fn verify_mldsa(
    public: &mldsa::PublicKey,
    domain: &str,
    genesis: &GenesisHash,
    body: &[u8],
    signature: &[u8],
) -> Result<(), SignatureError> {
    check_mldsa(public, &signing_input(domain, genesis, body), signature)
}

fn check_ed25519(public: &[u8; 32], input: &[u8], signature: &[u8; 64]) -> Result<(), SignatureError> {
    let key = ed25519_dalek::VerifyingKey::from_bytes(public).map_err(|_| SignatureError::Ed25519Key)?;
    if key.is_weak() {
        return Err(SignatureError::Ed25519Key);
    }
    key.verify_strict(input, &ed25519_dalek::Signature::from_bytes(signature))
        .map_err(|_| SignatureError::Ed25519)
}

fn check_mldsa(public: &mldsa::PublicKey, input: &[u8], signature: &[u8]) -> Result<(), SignatureError> {
    if public.verify(input, signature) {
        Ok(())
    } else {
        Err(SignatureError::MlDsa)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_input_is_length_domain_genesis_body() {
        let input = signing_input("gym/x/v1", &[7; 32], b"body");
        assert_eq!(input[0], 8);
        assert_eq!(&input[1..9], b"gym/x/v1");
        assert_eq!(&input[9..41], &[7; 32]);
        assert_eq!(&input[41..], b"body");
    }

    #[test]
    fn a_small_order_key_is_refused() {
        // The neutral element: with it, one signature would verify over any message.
        let mut key = [0; 32];
        key[0] = 1;
        let result = verify_ed25519(&key, "gym/x/v1", &[0; 32], b"", &[0; 64]);
        assert_eq!(result, Err(SignatureError::Ed25519Key));
    }
}
