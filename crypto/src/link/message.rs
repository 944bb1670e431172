//! The handshake's two messages: fixed layouts, so that a value has one encoding and a length can be checked first.

use super::{HandshakeError, MAC_BYTES};
use crate::signing::Signatures;
use crate::{mldsa, mlkem};

/// Bytes of message 1.
pub const INIT_BYTES: usize = INIT_BODY_BYTES + SIGNATURE_BYTES;
/// Bytes of message 2.
pub const RESPONSE_BYTES: usize = RESPONSE_BODY_BYTES + SIGNATURE_BYTES + MAC_BYTES;

const INIT_BODY_BYTES: usize = 4 * 32 + mlkem::ENCAPSULATION_KEY_BYTES;
const RESPONSE_BODY_BYTES: usize = 32 + mlkem::CIPHERTEXT_BYTES;
const SIGNATURE_BYTES: usize = 64 + mldsa::SIGNATURE_BYTES;

/// What message 1 says about its parties, not yet verified: enough to look up the sender's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitHeader {
    /// The sender's network.
    pub genesis: [u8; 32],
    /// The sender's identity record.
    pub initiator_record: [u8; 32],
    /// The identity record of ours that the sender knows.
    pub responder_record: [u8; 32],
}

/// Reads who sent message 1. Checks its length only; [`super::respond`] verifies it.
///
/// # Errors
/// When it has not [`INIT_BYTES`] bytes.
pub fn peek_init(message: &[u8]) -> Result<InitHeader, HandshakeError> {
    Ok(Init::parse(message)?.header)
}

/// Message 1 taken apart.
#[derive(Debug)]
pub(super) struct Init<'a> {
    pub(super) header: InitHeader,
    pub(super) ek: &'a [u8; mlkem::ENCAPSULATION_KEY_BYTES],
    /// What is signed.
    pub(super) body: &'a [u8],
    pub(super) signatures: Signatures,
}

impl<'a> Init<'a> {
    pub(super) fn parse(message: &'a [u8]) -> Result<Self, HandshakeError> {
        let wrong = HandshakeError::Length {
            message: 1,
            expected: INIT_BYTES,
            len: message.len(),
        };
        Self::split(message).ok_or(wrong)
    }

    fn split(message: &'a [u8]) -> Option<Self> {
        let mut rest = message;
        let header = InitHeader {
            genesis: *take(&mut rest)?,
            initiator_record: *take(&mut rest)?,
            responder_record: *take(&mut rest)?,
        };
        let _nonce: &[u8; 32] = take(&mut rest)?;
        let ek = take(&mut rest)?;
        let signatures = take_signatures(&mut rest)?;
        rest.is_empty().then_some(Self {
            header,
            ek,
            body: &message[..INIT_BODY_BYTES],
            signatures,
        })
    }

    /// The bytes that are signed.
    pub(super) fn body(
        header: &InitHeader,
        nonce: &[u8; 32],
        ek: &[u8; mlkem::ENCAPSULATION_KEY_BYTES],
    ) -> Vec<u8> {
        let InitHeader {
            genesis,
            initiator_record,
            responder_record,
        } = header;
        let mut body = Vec::with_capacity(INIT_BYTES);
        for part in [genesis.as_slice(), initiator_record, responder_record, nonce, ek] {
            body.extend_from_slice(part);
        }
        body
    }
}

/// Message 2 taken apart.
#[derive(Debug)]
pub(super) struct Response<'a> {
    pub(super) ciphertext: &'a [u8; mlkem::CIPHERTEXT_BYTES],
    /// What is signed, after message 1.
    pub(super) body: &'a [u8],
    pub(super) signatures: Signatures,
    /// Everything but the MAC: what message 2 adds to the transcript.
    pub(super) transcript: &'a [u8],
    pub(super) mac: &'a [u8; MAC_BYTES],
}

impl<'a> Response<'a> {
    pub(super) fn parse(message: &'a [u8]) -> Result<Self, HandshakeError> {
        let wrong = HandshakeError::Length {
            message: 2,
            expected: RESPONSE_BYTES,
            len: message.len(),
        };
        Self::split(message).ok_or(wrong)
    }

    fn split(message: &'a [u8]) -> Option<Self> {
        let mut rest = message;
        let _nonce: &[u8; 32] = take(&mut rest)?;
        let ciphertext = take(&mut rest)?;
        let signatures = take_signatures(&mut rest)?;
        let mac = take(&mut rest)?;
        rest.is_empty().then_some(Self {
            ciphertext,
            body: &message[..RESPONSE_BODY_BYTES],
            signatures,
            transcript: &message[..RESPONSE_BYTES - MAC_BYTES],
            mac,
        })
    }

    /// The bytes that are signed after message 1.
    pub(super) fn body(nonce: &[u8; 32], ciphertext: &[u8; mlkem::CIPHERTEXT_BYTES]) -> Vec<u8> {
        let mut body = Vec::with_capacity(RESPONSE_BYTES);
        body.extend_from_slice(nonce);
        body.extend_from_slice(ciphertext);
        body
    }
}

/// Appends both signatures, Ed25519 first.
pub(super) fn push_signatures(message: &mut Vec<u8>, signatures: &Signatures) {
    message.extend_from_slice(&signatures.ed25519);
    message.extend_from_slice(&signatures.mldsa);
}

fn take_signatures(rest: &mut &[u8]) -> Option<Signatures> {
    let ed25519 = *take(rest)?;
    let mldsa: &[u8; mldsa::SIGNATURE_BYTES] = take(rest)?;
    Some(Signatures {
        ed25519,
        mldsa: mldsa.to_vec(),
    })
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(head)
}
