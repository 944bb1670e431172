//! Cryptography of GYM: who a node is, and how two nodes talk so that nobody else can listen or pretend.
//!
//! - [`identity`]: an Ed25519 key (the libp2p peer id) and an ML-DSA-87 key, signed with together;
//! - [`record`]: the identity record that binds the two, its chain of numbers, and evidence of fraud;
//! - [`link`]: the sealed link, ML-KEM-768 handshake and AES-256-GCM messages with a ratchet;
//! - [`attestation`]: what a node says about the machine it runs on, and what that is worth;
//! - [`signing`]: the one shape of every signed byte string;
//! - [`mldsa`], [`mlkem`]: the only modules that name the post-quantum implementation.
//!
//! Everything here is bytes in, bytes out: no sockets, no clock, no files. Sections refer to the GYM protocol.

pub mod attestation;
pub mod identity;
pub mod link;
pub mod mldsa;
pub mod mlkem;
pub mod record;
pub mod signing;

mod canonical;
mod hash;

pub use hash::sha3_256;
