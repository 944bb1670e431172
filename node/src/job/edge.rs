//! Where messages meet keys: signing one's own, checking others' against the identity records that are known.

use crate::identity::{NodeIdentity, PeerIdentity, unix_now};
use crate::signatures::Signed;
use gym_crypto::signing::PublicKeys;
use gym_protocol::cbor::{BoundedBytes, CborError};
use gym_protocol::delta::{DeltaSignatures, DeltaSigner};
use gym_protocol::ids::{Hash32, PeerBytes};
use gym_protocol::message::{Body, Roster, Verified, Verifier, VerifyError};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Identities remembered at most; the network's connection limits keep far below it.
const MAX_KNOWN: usize = 8_192;

/// Whose record has been seen.
#[derive(Debug)]
struct Known {
    identity: Arc<PeerIdentity>,
    /// The record that it followed.
    before: Option<Hash32>,
}

#[derive(Debug, Default)]
struct Records {
    known: BTreeMap<PeerBytes, Known>,
    /// What the roster of the job that runs names: who is in it has this record and no other.
    pinned: BTreeMap<PeerBytes, Hash32>,
}

impl Records {
    /// The keys of a peer, unless the roster names another record.
    fn keys(&self, peer: &PeerBytes) -> Option<&PublicKeys> {
        let known = self.known.get(peer)?;
        let hash = known.identity.record_hash();
        let is_pinned = |pinned: &Hash32| *pinned == hash || known.before == Some(*pinned);
        self.pinned
            .get(peer)
            .is_none_or(is_pinned)
            .then(|| known.identity.keys())
    }
}

/// The public keys of everyone whose identity record has been seen; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct KnownKeys {
    genesis: Hash32,
    own: (PeerBytes, PublicKeys),
    records: Arc<RwLock<Records>>,
}

impl KnownKeys {
    pub(crate) fn new(own: &NodeIdentity) -> Self {
        Self {
            genesis: own.genesis(),
            own: (own.peer(), own.record().keys().clone()),
            records: Arc::default(),
        }
    }

    /// Remembers a peer's verified identity: its first, one that follows the known one, or the one that the roster of the
    /// job that runs names.
    ///
    /// # Errors
    /// Why it may not take the known one's place.
    pub(crate) fn learn(&self, peer: &PeerBytes, identity: &Arc<PeerIdentity>) -> Result<(), String> {
        let mut records = self.records.write().unwrap_or_else(PoisonError::into_inner);
        let (hash, pinned) = (identity.record_hash(), records.pinned.get(peer).copied());
        let before = match records.known.get(peer) {
            Some(known) if known.identity.record_hash() == hash => return Ok(()),
            Some(_) if pinned == Some(hash) => None,
            Some(known) => {
                identity
                    .follows(&known.identity, &self.genesis, unix_now())
                    .map_err(|e| e.to_string())?;
                Some(known.identity.record_hash())
            }
            None if pinned.is_some_and(|pinned| pinned != hash) => {
                return Err(format!(
                    "identity record: its hash is {hash}, the roster names another"
                ));
            }
            None if records.known.len() >= MAX_KNOWN => return Ok(()),
            None => None,
        };
        let identity = Arc::clone(identity);
        records.known.insert(peer.clone(), Known { identity, before });
        Ok(())
    }

    /// Whether a peer is known by another record than this.
    pub(crate) fn contradicts(&self, peer: &PeerBytes, record: &Hash32) -> bool {
        let records = self.records.read().unwrap_or_else(PoisonError::into_inner);
        let known = records.known.get(peer);
        known.is_some_and(|known| known.identity.record_hash() != *record)
    }

    /// Holds the members of the job that runs to the records that its roster names.
    pub(crate) fn pin(&self, roster: &Roster) {
        let members = roster.members.iter().map(|m| (m.peer.clone(), m.record));
        let mut records = self.records.write().unwrap_or_else(PoisonError::into_inner);
        records.pinned = members.collect();
    }

    /// No job runs, or another.
    pub(crate) fn unpin(&self) {
        let mut records = self.records.write().unwrap_or_else(PoisonError::into_inner);
        records.pinned.clear();
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
            genesis: &self.genesis.0,
            sender,
            domain,
            body,
            ed25519,
        };
        let Some(mldsa) = mldsa else { return signed.check() };
        if *sender == self.own.0 {
            return signed.check_both(mldsa, Some(&self.own.1.mldsa));
        }
        let records = self.records.read().unwrap_or_else(PoisonError::into_inner);
        signed.check_both(mldsa, records.keys(sender).map(|keys| &keys.mldsa))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::home::Home;
    use gym_protocol::ids::{CidBytes, Round};
    use gym_protocol::message::RosterMember;

