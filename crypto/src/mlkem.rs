//! ML-KEM-768 (FIPS 203) behind our own types; the only module that names pqcrypto-mlkem.
//!
//! pqcrypto-mlkem binds PQClean's C code and is no longer maintained (RUSTSEC-2026-0161; `deny.toml` says why it
//! stays). It does not check foreign keys, so that happens here, as FIPS 203 section 7.2 and 7.3 ask.

use crate::sha3_256;
use pqcrypto_mlkem::mlkem768 as backend;
use pqcrypto_traits::kem::{Ciphertext as _, PublicKey as _, SecretKey as _, SharedSecret as _};
use std::fmt;
use subtle::ConstantTimeEq as _;
use zeroize::{DefaultIsZeroes, Zeroize, Zeroizing};

/// Bytes of an encapsulation key.
pub const ENCAPSULATION_KEY_BYTES: usize = 1184;
/// Bytes of a decapsulation key in FIPS 203's expanded encoding.
pub const DECAPSULATION_KEY_BYTES: usize = 2400;
/// Bytes of a ciphertext.
pub const CIPHERTEXT_BYTES: usize = 1088;
/// Bytes of the shared secret.
pub const SECRET_BYTES: usize = 32;

/// The field's modulus q.
const MODULUS: u16 = 3329;
/// Bytes of the vector t in an encapsulation key: 3 polynomials of 256 coefficients of 12 bits.
const VECTOR_BYTES: usize = 3 * 256 * 12 / 8;
/// Where a decapsulation key holds its encapsulation key, and that one's hash.
const EMBEDDED_KEY: std::ops::Range<usize> = VECTOR_BYTES..VECTOR_BYTES + ENCAPSULATION_KEY_BYTES;
const EMBEDDED_HASH: std::ops::Range<usize> = EMBEDDED_KEY.end..EMBEDDED_KEY.end + 32;

/// Why bytes are not an ML-KEM-768 key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Wrong length.
    #[error("an ML-KEM-768 {what} has {expected} bytes, not {len}")]
    Length {
        /// Which key.
        what: &'static str,
        /// Bytes it has by the standard.
        expected: usize,
        /// Bytes given.
        len: usize,
    },
    /// A coefficient of the encapsulation key is not below the modulus (FIPS 203 section 7.2).
    #[error("coefficient {index} of the ML-KEM-768 encapsulation key is {value}, not below 3329")]
    Coefficient {
        /// Its place, from 0, in the vector.
        index: usize,
        /// The 12-bit value.
        value: u16,
    },
    /// The hash inside the decapsulation key is not that of its encapsulation key (FIPS 203 section 7.3).
    #[error("the ML-KEM-768 decapsulation key is damaged: it does not match the hash it holds")]
    Hash,
}

/// A checked encapsulation key.
#[derive(Clone, PartialEq, Eq)]
pub struct EncapsulationKey(Box<[u8; ENCAPSULATION_KEY_BYTES]>);

impl EncapsulationKey {
    /// Takes a peer's key and checks its length and every coefficient.
    ///
    /// # Errors
    /// When one of them is wrong; the key must then not be used.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        let array: [u8; ENCAPSULATION_KEY_BYTES] = bytes.try_into().map_err(|_| KeyError::Length {
            what: "encapsulation key",
            expected: ENCAPSULATION_KEY_BYTES,
            len: bytes.len(),
        })?;
        check_coefficients(&array[..VECTOR_BYTES])?;
        Ok(Self(Box::new(array)))
    }

    /// The key's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; ENCAPSULATION_KEY_BYTES] {
        &self.0
    }

    /// A fresh secret and the ciphertext that carries it to the key's owner.
    #[must_use]
    pub fn encapsulate(&self) -> ([u8; CIPHERTEXT_BYTES], Secret) {
        let key = backend::PublicKey::from_bytes(self.0.as_slice()).expect("the length was checked");
        let (secret, ciphertext) = backend::encapsulate(&key);
        let mut bytes = [0; CIPHERTEXT_BYTES];
        bytes.copy_from_slice(ciphertext.as_bytes());
        (bytes, take_secret(secret))
    }
}

impl fmt::Debug for EncapsulationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mlkem::EncapsulationKey({}…)", hex::encode(&self.0[..4]))
    }
}

/// FIPS 203 section 7.2: decoding and encoding must give the same bytes, so every 12-bit integer is below q.
fn check_coefficients(vector: &[u8]) -> Result<(), KeyError> {
    for (i, triple) in vector.chunks_exact(3).enumerate() {
        let [a, b, c] = [triple[0], triple[1], triple[2]].map(u16::from);
        for (j, value) in [a | (b & 0x0f) << 8, b >> 4 | c << 4].into_iter().enumerate() {
            if value >= MODULUS {
                return Err(KeyError::Coefficient {
                    index: 2 * i + j,
                    value,
                });
            }
        }
    }
    Ok(())
}

/// A decapsulation key, overwritten when dropped.
pub struct DecapsulationKey(Box<Raw>);

