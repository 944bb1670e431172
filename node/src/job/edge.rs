//! Where messages meet keys: signing one's own, checking others' against the identity records that are known.

use crate::identity::{NodeIdentity, PeerIdentity};
use crate::signatures::Signed;
use gym_crypto::signing::PublicKeys;
use gym_protocol::cbor::{BoundedBytes, CborError};
use gym_protocol::delta::{DeltaSignatures, DeltaSigner};
use gym_protocol::ids::PeerBytes;
use gym_protocol::message::{Body, Verified, Verifier, VerifyError};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Identities remembered at most; the network's connection limits keep far below it.
const MAX_KNOWN: usize = 16_384;

/// The public keys of everyone whose identity record has been seen; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct KnownKeys {
    genesis: [u8; 32],
    keys: Arc<RwLock<BTreeMap<PeerBytes, PublicKeys>>>,
}

impl KnownKeys {
    pub(crate) fn new(own: &NodeIdentity) -> Self {
        let keys = BTreeMap::from([(own.peer(), own.record().keys().clone())]);
        Self {
            genesis: own.genesis().0,
            keys: Arc::new(RwLock::new(keys)),
        }
    }

    /// Remembers a peer's verified identity.
    pub(crate) fn learn(&self, peer: &PeerBytes, identity: &PeerIdentity) {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if keys.len() < MAX_KNOWN || keys.contains_key(peer) {
            keys.insert(peer.clone(), identity.keys().clone());
        }
    }
}

impl Verifier for KnownKeys {
    fn verify(
        &self,
        sender: &PeerBytes,
        domain: &'static str,
        body: &[u8],
        ed25519: &[u8],
        mldsa: Option<&[u8]>,
    ) -> Result<(), VerifyError> {
        let signed = Signed {
            genesis: &self.genesis,
            sender,
            domain,
            body,
            ed25519,
        };
        let Some(mldsa) = mldsa else { return signed.check() };
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        signed.check_both(mldsa, keys.get(sender).map(|keys| &keys.mldsa))
    }
}

/// Signs a body as its kind asks and wraps it as if it had come in.
pub(crate) fn sign(
    identity: &NodeIdentity,
    body: Body,
    nested: Vec<Verified>,
) -> Result<Verified, CborError> {
    let encoded = body.encode()?;
    let (domain, genesis) = (body.kind().domain(), identity.genesis().0);
    let (ed25519, mldsa) = if body.kind().signed_by_both() {
        let both = identity.keys().sign_both(domain, &genesis, &encoded);
        (both.ed25519.to_vec(), both.mldsa)
    } else {
        (
            identity.keys().sign_ed25519(domain, &genesis, &encoded).to_vec(),
            Vec::new(),
        )
    };
    Verified::own(identity.peer(), body, encoded, ed25519, mldsa, nested)
}

/// Signs deltas with this node's keys.
pub(crate) struct Signer<'a>(pub(crate) &'a NodeIdentity);

impl DeltaSigner for Signer<'_> {
    fn sign(&self, domain: &'static str, body: &[u8]) -> DeltaSignatures {
        let both = self.0.keys().sign_both(domain, &self.0.genesis().0, body);
        DeltaSignatures {
            ed25519: BoundedBytes::try_from(both.ed25519.to_vec()).unwrap_or_default(),
            mldsa: BoundedBytes::try_from(both.mldsa).ok(),
        }
    }
}
