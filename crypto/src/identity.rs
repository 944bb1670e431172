//! A node's two keys: Ed25519, which is its libp2p peer id, and ML-DSA-87 (section 2).

use crate::signing::{GenesisHash, PublicKeys, Signatures, signing_input};
use crate::{mldsa, sha3_256};
use ed25519_dalek::{Signer as _, SigningKey};
use std::fmt;
use zeroize::Zeroizing;

/// Bytes of a peer id: the identity multihash of the protobuf-encoded Ed25519 key.
pub const PEER_BYTES: usize = 38;
/// Bytes of [`Identity::to_secret_bytes`].
pub const SECRET_BYTES: usize = CHECKSUM_AT + 32;

/// A libp2p peer id's bytes.
pub type Peer = [u8; PEER_BYTES];

/// Multihash code 0 (identity), length 36; protobuf field 1 = Ed25519 (1), field 2 = 32 bytes.
const PEER_PREFIX: [u8; 6] = [0x00, 0x24, 0x08, 0x01, 0x12, 0x20];

const SECRET_VERSION: u8 = 1;
const MLDSA_SECRET_AT: usize = 1 + 32;
const MLDSA_PUBLIC_AT: usize = MLDSA_SECRET_AT + mldsa::SECRET_KEY_BYTES;
const CHECKSUM_AT: usize = MLDSA_PUBLIC_AT + mldsa::PUBLIC_KEY_BYTES;

/// Why an identity could not be made or read, or a peer id not be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The operating system gave no randomness.
    #[error("the operating system gives no randomness: {0}")]
    Randomness(getrandom::Error),
    /// The secret has the wrong length.
    #[error("an identity secret has {SECRET_BYTES} bytes, not {0}; restore the key file from a backup")]
    Length(usize),
    /// The secret is of a version this program does not know.
    #[error("identity secret version {0} is unknown, this program reads version {SECRET_VERSION}; update it")]
    Version(u8),
    /// The secret's checksum is wrong.
    #[error("the identity secret is damaged (checksum differs); restore the key file from a backup")]
    Checksum,
    /// Not an Ed25519 peer id.
    #[error("not the peer id of an Ed25519 key ({0} bytes); GYM members need one")]
    Peer(usize),
}

/// Both secret keys of a node, overwritten when dropped.
pub struct Identity {
    ed25519: SigningKey,
    mldsa: mldsa::SecretKey,
    public: PublicKeys,
}

impl Identity {
    /// New keys from the operating system's randomness.
    ///
    /// # Errors
    /// When there is none.
    pub fn generate() -> Result<Self, IdentityError> {
        let mut seed = Zeroizing::new([0; 32]);
        getrandom::fill(seed.as_mut()).map_err(IdentityError::Randomness)?;
        let (mldsa_public, mldsa_secret) = mldsa::generate();
        Ok(Self::assemble(&seed, mldsa_secret, mldsa_public))
    }

    fn assemble(seed: &[u8; 32], mldsa_secret: mldsa::SecretKey, mldsa_public: mldsa::PublicKey) -> Self {
        let ed25519 = SigningKey::from_bytes(seed);
        let public = PublicKeys {
            ed25519: ed25519.verifying_key().to_bytes(),
            mldsa: mldsa_public,
        };
        Self {
            ed25519,
            mldsa: mldsa_secret,
            public,
        }
    }

