//! The sealed link: one direction, from the sender that opened it to one receiver, on top of any transport (section 2).
//!
//! ```text
//! A (sends)                                                   B (receives)
//! Initiator::new  ── message 1 ─────────────────────────────▶ peek_init, respond
//! Initiator::finish ◀───────────────────────── message 2 ──── PendingReceiver
//! Sealer::seal    ── first sealed message, with MAC_A ──────▶ PendingReceiver::open_first
//! Sealer::seal    ── sealed messages ───────────────────────▶ Opener::open
//! ```
//!
//! Message 1 (6,003 bytes): genesis hash (32) ‖ A's record hash (32) ‖ B's record hash (32) ‖ nonce_a (32) ‖
//! ML-KEM-768 key ek (1184) ‖ Ed25519 (64) ‖ ML-DSA-87 (4627), both over all before them, domain `gym/link-init/v1`.
//!
//! Message 2 (5,843 bytes): nonce_b (32) ‖ ciphertext ct (1088) ‖ Ed25519 (64) ‖ ML-DSA-87 (4627), both over
//! message 1 ‖ nonce_b ‖ ct, domain `gym/link-resp/v1` ‖ MAC_B (32).
//!
//! Keys: transcript = message 1 ‖ message 2 without MAC_B. HKDF-Extract (HMAC-SHA3-256, salt = SHA3-256(transcript),
//! input = KEM secret), then HKDF-Expand with the labels `a2b`, `confirm-a`, `confirm-b` (32 bytes each); `b2a` is kept
//! for replies, which version 1 does not send. MAC_X = HMAC-SHA3-256(confirm key, transcript).
//!
//! A sealed message: AES-256-GCM ciphertext ‖ tag (16) ‖ u32 epoch ‖ u64 counter, the last two being the nonce. What
//! belongs to the position on the wire comes last, so that sealing and opening work in the caller's buffer. The message
//! of epoch 0, counter 0 ends, under the encryption, with MAC_A (32).
//!
//! Ratchet: key of epoch n + 1 = HKDF-Expand(key of epoch n, `ratchet`).
//!
//! No clock is read here: times are the caller's monotonic milliseconds.

mod cipher;
mod error;
mod handshake;
mod hmac;
mod keys;
mod message;
mod open;
mod seal;
#[cfg(test)]
mod tests;
mod window;

pub use error::{HandshakeError, OpenError, Party, SealError};
pub use handshake::{Initiator, LinkParty, respond};
pub use message::{INIT_BYTES, InitHeader, RESPONSE_BYTES, peek_init};
pub use open::{Opener, PendingReceiver};
pub use seal::Sealer;

/// The domain of message 1's signatures.
pub const INIT_DOMAIN: &str = "gym/link-init/v1";
/// The domain of message 2's signatures.
pub const RESPONSE_DOMAIN: &str = "gym/link-resp/v1";

/// Bytes of an AES-GCM tag.
const TAG_BYTES: usize = 16;
/// Bytes of the nonce at a sealed message's end.
const NONCE_BYTES: usize = 12;
/// Bytes of a confirmation MAC.
const MAC_BYTES: usize = 32;

/// How many bytes sealing adds to a message.
pub const OVERHEAD_BYTES: usize = TAG_BYTES + NONCE_BYTES;
/// How many bytes sealing adds to a link's first message.
pub const FIRST_OVERHEAD_BYTES: usize = OVERHEAD_BYTES + MAC_BYTES;
/// How far behind the newest counter of its epoch a message may be.
pub const REPLAY_WINDOW: u64 = 1024;

/// Limits of a link. Both ends must hold the same; the defaults are the specification's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Messages sealed with one key, after which the next epoch begins; at least 1.
    pub epoch_messages: u64,
    /// Milliseconds one key is used, after which the next epoch begins.
    pub epoch_ms: u64,
    /// Milliseconds the receiver still takes the old epoch's messages.
    pub grace_ms: u64,
    /// Most plaintext bytes in one message.
    pub max_plaintext: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            epoch_messages: 1 << 20,
            epoch_ms: 60 * 60 * 1000,
            grace_ms: 30_000,
            max_plaintext: 16 << 20,
        }
    }
}
