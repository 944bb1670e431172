//! The sending end of a link.

use super::keys::{EpochKey, nonce};
use super::{Config, MAC_BYTES, NONCE_BYTES, SealError, TAG_BYTES};
use zeroize::Zeroize as _;

/// Seals messages in order, with a new key each epoch.
#[derive(Debug)]
pub struct Sealer {
    key: EpochKey,
    /// Of the next message.
    counter: u64,
    epoch_began_ms: u64,
    /// MAC_A, until the first message has carried it.
    confirmation: Option<[u8; MAC_BYTES]>,
    config: Config,
}

impl Sealer {
    pub(super) fn new(key: EpochKey, mac_a: [u8; MAC_BYTES], now_ms: u64, config: Config) -> Self {
        Self {
            key,
            counter: 0,
            epoch_began_ms: now_ms,
            confirmation: Some(mac_a),
            config,
        }
    }

    /// Seals `buffer` in place under `associated` data, which the receiver must know too, and appends tag, epoch and
    /// counter: [`super::OVERHEAD_BYTES`], [`super::FIRST_OVERHEAD_BYTES`] the first time.
    ///
    /// The first sealed message must reach the receiver first.
    ///
    /// # Errors
    /// When the message is too long or the link is used up; `buffer` is then as it was.
    pub fn seal(&mut self, now_ms: u64, associated: &[u8], buffer: &mut Vec<u8>) -> Result<(), SealError> {
        let mut sealed = Vec::new();
        self.seal_into(now_ms, associated, buffer, &mut sealed)?;
        buffer.zeroize();
        *buffer = sealed;
        Ok(())
    }

    /// As [`Self::seal`], from `plaintext` to `sealed`, whose memory is used again.
    ///
    /// # Errors
    /// When the message is too long or the link is used up; there is nothing sealed in `sealed` then.
    pub fn seal_into(
        &mut self,
        now_ms: u64,
        associated: &[u8],
        plaintext: &[u8],
        sealed: &mut Vec<u8>,
    ) -> Result<(), SealError> {
        let (len, max) = (plaintext.len(), self.config.max_plaintext);
        if len > max {
            return Err(SealError::TooLong { len, max });
        }
        if self.epoch_is_over(now_ms) {
            self.ratchet(now_ms)?;
        }
        let counter = self.counter;
        let confirmation = self.confirmation;
        let end = confirmation.as_ref().map_or(&[][..], |mac| mac.as_slice());
        let encrypted = len + end.len() + TAG_BYTES;
        sealed.resize(encrypted + NONCE_BYTES, 0);
        let (text, nonce_bytes) = sealed.split_at_mut(encrypted);
        if self
            .key
            .encrypt(counter, associated, (plaintext, end), text)
            .is_none()
        {
            sealed.clear();
            return Err(SealError::Cipher);
        }
        nonce_bytes.copy_from_slice(&nonce(self.key.epoch(), counter));
        self.counter += 1;
        self.confirmation = None;
        Ok(())
    }

    /// The epoch of the last message.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.key.epoch()
    }

    /// The first message, which confirms the link, belongs to epoch 0 however late it comes.
    fn epoch_is_over(&self, now_ms: u64) -> bool {
        let aged = now_ms.saturating_sub(self.epoch_began_ms) >= self.config.epoch_ms;
        self.confirmation.is_none() && (aged || self.counter >= self.config.epoch_messages)
    }

    fn ratchet(&mut self, now_ms: u64) -> Result<(), SealError> {
        self.key = self.key.next().ok_or(SealError::Exhausted)?;
        self.counter = 0;
        self.epoch_began_ms = now_ms;
        Ok(())
    }
}

#[cfg(test)]
impl Sealer {
    pub(super) fn break_confirmation_for_test(&mut self, at: usize) {
        self.confirmation.as_mut().unwrap()[at] ^= 1;
    }
}