    const GENESIS: Hash32 = Hash32([3; 32]);

    fn node() -> (tempfile::TempDir, NodeIdentity) {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::locate(Some(dir.path())).unwrap();
        home.create().unwrap();
        let node = NodeIdentity::create(&home, GENESIS).unwrap();
        (dir, node)
    }

    fn seen(node: &NodeIdentity) -> Arc<PeerIdentity> {
        Arc::new(PeerIdentity::open(node.record_bytes(), &node.peer(), &GENESIS, unix_now()).unwrap())
    }

    /// The same Ed25519 key with another ML-DSA key, in a home of its own.
    fn forger(of: &NodeIdentity) -> (tempfile::TempDir, NodeIdentity) {
        let (dir, other) = node();
        let (own, other) = (of.keys().to_secret_bytes(), other.keys().to_secret_bytes());
        let mut bytes = [&own[..33], &other[33..own.len() - 32]].concat();
        bytes.extend_from_slice(&gym_crypto::sha3_256(&[&bytes]));
        let home = Home::locate(Some(dir.path())).unwrap();
        std::fs::write(home.identity().join("secret.key"), &bytes).unwrap();
        std::fs::remove_file(home.record()).unwrap();
        let forger = NodeIdentity::create(&home, GENESIS).unwrap();
        (dir, forger)
    }

    fn roster(members: &[&NodeIdentity]) -> Roster {
        let member = |n: &&NodeIdentity| RosterMember {
            peer: n.peer(),
            record: n.record_hash(),
            ready_at: 0,
        };
        Roster {
            job: CidBytes::default(),
            round: Round(1),
            attempt: 0,
            members: members.iter().map(member).collect(),
            parent: Hash32::ZERO,
            checkpoint: CidBytes::default(),
        }
    }

    /// What both keys sign.
    fn is_believed(keys: &KnownKeys, by: &NodeIdentity) -> bool {
        let message = sign(by, Body::Roster(roster(&[])), Vec::new()).unwrap();
        Verified::open(&message.envelope, keys).is_ok()
    }

    #[test]
    fn a_second_self_signed_record_is_refused() {
        let ((_a, me), (_b, peer)) = (node(), node());
        let (_c, forger) = forger(&peer);
        assert_eq!(forger.peer(), peer.peer());
        let keys = KnownKeys::new(&me);
        keys.learn(&peer.peer(), &seen(&peer)).unwrap();
        assert!(is_believed(&keys, &peer) && !is_believed(&keys, &forger));
        keys.learn(&peer.peer(), &seen(&forger)).unwrap_err();
        assert!(is_believed(&keys, &peer) && !is_believed(&keys, &forger));
        assert!(!keys.contradicts(&peer.peer(), &peer.record_hash()));
        assert!(keys.contradicts(&peer.peer(), &forger.record_hash()));
        assert!(
            !keys.contradicts(&me.peer(), &forger.record_hash()),
            "nothing is known of it"
        );
        assert!(is_believed(&keys, &me), "its own need no record");
    }

    #[test]
    fn who_came_first_gives_way_to_whom_the_roster_names() {
        let ((_a, me), (_b, peer)) = (node(), node());
        let (_c, forger) = forger(&peer);
        let keys = KnownKeys::new(&me);
        keys.learn(&peer.peer(), &seen(&forger)).unwrap();
        assert!(is_believed(&keys, &forger));
        keys.pin(&roster(&[&peer]));
        assert!(!is_believed(&keys, &forger));
        keys.learn(&peer.peer(), &seen(&peer)).unwrap();
        assert!(is_believed(&keys, &peer));
        // Nor does another come in between for somebody who is not known yet.
        let ((_d, other), keys) = (node(), KnownKeys::new(&me));
        keys.pin(&roster(&[&peer, &other]));
        keys.learn(&peer.peer(), &seen(&forger)).unwrap_err();
        keys.learn(&other.peer(), &seen(&other)).unwrap();
        keys.unpin();
        keys.learn(&peer.peer(), &seen(&peer)).unwrap();
        assert!(is_believed(&keys, &peer) && is_believed(&keys, &other));
    }
}
