//! The sending end of a link.

use super::keys::{EpochKey, nonce};
use super::{Config, MAC_BYTES, SealError};

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
    /// counter: [`super::OVERHEAD_BYTES`], [`super::FIRST_OVERHEAD_BYTES`] the first time. Reserve them to avoid a copy.
    ///
    /// The first sealed message must reach the receiver first.
    ///
    /// # Errors
    /// When the message is too long or the link is used up.
    pub fn seal(&mut self, now_ms: u64, associated: &[u8], buffer: &mut Vec<u8>) -> Result<(), SealError> {
        let (len, max) = (buffer.len(), self.config.max_plaintext);
        if len > max {
            return Err(SealError::TooLong { len, max });
        }
        if self.epoch_is_over(now_ms) {
            self.ratchet(now_ms)?;
        }
        let counter = self.counter;
        if let Some(mac) = self.confirmation {
            buffer.extend_from_slice(&mac);
        }
        if self.key.encrypt(counter, associated, buffer).is_none() {
            buffer.truncate(len);
            return Err(SealError::Cipher);
        }
        self.counter += 1;
        self.confirmation = None;
        buffer.extend_from_slice(&nonce(self.key.epoch(), counter));
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
