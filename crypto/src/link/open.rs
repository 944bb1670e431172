//! The receiving end of a link.

use super::keys::EpochKey;
use super::window::{Seen, Window};
use super::{Config, FIRST_OVERHEAD_BYTES, MAC_BYTES, NONCE_BYTES, OVERHEAD_BYTES, OpenError};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroize as _;

/// B after message 2: nothing is accepted before the message that carries MAC_A.
#[derive(Debug)]
pub struct PendingReceiver {
    key: EpochKey,
    mac_a: [u8; MAC_BYTES],
    config: Config,
}

impl PendingReceiver {
    pub(super) fn new(key: EpochKey, mac_a: [u8; MAC_BYTES], config: Config) -> Self {
        Self { key, mac_a, config }
    }

    /// Opens the first message in place, as [`Opener::open`] does, and with it the link. A failure ends the link.
    ///
    /// # Errors
    /// When it is not the first message, does not open, or its MAC_A is wrong; `buffer` then holds no plaintext.
    pub fn open_first(self, associated: &[u8], buffer: &mut Vec<u8>) -> Result<Opener, OpenError> {
        let position = Position::read(buffer, FIRST_OVERHEAD_BYTES, &self.config)?;
        let Position { epoch, counter } = position;
        if (epoch, counter) != (0, 0) {
            return Err(OpenError::NotConfirmed { epoch, counter });
        }
        decrypt(&self.key, counter, associated, buffer)?;
        if !self.confirms(buffer) {
            buffer.zeroize();
            return Err(OpenError::Confirmation);
        }
        buffer.truncate(buffer.len() - MAC_BYTES);
        let mut current = Receiving::new(self.key);
        current.window.mark(counter);
        Ok(Opener {
            current,
            old: None,
            config: self.config,
        })
    }

    fn confirms(&self, plaintext: &[u8]) -> bool {
        plaintext
            .last_chunk::<MAC_BYTES>()
            .is_some_and(|mac| self.mac_a.ct_eq(mac).into())
    }
}

#[cfg(test)]
impl PendingReceiver {
    pub(super) fn copy_for_test(&self) -> Self {
        Self {
            key: self.key.copy_for_test(),
            mac_a: self.mac_a,
            config: self.config,
        }
    }
}

/// Opens messages of the current epoch and the next, for a while of the old one, each once.
#[derive(Debug)]
pub struct Opener {
    current: Receiving,
    /// The epoch before, and when to forget it.
    old: Option<(Receiving, u64)>,
    config: Config,
}

impl Opener {
    /// Opens a sealed message in place: on success `buffer` is the plaintext.
    ///
    /// # Errors
    /// When the message was altered, replayed, comes from an epoch not accepted at `now_ms`, or has other `associated`
    /// data; `buffer` then holds no plaintext and the link stays as it was.
    pub fn open(&mut self, now_ms: u64, associated: &[u8], buffer: &mut Vec<u8>) -> Result<(), OpenError> {
        let Position { epoch, counter } = Position::read(buffer, OVERHEAD_BYTES, &self.config)?;
        self.forget_old(now_ms);
        let current = self.current.key.epoch();
        if epoch == current {
            return self.current.open(counter, associated, buffer);
        }
        if Some(epoch) == current.checked_add(1) {
            return self.open_next(now_ms, counter, associated, buffer);
        }
        match &mut self.old {
            Some((old, _)) if old.key.epoch() == epoch => old.open(counter, associated, buffer),
            _ => Err(OpenError::Epoch { epoch, current }),
        }
    }

    /// The current epoch.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.current.key.epoch()
    }

    /// Moves on to the next epoch once a message of it has been verified.
    fn open_next(
        &mut self,
        now_ms: u64,
        counter: u64,
        associated: &[u8],
        buffer: &mut Vec<u8>,
    ) -> Result<(), OpenError> {
        let current = self.current.key.epoch();
        let key = self.current.key.next().ok_or(OpenError::Epoch {
            epoch: current,
            current,
        })?;
        let mut next = Receiving::new(key);
        next.open(counter, associated, buffer)?;
        let old = std::mem::replace(&mut self.current, next);
        self.old = Some((old, now_ms.saturating_add(self.config.grace_ms)));
        Ok(())
    }

    /// When the old epoch's key is to be forgotten, in milliseconds of the clock given to [`Self::open`]; `None` once it is.
    #[must_use]
    pub fn forget_at(&self) -> Option<u64> {
        self.old.as_ref().map(|(_, until)| until.saturating_add(1))
    }

    /// Forgets the old epoch's key once its time is over: on a link that is idle, no message does it.
    pub fn forget_old(&mut self, now_ms: u64) {
        if self.old.as_ref().is_some_and(|(_, until)| now_ms > *until) {
            self.old = None;
        }
    }
}

/// A key and which of its messages were seen.
#[derive(Debug)]
struct Receiving {
    key: EpochKey,
    window: Window,
}

impl Receiving {
    fn new(key: EpochKey) -> Self {
        Self {
            key,
            window: Window::default(),
        }
    }

    fn open(&mut self, counter: u64, associated: &[u8], buffer: &mut Vec<u8>) -> Result<(), OpenError> {
        match self.window.check(counter) {
            Seen::New => {}
            Seen::Before => {
                return Err(OpenError::Replay {
                    epoch: self.key.epoch(),
                    counter,
                });
            }
            Seen::Behind(newest) => return Err(OpenError::Behind { counter, newest }),
        }
        decrypt(&self.key, counter, associated, buffer)?;
        self.window.mark(counter);
        Ok(())
    }
}

/// Takes the nonce off the end, verifies the tag and decrypts.
fn decrypt(key: &EpochKey, counter: u64, associated: &[u8], buffer: &mut Vec<u8>) -> Result<(), OpenError> {
    buffer.truncate(buffer.len().saturating_sub(NONCE_BYTES));
    key.decrypt(counter, associated, buffer).ok_or(OpenError::BadTag {
        epoch: key.epoch(),
        counter,
    })
}

/// Epoch and counter at a sealed message's end.
struct Position {
    epoch: u32,
    counter: u64,
}

impl Position {
    /// Reads it, the message's length and the counter's bound checked.
    fn read(message: &[u8], overhead: usize, config: &Config) -> Result<Self, OpenError> {
        let (len, max) = (message.len(), config.max_plaintext.saturating_add(overhead));
        if len > max {
            return Err(OpenError::TooLong { len, max });
        }
        let Some((rest, counter)) = message.split_last_chunk() else {
            return Err(OpenError::TooShort { len });
        };
        let (Some(epoch), true) = (rest.last_chunk(), len >= overhead) else {
            return Err(OpenError::TooShort { len });
        };
        let (epoch, counter) = (u32::from_le_bytes(*epoch), u64::from_le_bytes(*counter));
        if counter >= config.epoch_messages {
            return Err(OpenError::EpochFull {
                counter,
                limit: config.epoch_messages,
            });
        }
        Ok(Self { epoch, counter })
    }
}
