//! By RustCrypto's `aes-gcm`.

use super::{Nonce, Tag};
use aes_gcm::aead::AeadInOut as _;
use aes_gcm::aead::inout::InOutBuf;
use aes_gcm::{Aes256Gcm, KeyInit as _};

/// A key, set up.
pub(in crate::link) struct Cipher(Aes256Gcm);

impl Cipher {
    pub(in crate::link) fn new(key: &[u8; 32]) -> Self {
        Self(Aes256Gcm::new(key.into()))
    }

    /// Encrypts `plaintext ‖ end` into `sealed`, which is as long; `None` when the lengths are beyond the cipher.
    pub(in crate::link) fn encrypt(
        &self,
        nonce: Nonce,
        associated: &[u8],
        (plaintext, end): (&[u8], &[u8]),
        sealed: &mut [u8],
    ) -> Option<Tag> {
        let buffer = if end.is_empty() {
            InOutBuf::new(plaintext, sealed).ok()?
        } else {
            let (head, tail) = sealed.split_at_mut_checked(plaintext.len())?;
            if tail.len() != end.len() {
                return None;
            }
            head.copy_from_slice(plaintext);
            tail.copy_from_slice(end);
            InOutBuf::from(sealed)
        };
        let tag = self
            .0
            .encrypt_inout_detached(&nonce.into(), associated, buffer)
            .ok()?;
        Some(tag.into())
    }

    /// Verifies the tag at `buffer`'s end, then decrypts and cuts it off; `None`, and no plaintext in `buffer`, when it is bad.
    pub(in crate::link) fn decrypt(
        &self,
        nonce: Nonce,
        associated: &[u8],
        buffer: &mut Vec<u8>,
    ) -> Option<()> {
        self.0.decrypt_in_place(&nonce.into(), associated, buffer).ok()
    }
}
