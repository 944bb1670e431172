//! ML-DSA-87 (FIPS 204) signatures behind our own types; the only module that names pqcrypto-mldsa.
//!
//! pqcrypto-mldsa binds PQClean's C code and is no longer maintained (RUSTSEC-2026-0166; `deny.toml` says why it
//! stays). Its portable code is used, not its AVX2 and NEON code: the AVX2 verifier omits the norm check of FIPS 204's
//! algorithm 8 and takes a hint at 0 the wrong way, so that nodes on different processors would disagree about crafted
//! signatures (`tests/vectors.rs` shows both). Signing is randomised, so compare signed bodies and never signatures.

use pqcrypto_mldsa::mldsa87 as backend;
use pqcrypto_traits::sign::{DetachedSignature as _, PublicKey as _, SecretKey as _};
use serde::{Deserialize, Serialize};
use std::fmt;
use zeroize::{DefaultIsZeroes, Zeroize};

/// Bytes of a public key.
pub const PUBLIC_KEY_BYTES: usize = 2592;
/// Bytes of a secret key in FIPS 204's expanded encoding.
pub const SECRET_KEY_BYTES: usize = 4896;
/// Bytes of a signature.
pub const SIGNATURE_BYTES: usize = 4627;

/// A key of the wrong length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an ML-DSA-87 {what} has {expected} bytes, not {len}")]
pub struct LengthError {
    what: &'static str,
    expected: usize,
    len: usize,
}

/// A public key. Any 2592 bytes are one; only signatures can be wrong under it.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PublicKey(#[serde(with = "boxed_bytes")] Box<[u8; PUBLIC_KEY_BYTES]>);

impl PublicKey {
    /// Takes a public key's bytes.
    ///
    /// # Errors
    /// When there are not [`PUBLIC_KEY_BYTES`] of them.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, LengthError> {
        let array: [u8; PUBLIC_KEY_BYTES] = bytes.try_into().map_err(|_| LengthError {
            what: "public key",
            expected: PUBLIC_KEY_BYTES,
            len: bytes.len(),
        })?;
        Ok(Self(Box::new(array)))
    }

    /// The key's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; PUBLIC_KEY_BYTES] {
        &self.0
    }

    /// Whether `signature` is this key's over `message`, with the empty context.
    #[must_use]
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        if signature.len() != SIGNATURE_BYTES {
            return false;
        }
        let (Ok(key), Ok(signature)) = (
            backend::PublicKey::from_bytes(self.0.as_slice()),
            backend::DetachedSignature::from_bytes(signature),
        ) else {
            return false;
        };
        backend::verify_detached_signature(&signature, message, &key).is_ok()
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mldsa::PublicKey({}…)", hex::encode(&self.0[..4]))
    }
}

/// A secret key, overwritten when dropped. (Copies the backend makes on the stack while it works are out of reach.)
pub struct SecretKey(Box<Raw>);

impl SecretKey {
    /// Takes a secret key's bytes, as [`Self::as_bytes`] gave them.
    ///
    /// # Errors
    /// When there are not [`SECRET_KEY_BYTES`] of them.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, LengthError> {
        let key = backend::SecretKey::from_bytes(bytes).map_err(|_| LengthError {
            what: "secret key",
            expected: SECRET_KEY_BYTES,
            len: bytes.len(),
        })?;
        Ok(Self::take(key))
    }

    /// The key's bytes: a secret.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.0.as_bytes()
    }

    /// Signs `message` with the empty context, [`SIGNATURE_BYTES`] bytes.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        backend::detached_sign(message, &self.0.0).as_bytes().to_vec()
    }

    fn take(key: backend::SecretKey) -> Self {
        let mut raw = Raw(key);
        let boxed = Box::new(raw);
        raw.zeroize();
        Self(boxed)
    }
}

impl Drop for SecretKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("mldsa::SecretKey(…)")
    }
}

/// A new key pair from the operating system's randomness.
#[must_use]
pub fn generate() -> (PublicKey, SecretKey) {
    let (public, secret) = backend::keypair();
    let bytes = public.as_bytes();
    let mut boxed = Box::new([0; PUBLIC_KEY_BYTES]);
    boxed.copy_from_slice(bytes);
    (PublicKey(boxed), SecretKey::take(secret))
}

/// The backend's key, which is `Copy` and cannot be overwritten in place, made to be.
#[derive(Clone, Copy)]
struct Raw(backend::SecretKey);

impl Default for Raw {
    fn default() -> Self {
        Self(backend::SecretKey::from_bytes(&[0; SECRET_KEY_BYTES]).expect("the length is the backend's own"))
    }
}

impl DefaultIsZeroes for Raw {}

mod boxed_bytes {
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer, const N: usize>(bytes: &[u8; N], s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>, const N: usize>(
        d: D,
    ) -> Result<Box<[u8; N]>, D::Error> {
        serde_bytes::deserialize::<[u8; N], D>(d).map(Box::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_the_backends() {
        assert_eq!(PUBLIC_KEY_BYTES, backend::public_key_bytes());
        assert_eq!(SECRET_KEY_BYTES, backend::secret_key_bytes());
        assert_eq!(SIGNATURE_BYTES, backend::signature_bytes());
    }

    #[test]
    fn signs_and_refuses_what_was_not_signed() {
        let (public, secret) = generate();
        let mut signature = secret.sign(b"message");
        assert!(public.verify(b"message", &signature));
        assert!(!public.verify(b"massage", &signature));
        assert!(!public.verify(b"message", &signature[..SIGNATURE_BYTES - 1]));
        signature[0] ^= 1;
        assert!(!public.verify(b"message", &signature));
    }

    #[test]
    fn wiping_leaves_no_key_behind() {
        let (_, mut secret) = generate();
        secret.0.zeroize();
        assert!(secret.as_bytes().iter().all(|b| *b == 0));
    }

    #[test]
    fn a_secret_key_is_not_printed() {
        assert_eq!(format!("{:?}", generate().1), "mldsa::SecretKey(…)");
    }
}
