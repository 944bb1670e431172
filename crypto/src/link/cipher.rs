//! AES-256-GCM of sealed links, from the library that is built in: RustCrypto's `aes-gcm`, or AWS-LC (C and assembly, which TLS
//! brings anyway) with the feature `aws-lc`. The bytes are the same.

#[cfg(any(test, feature = "aws-lc"))]
mod aws_lc;
#[cfg(any(test, not(feature = "aws-lc")))]
mod rust_crypto;

#[cfg(feature = "aws-lc")]
pub(super) use aws_lc::Cipher;
#[cfg(not(feature = "aws-lc"))]
pub(super) use rust_crypto::Cipher;

use super::{NONCE_BYTES, TAG_BYTES};

/// A message's number, never used twice with a key.
type Nonce = [u8; NONCE_BYTES];
/// The seal at its end.
type Tag = [u8; TAG_BYTES];

#[cfg(test)]
mod tests;
