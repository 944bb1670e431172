//! The key schedule of a link and of its epochs.

use super::cipher::Cipher;
use super::hmac::{Key, expand, hmac};
use super::{MAC_BYTES, TAG_BYTES};
use crate::mlkem::Secret;
use crate::sha3_256;
use std::fmt;

/// What both ends derive from transcript and KEM secret.
pub(super) struct Schedule {
    /// The key of epoch 0, A to B.
    pub(super) a2b: EpochKey,
    /// MAC_A, with which A proves that it holds the secret.
    pub(super) mac_a: [u8; MAC_BYTES],
    /// MAC_B.
    pub(super) mac_b: [u8; MAC_BYTES],
}

impl Schedule {
    pub(super) fn derive(transcript: &[u8], secret: &Secret) -> Self {
        let extracted = hmac(&sha3_256(&[transcript]), &[secret.as_slice()]);
        Self {
            a2b: EpochKey::new(0, expand(&extracted, b"a2b")),
            mac_a: *hmac(&expand(&extracted, b"confirm-a"), &[transcript]),
            mac_b: *hmac(&expand(&extracted, b"confirm-b"), &[transcript]),
        }
    }
}

/// The key of one epoch, with its cipher set up.
pub(super) struct EpochKey {
    epoch: u32,
    key: Key,
    cipher: Cipher,
}

impl EpochKey {
    pub(super) fn new(epoch: u32, key: Key) -> Self {
        let cipher = Cipher::new(&key);
        Self { epoch, key, cipher }
    }

    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// key_{n+1} = HKDF(key_n, `ratchet`); none after the last epoch.
    pub(super) fn next(&self) -> Option<Self> {
        let epoch = self.epoch.checked_add(1)?;
        Some(Self::new(epoch, expand(&self.key, b"ratchet")))
    }

    /// Encrypts `plaintext ‖ end` into `sealed`, which has room for exactly that and the tag; `None` when the lengths are
    /// beyond the cipher.
    pub(super) fn encrypt(
        &self,
        counter: u64,
        associated: &[u8],
        (plaintext, end): (&[u8], &[u8]),
        sealed: &mut [u8],
    ) -> Option<()> {
        let (text, tag_bytes) = sealed.split_last_chunk_mut::<TAG_BYTES>()?;
        let nonce = nonce(self.epoch, counter);
        let tag = self.cipher.encrypt(nonce, associated, (plaintext, end), text)?;
        tag_bytes.copy_from_slice(&tag);
        Some(())
    }

    /// Verifies the tag at `buffer`'s end, then decrypts and cuts it off; `None`, and no plaintext in `buffer`, when it is bad.
    pub(super) fn decrypt(&self, counter: u64, associated: &[u8], buffer: &mut Vec<u8>) -> Option<()> {
        self.cipher
            .decrypt(nonce(self.epoch, counter), associated, buffer)
    }
}

#[cfg(test)]
impl EpochKey {
    pub(super) fn copy_for_test(&self) -> Self {
        Self::new(self.epoch, self.key.clone())
    }
}

impl fmt::Debug for EpochKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EpochKey({})", self.epoch)
    }
}

/// u32 epoch ‖ u64 counter, little-endian.
pub(super) fn nonce(epoch: u32, counter: u64) -> [u8; super::NONCE_BYTES] {
    let mut nonce = [0; super::NONCE_BYTES];
    nonce[..4].copy_from_slice(&epoch.to_le_bytes());
    nonce[4..].copy_from_slice(&counter.to_le_bytes());
    nonce
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hmac_sha3(key: &[u8], data: &[&[u8]]) -> [u8; 32] {
        let mut block = [0; 136];
        block[..key.len()].copy_from_slice(key);
        let inner = block.map(|b| b ^ 0x36);
        let outer = block.map(|b| b ^ 0x5c);
        let mut parts = vec![inner.as_slice()];
        parts.extend_from_slice(data);
        sha3_256(&[&outer, &sha3_256(&parts)])
    }

    /// The schedule written out by hand from RFC 2104 and RFC 5869.
    #[test]
    fn the_schedule_is_hkdf_with_hmac_sha3_256() {
        let (transcript, secret) = (b"transcript".as_slice(), Secret::new([7; 32]));
        let schedule = Schedule::derive(transcript, &secret);
        let prk = hmac_sha3(&sha3_256(&[transcript]), &[secret.as_slice()]);
        assert_eq!(*schedule.a2b.key, hmac_sha3(&prk, &[b"a2b", &[1]]));
        let confirm_a = hmac_sha3(&prk, &[b"confirm-a", &[1]]);
        assert_eq!(schedule.mac_a, hmac_sha3(&confirm_a, &[transcript]));
        let confirm_b = hmac_sha3(&prk, &[b"confirm-b", &[1]]);
        assert_eq!(schedule.mac_b, hmac_sha3(&confirm_b, &[transcript]));
        let next = schedule.a2b.next().unwrap();
        assert_eq!(
            *next.key,
            hmac_sha3(schedule.a2b.key.as_slice(), &[b"ratchet", &[1]])
        );
        assert_eq!(next.epoch(), 1);
    }

    #[test]
    fn the_last_epoch_has_no_next() {
        assert!(EpochKey::new(u32::MAX, Key::default()).next().is_none());
    }

    #[test]
    fn the_nonce_is_epoch_then_counter() {
        assert_eq!(nonce(0x0403_0201, 5), [1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 0]);
    }
}
