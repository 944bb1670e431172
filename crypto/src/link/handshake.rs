//! The two messages that make a link. Each party is known by its identity record, which the caller has verified at the
//! present time against an anchor it trusts: the link is worth no more than that.

use super::keys::Schedule;
use super::message::{Init, InitHeader, Response, push_signatures};
use super::{Config, HandshakeError, INIT_DOMAIN, Party, PendingReceiver, RESPONSE_DOMAIN, Sealer};
use crate::identity::Identity;
use crate::mlkem::{self, DecapsulationKey, EncapsulationKey};
use crate::record::VerifiedRecord;
use crate::signing::{GenesisHash, PublicKeys, Signatures};
use std::fmt;
use subtle::ConstantTimeEq as _;

/// Our end of every link: keys, the record that names them, and the network.
#[derive(Debug, Clone, Copy)]
pub struct LinkParty<'a> {
    identity: &'a Identity,
    record: &'a VerifiedRecord,
    genesis: &'a GenesisHash,
}

impl<'a> LinkParty<'a> {
    /// Puts our end together.
    ///
    /// # Errors
    /// When `record` does not hold `identity`'s keys.
    pub fn new(
        identity: &'a Identity,
        record: &'a VerifiedRecord,
        genesis: &'a GenesisHash,
    ) -> Result<Self, HandshakeError> {
        if record.keys() != identity.public() {
            return Err(HandshakeError::OwnRecord);
        }
        Ok(Self {
            identity,
            record,
            genesis,
        })
    }
}

/// A, after message 1. Holds the ephemeral key, which is overwritten when this is dropped or finished.
pub struct Initiator {
    genesis: GenesisHash,
    peer: PublicKeys,
    message: Vec<u8>,
    key: DecapsulationKey,
}

impl Initiator {
    /// Starts a link to `peer`: the state to keep and message 1 to send.
    ///
    /// # Errors
    /// When `peer` is ourselves or there is no randomness.
    pub fn new(own: LinkParty<'_>, peer: &VerifiedRecord) -> Result<(Self, Vec<u8>), HandshakeError> {
        if own.record.peer() == peer.peer() {
            return Err(HandshakeError::SamePeer);
        }
        let header = InitHeader {
            genesis: *own.genesis,
            initiator_record: *own.record.hash(),
            responder_record: *peer.hash(),
        };
        let (ek, key) = mlkem::generate();
        let mut message = Init::body(&header, &fresh_nonce()?, ek.as_bytes());
        let signatures = own.identity.sign_both(INIT_DOMAIN, own.genesis, &message);
        push_signatures(&mut message, &signatures);
        let state = Self {
            genesis: *own.genesis,
            peer: peer.keys().clone(),
            message: message.clone(),
            key,
        };
        Ok((state, message))
    }

    /// Takes message 2: the link's sending end. `now_ms` begins its first epoch.
    ///
    /// # Errors
    /// When the message is not the peer's answer to our message 1.
    pub fn finish(self, message: &[u8], now_ms: u64, config: Config) -> Result<Sealer, HandshakeError> {
        let response = Response::parse(message)?;
        let signed = [&self.message, response.body].concat();
        let checked = self
            .peer
            .verify_both(RESPONSE_DOMAIN, &self.genesis, &signed, &response.signatures);
        checked.map_err(|error| HandshakeError::Signature {
            party: Party::Responder,
            error,
        })?;
        let secret = self.key.decapsulate(response.ciphertext);
        let transcript = [&self.message, response.transcript].concat();
        let schedule = Schedule::derive(&transcript, &secret);
        if schedule.mac_b.ct_eq(response.mac).unwrap_u8() == 0 {
            return Err(HandshakeError::Confirmation);
        }
        Ok(Sealer::new(schedule.a2b, schedule.mac_a, now_ms, config))
    }
}

#[cfg(test)]
impl Initiator {
    pub(super) fn copy_for_test(&self) -> Self {
        let key = DecapsulationKey::from_bytes(self.key.as_bytes()).unwrap();
        Self {
            genesis: self.genesis,
            peer: self.peer.clone(),
            message: self.message.clone(),
            key,
        }
    }
}

impl fmt::Debug for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Initiator(to ed25519 {})", hex::encode(self.peer.ed25519))
    }
}

/// B: answers message 1 of `peer`, whose record [`super::peek_init`] named. Returns the receiving end, which accepts
/// nothing before MAC_A, and message 2 to send.
///
/// # Errors
/// When the message is not for us, of this network, from `peer`, signed by both keys, with a valid key.
pub fn respond(
    own: LinkParty<'_>,
    peer: &VerifiedRecord,
    message: &[u8],
    config: Config,
) -> Result<(PendingReceiver, Vec<u8>), HandshakeError> {
    let init = Init::parse(message)?;
    check_header(&init.header, own, peer)?;
    let checked = peer
        .keys()
        .verify_both(INIT_DOMAIN, own.genesis, init.body, &init.signatures);
    checked.map_err(|error| HandshakeError::Signature {
        party: Party::Initiator,
        error,
    })?;
    let (ciphertext, secret) = EncapsulationKey::from_bytes(init.ek)?.encapsulate();

    let mut response = Response::body(&fresh_nonce()?, &ciphertext);
    let signatures = sign_response(own, message, &response);
    push_signatures(&mut response, &signatures);
    let schedule = Schedule::derive(&[message, &response].concat(), &secret);
    response.extend_from_slice(&schedule.mac_b);
    Ok((
        PendingReceiver::new(schedule.a2b, schedule.mac_a, config),
        response,
    ))
}

fn check_header(
    header: &InitHeader,
    own: LinkParty<'_>,
    peer: &VerifiedRecord,
) -> Result<(), HandshakeError> {
    if header.genesis != *own.genesis {
        return Err(HandshakeError::Genesis {
            theirs: hex::encode(header.genesis),
            ours: hex::encode(own.genesis),
        });
    }
    check_record(Party::Initiator, &header.initiator_record, peer)?;
    check_record(Party::Responder, &header.responder_record, own.record)?;
    if own.record.peer() == peer.peer() {
        return Err(HandshakeError::SamePeer);
    }
    Ok(())
}

fn check_record(party: Party, named: &[u8; 32], known: &VerifiedRecord) -> Result<(), HandshakeError> {
    if named == known.hash() {
        return Ok(());
    }
    Err(HandshakeError::Record {
        party,
        named: hex::encode(named),
        known: hex::encode(known.hash()),
    })
}

fn sign_response(own: LinkParty<'_>, init: &[u8], body: &[u8]) -> Signatures {
    own.identity
        .sign_both(RESPONSE_DOMAIN, own.genesis, &[init, body].concat())
}

fn fresh_nonce() -> Result<[u8; 32], HandshakeError> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(HandshakeError::Randomness)?;
    Ok(nonce)
}
