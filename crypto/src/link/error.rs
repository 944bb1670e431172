//! What can go wrong on a link, one type for each operation.

use crate::mlkem::KeyError;
use crate::signing::SignatureError;
use std::fmt;

/// An end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Party {
    /// A, who opened the link and sends.
    Initiator,
    /// B, who receives.
    Responder,
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Initiator => "initiator",
            Self::Responder => "responder",
        })
    }
}

/// Why a handshake failed. Nothing of it can be used; open a new link.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// A message of the wrong size.
    #[error("link handshake: message {message} has {expected} bytes, not {len}")]
    Length {
        /// 1 or 2.
        message: u8,
        /// Bytes it has.
        expected: usize,
        /// Bytes given.
        len: usize,
    },
    /// The peer is of another network.
    #[error("link handshake: the peer's genesis hash is {theirs}, ours is {ours}: another network")]
    Genesis {
        /// The peer's, in hexadecimal.
        theirs: String,
        /// Ours, in hexadecimal.
        ours: String,
    },
    /// The message names another record than the one given for that party; fetch the record it names.
    #[error("link handshake: the {party}'s identity record is {named} in the message, {known} is known")]
    Record {
        /// Whose record.
        party: Party,
        /// Hash in the message, in hexadecimal.
        named: String,
        /// Hash of the record given, in hexadecimal.
        known: String,
    },
    /// The record given as our own does not hold our keys.
    #[error("link handshake: our identity record does not hold our keys; issue a new record")]
    OwnRecord,
    /// Both ends are one peer.
    #[error("link handshake: both ends are the same peer")]
    SamePeer,
    /// The fresh key is not a valid ML-KEM key.
    #[error("link handshake: {0}")]
    Key(#[from] KeyError),
    /// A signature is bad.
    #[error("link handshake: the {party}'s message: {error}")]
    Signature {
        /// Who signed.
        party: Party,
        /// Which signature.
        error: SignatureError,
    },
    /// MAC_B is wrong: the two ends do not hold one secret.
    #[error("link handshake: the responder's confirmation is wrong")]
    Confirmation,
    /// The operating system gave no randomness.
    #[error("link handshake: the operating system gives no randomness: {0}")]
    Randomness(getrandom::Error),
}

/// Why a message was not sealed. The buffer is as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// Too much plaintext.
    #[error("sealing: {len} bytes of plaintext, at most {max} fit a message; split it")]
    TooLong {
        /// Bytes given.
        len: usize,
        /// Most that fit.
        max: usize,
    },
    /// Every epoch is used up.
    #[error("sealing: the last key epoch is used up; open a new link")]
    Exhausted,
    /// The cipher refused the lengths.
    #[error("sealing: the cipher refused the message or its associated data as too long")]
    Cipher,
}

/// Why a message was not opened. Nothing of it may be used; the link stays as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Too few bytes for a sealed message.
    #[error("opening: {len} bytes, a sealed message has at least {OVERHEAD}", OVERHEAD = super::OVERHEAD_BYTES)]
    TooShort {
        /// Bytes given.
        len: usize,
    },
    /// Too many bytes.
    #[error("opening: {len} bytes, a sealed message has at most {max}")]
    TooLong {
        /// Bytes given.
        len: usize,
        /// Most that are opened.
        max: usize,
    },
    /// The tag is wrong: changed on the way, or other associated data than the sender's.
    #[error(
        "opening: bad tag on message {counter} of epoch {epoch}: altered, or its header differs from the sender's"
    )]
    BadTag {
        /// The message's epoch.
        epoch: u32,
        /// The message's counter.
        counter: u64,
    },
    /// Seen before.
    #[error("opening: message {counter} of epoch {epoch} was seen before")]
    Replay {
        /// The message's epoch.
        epoch: u32,
        /// The message's counter.
        counter: u64,
    },
    /// Too far behind the newest to know whether it was seen before.
    #[error("opening: message {counter} is more than {REPLAY_WINDOW} behind {newest}", REPLAY_WINDOW = super::REPLAY_WINDOW)]
    Behind {
        /// The message's counter.
        counter: u64,
        /// The newest counter of its epoch.
        newest: u64,
    },
    /// Neither the current nor the next epoch, nor the old one within its grace.
    #[error("opening: epoch {epoch} is not accepted, the current one is {current}")]
    Epoch {
        /// The message's epoch.
        epoch: u32,
        /// The current epoch.
        current: u32,
    },
    /// The sender did not ratchet when it had to.
    #[error("opening: message {counter} is beyond the {limit} messages of an epoch; the sender must ratchet")]
    EpochFull {
        /// The message's counter.
        counter: u64,
        /// Messages in an epoch.
        limit: u64,
    },
    /// The first message must come first: it alone carries MAC_A.
    #[error(
        "opening: the link is not confirmed yet, message {counter} of epoch {epoch} came before the first"
    )]
    NotConfirmed {
        /// The message's epoch.
        epoch: u32,
        /// The message's counter.
        counter: u64,
    },
    /// MAC_A is missing or wrong.
    #[error("opening: the initiator's confirmation is wrong")]
    Confirmation,
}