    /// Everything secret, for a key file that its owner alone can read:
    /// `u8 version 1 ‖ Ed25519 seed (32) ‖ ML-DSA secret key (4896) ‖ ML-DSA public key (2592) ‖ SHA3-256 of all that`.
    #[must_use]
    pub fn to_secret_bytes(&self) -> Zeroizing<Vec<u8>> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(SECRET_BYTES));
        bytes.push(SECRET_VERSION);
        bytes.extend_from_slice(self.ed25519.as_bytes());
        bytes.extend_from_slice(self.mldsa.as_bytes());
        bytes.extend_from_slice(self.public.mldsa.as_bytes());
        let checksum = sha3_256(&[&bytes]);
        bytes.extend_from_slice(&checksum);
        bytes
    }

    /// Reads what [`Self::to_secret_bytes`] wrote.
    ///
    /// # Errors
    /// When length, version or checksum is wrong.
    pub fn from_secret_bytes(bytes: &[u8]) -> Result<Self, IdentityError> {
        let length = IdentityError::Length(bytes.len());
        match bytes.first() {
            Some(&SECRET_VERSION) => {}
            Some(&other) => return Err(IdentityError::Version(other)),
            None => return Err(length),
        }
        if bytes.len() != SECRET_BYTES {
            return Err(length);
        }
        if sha3_256(&[&bytes[..CHECKSUM_AT]]) != bytes[CHECKSUM_AT..] {
            return Err(IdentityError::Checksum);
        }
        let mut seed = Zeroizing::new([0; 32]);
        seed.copy_from_slice(&bytes[1..MLDSA_SECRET_AT]);
        let secret =
            mldsa::SecretKey::from_bytes(&bytes[MLDSA_SECRET_AT..MLDSA_PUBLIC_AT]).map_err(|_| length)?;
        let public =
            mldsa::PublicKey::from_bytes(&bytes[MLDSA_PUBLIC_AT..CHECKSUM_AT]).map_err(|_| length)?;
        Ok(Self::assemble(&seed, secret, public))
    }

    /// The libp2p peer id.
    #[must_use]
    pub fn peer_bytes(&self) -> Peer {
        peer_from_ed25519(&self.public.ed25519)
    }

    /// The Ed25519 secret, from which libp2p makes its key pair.
    #[must_use]
    pub fn ed25519_seed(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(self.ed25519.to_bytes())
    }

    /// Both public keys.
    #[must_use]
    pub fn public(&self) -> &PublicKeys {
        &self.public
    }

    /// Signs with Ed25519 alone: commitments, receipts, hops, complaints.
    #[must_use]
    pub fn sign_ed25519(&self, domain: &str, genesis: &GenesisHash, body: &[u8]) -> [u8; 64] {
        self.ed25519
            .sign(&signing_input(domain, genesis, body))
            .to_bytes()
    }

    /// Signs with ML-DSA-87 alone: the bond from one identity record to the next.
    #[must_use]
    pub fn sign_mldsa(&self, domain: &str, genesis: &GenesisHash, body: &[u8]) -> Vec<u8> {
        self.mldsa.sign(&signing_input(domain, genesis, body))
    }

    /// Signs with both: identity records, link handshakes, jobs, rosters, manifests, attests.
    #[must_use]
    pub fn sign_both(&self, domain: &str, genesis: &GenesisHash, body: &[u8]) -> Signatures {
        let input = signing_input(domain, genesis, body);
        Signatures {
            ed25519: self.ed25519.sign(&input).to_bytes(),
            mldsa: self.mldsa.sign(&input),
        }
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity(ed25519 {})", hex::encode(self.public.ed25519))
    }
}

/// The peer id of an Ed25519 key.
#[must_use]
pub fn peer_from_ed25519(public: &[u8; 32]) -> Peer {
    let mut peer = [0; PEER_BYTES];
    peer[..PEER_PREFIX.len()].copy_from_slice(&PEER_PREFIX);
    peer[PEER_PREFIX.len()..].copy_from_slice(public);
    peer
}