impl DecapsulationKey {
    /// Takes an expanded decapsulation key and checks length, embedded key and hash (FIPS 203 section 7.3).
    ///
    /// # Errors
    /// When one of them is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        let key = backend::SecretKey::from_bytes(bytes).map_err(|_| KeyError::Length {
            what: "decapsulation key",
            expected: DECAPSULATION_KEY_BYTES,
            len: bytes.len(),
        })?;
        let checked = Self::take(key);
        let embedded = &bytes[EMBEDDED_KEY];
        if sha3_256(&[embedded]).ct_eq(&bytes[EMBEDDED_HASH]).unwrap_u8() == 0 {
            return Err(KeyError::Hash);
        }
        check_coefficients(&embedded[..VECTOR_BYTES])?;
        Ok(checked)
    }

    /// The key's bytes: a secret.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.0.as_bytes()
    }

    /// The secret that `ciphertext` carries. A wrong ciphertext gives an unrelated secret (implicit rejection).
    #[must_use]
    pub fn decapsulate(&self, ciphertext: &[u8; CIPHERTEXT_BYTES]) -> Secret {
        let ciphertext = backend::Ciphertext::from_bytes(ciphertext).expect("the length is the type's");
        take_secret(backend::decapsulate(&ciphertext, &self.0.0))
    }

    fn take(key: backend::SecretKey) -> Self {
        let mut raw = Raw(key);
        let boxed = Box::new(raw);
        raw.zeroize();
        Self(boxed)
    }
}

impl Drop for DecapsulationKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for DecapsulationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("mlkem::DecapsulationKey(…)")
    }
}

/// A shared secret, overwritten when dropped.
pub type Secret = Zeroizing<[u8; SECRET_BYTES]>;

/// A new key pair from the operating system's randomness.
#[must_use]
pub fn generate() -> (EncapsulationKey, DecapsulationKey) {
    let (public, secret) = backend::keypair();
    let mut boxed = Box::new([0; ENCAPSULATION_KEY_BYTES]);
    boxed.copy_from_slice(public.as_bytes());
    (EncapsulationKey(boxed), DecapsulationKey::take(secret))
}

fn take_secret(secret: backend::SharedSecret) -> Secret {
    let mut raw = RawSecret(secret);
    let mut bytes = Zeroizing::new([0; SECRET_BYTES]);
    bytes.copy_from_slice(raw.0.as_bytes());
    raw.zeroize();
    bytes
}

/// The backend's secrets, which are `Copy` and cannot be overwritten in place, made to be.
#[derive(Clone, Copy)]
struct Raw(backend::SecretKey);

impl Default for Raw {
    fn default() -> Self {
        let zeros = [0; DECAPSULATION_KEY_BYTES];
        Self(backend::SecretKey::from_bytes(&zeros).expect("the length is the backend's own"))
    }
}

impl DefaultIsZeroes for Raw {}

#[derive(Clone, Copy)]
struct RawSecret(backend::SharedSecret);

impl Default for RawSecret {
    fn default() -> Self {
        let zeros = [0; SECRET_BYTES];
        Self(backend::SharedSecret::from_bytes(&zeros).expect("the length is the backend's own"))
    }
}

impl DefaultIsZeroes for RawSecret {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_the_backends() {
        assert_eq!(ENCAPSULATION_KEY_BYTES, backend::public_key_bytes());
        assert_eq!(DECAPSULATION_KEY_BYTES, backend::secret_key_bytes());
        assert_eq!(CIPHERTEXT_BYTES, backend::ciphertext_bytes());
        assert_eq!(SECRET_BYTES, backend::shared_secret_bytes());
    }

    #[test]
    fn both_ends_hold_one_secret() {
        let (ek, dk) = generate();
        let (ciphertext, secret) = ek.encapsulate();
        assert_eq!(*secret, *dk.decapsulate(&ciphertext));
        let mut other = ciphertext;
        other[5] ^= 1;
        assert_ne!(*secret, *dk.decapsulate(&other));
    }

    #[test]
    fn every_coefficient_is_checked_at_the_modulus() {
        let (ek, _) = generate();
        for index in 0..768 {
            for (value, accepted) in [(MODULUS - 1, true), (MODULUS, false), (4095, false)] {
                let mut bytes = *ek.as_bytes();
                set_coefficient(&mut bytes, index, value);
                let expected = if accepted {
                    Ok(())
                } else {
                    Err(KeyError::Coefficient { index, value })
                };
                assert_eq!(EncapsulationKey::from_bytes(&bytes).map(drop), expected);
            }
        }
    }

    fn set_coefficient(key: &mut [u8], index: usize, value: u16) {
        let [low, high] = value.to_le_bytes();
        let triple = &mut key[index / 2 * 3..][..3];
        if index.is_multiple_of(2) {
            triple[0] = low;
            triple[1] = (triple[1] & 0xf0) | high;
        } else {
            triple[1] = (triple[1] & 0x0f) | (low << 4);
            triple[2] = (value >> 4) as u8;
        }
    }

    #[test]
    fn wrong_lengths_and_a_damaged_key_are_refused() {
        let (ek, dk) = generate();
        assert!(EncapsulationKey::from_bytes(&ek.as_bytes()[1..]).is_err());
        assert!(DecapsulationKey::from_bytes(&dk.as_bytes()[1..]).is_err());
        assert!(DecapsulationKey::from_bytes(dk.as_bytes()).is_ok());
        let mut damaged = dk.as_bytes().to_vec();
        damaged[EMBEDDED_KEY.end - 1] ^= 1;
        assert_eq!(
            DecapsulationKey::from_bytes(&damaged).map(drop),
            Err(KeyError::Hash)
        );
    }

    #[test]
    fn wiping_leaves_no_key_behind() {
        let (_, mut dk) = generate();
        dk.0.zeroize();
        assert!(dk.as_bytes().iter().all(|b| *b == 0));
    }
}
