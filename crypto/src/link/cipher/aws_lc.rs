//! By AWS-LC, which overwrites its copy of the key when it is dropped.

use super::{Nonce, Tag};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce as AeadNonce, UnboundKey};

/// A key, set up.
pub(in crate::link) struct Cipher(LessSafeKey);

impl Cipher {
    pub(in crate::link) fn new(key: &[u8; 32]) -> Self {
        let key = UnboundKey::new(&AES_256_GCM, key).expect("a key of 32 bytes");
        Self(LessSafeKey::new(key))
    }

    /// Encrypts `plaintext ‖ end` into `sealed`, which is as long; `None` when the lengths are beyond the cipher.
    pub(in crate::link) fn encrypt(
        &self,
        nonce: Nonce,
        associated: &[u8],
        (plaintext, end): (&[u8], &[u8]),
        sealed: &mut [u8],
    ) -> Option<Tag> {
        let (head, tail) = sealed.split_at_mut_checked(plaintext.len())?;
        if tail.len() != end.len() {
            return None;
        }
        head.copy_from_slice(plaintext);
        tail.copy_from_slice(end);
        let nonce = AeadNonce::assume_unique_for_key(nonce);
        let tag = self
            .0
            .seal_in_place_separate_tag(nonce, Aad::from(associated), sealed)
            .ok()?;
        tag.as_ref().try_into().ok()
    }

    /// Verifies the tag at `buffer`'s end, then decrypts and cuts it off; `None`, and no plaintext in `buffer`, when it is bad.
    pub(in crate::link) fn decrypt(
        &self,
        nonce: Nonce,
        associated: &[u8],
        buffer: &mut Vec<u8>,
    ) -> Option<()> {
        let nonce = AeadNonce::assume_unique_for_key(nonce);
        let opened = self.0.open_in_place(nonce, Aad::from(associated), buffer).ok()?;
        let len = opened.len();
        buffer.truncate(len);
        Some(())
    }
}