/// The Ed25519 key inside a peer id.
///
/// # Errors
/// When the peer id is of another kind of key or a hash of one.
pub fn ed25519_from_peer(peer: &[u8]) -> Result<[u8; 32], IdentityError> {
    peer.strip_prefix(&PEER_PREFIX)
        .and_then(|key| key.try_into().ok())
        .ok_or(IdentityError::Peer(peer.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signing::{SignatureError, verify_ed25519, verify_mldsa};

    const GENESIS: GenesisHash = [9; 32];

    #[test]
    fn the_secret_survives_a_round_trip() {
        let identity = Identity::generate().unwrap();
        let bytes = identity.to_secret_bytes();
        assert_eq!(bytes.len(), SECRET_BYTES);
        let read = Identity::from_secret_bytes(&bytes).unwrap();
        assert_eq!(read.public(), identity.public());
        let signatures = read.sign_both("gym/x/v1", &GENESIS, b"body");
        identity
            .public()
            .verify_both("gym/x/v1", &GENESIS, b"body", &signatures)
            .unwrap();
    }

    #[test]
    fn a_damaged_secret_is_refused() {
        let good = Identity::generate().unwrap().to_secret_bytes();
        for at in (1..SECRET_BYTES).step_by(97) {
            let mut bytes = good.clone();
            bytes[at] ^= 0x10;
            assert_eq!(
                Identity::from_secret_bytes(&bytes).map(drop),
                Err(IdentityError::Checksum)
            );
        }
        let cut = Identity::from_secret_bytes(&good[..SECRET_BYTES - 1]).map(drop);
        assert_eq!(cut, Err(IdentityError::Length(SECRET_BYTES - 1)));
        assert_eq!(
            Identity::from_secret_bytes(&[]).map(drop),
            Err(IdentityError::Length(0))
        );
        assert_eq!(
            Identity::from_secret_bytes(&[2; 9]).map(drop),
            Err(IdentityError::Version(2))
        );
    }

    #[test]
    fn a_signature_is_bound_to_domain_network_and_body() {
        let identity = Identity::generate().unwrap();
        let keys = identity.public();
        let ed25519 = identity.sign_ed25519("gym/x/v1", &GENESIS, b"body");
        let mldsa = identity.sign_mldsa("gym/x/v1", &GENESIS, b"body");
        let check = |domain, genesis: &GenesisHash, body: &[u8]| {
            let first = verify_ed25519(&keys.ed25519, domain, genesis, body, &ed25519);
            (first, verify_mldsa(&keys.mldsa, domain, genesis, body, &mldsa))
        };
        assert_eq!(check("gym/x/v1", &GENESIS, b"body"), (Ok(()), Ok(())));
        let refused = (Err(SignatureError::Ed25519), Err(SignatureError::MlDsa));
        assert_eq!(check("gym/y/v1", &GENESIS, b"body"), refused);
        assert_eq!(check("gym/x/v1", &[8; 32], b"body"), refused);
        assert_eq!(check("gym/x/v1", &GENESIS, b"bodY"), refused);
    }

    #[test]
    fn one_good_signature_of_two_is_not_enough() {
        let (a, b) = (Identity::generate().unwrap(), Identity::generate().unwrap());
        let own = a.sign_both("gym/x/v1", &GENESIS, b"body");
        let other = b.sign_both("gym/x/v1", &GENESIS, b"body");
        let verify = |s: &Signatures| a.public().verify_both("gym/x/v1", &GENESIS, b"body", s);
        let swapped = Signatures {
            mldsa: other.mldsa,
            ..own.clone()
        };
        assert_eq!(verify(&swapped), Err(SignatureError::MlDsa));
        let swapped = Signatures {
            ed25519: other.ed25519,
            ..own
        };
        assert_eq!(verify(&swapped), Err(SignatureError::Ed25519));
    }

    #[test]
    fn a_peer_id_holds_its_key() {
        let identity = Identity::generate().unwrap();
        let peer = identity.peer_bytes();
        assert_eq!(ed25519_from_peer(&peer), Ok(identity.public().ed25519));
        assert_eq!(ed25519_from_peer(&peer[1..]), Err(IdentityError::Peer(37)));
        let mut rsa = peer;
        rsa[3] = 0;
        assert_eq!(ed25519_from_peer(&rsa), Err(IdentityError::Peer(38)));
    }
}
