//! This node's keys and identity record on disk, and the verified identities of others (PROTOCOL section 2).

use crate::files::{self, Access, FileError};
use crate::home::Home;
use gym_crypto::identity::{Identity, IdentityError, SECRET_BYTES};
use gym_crypto::record::{
    Anchor, MAX_RECORD_BYTES, NotEvidence, RecordError, SignedRecord, Validity, VerifiedRecord,
    prove_equivocation,
};
use gym_crypto::signing::PublicKeys;
use gym_protocol::ids::{Hash32, PeerBytes};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

const YEAR: u64 = 365 * 24 * 3600;
/// A record this close to its end is followed by the next when the node starts.
const RENEW_BEFORE: u64 = 30 * 24 * 3600;

/// Seconds since the Unix epoch, by this machine's clock.
#[must_use]
pub fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}

/// Why this node's identity cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The key file is damaged.
    #[error("the key file {} cannot be used: {source}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: IdentityError,
    },
    /// Others can read the secret keys.
    #[error(
        "the key file {} has mode {mode:03o}, so that others can read it: run `chmod 600 {}`, and make new keys if \
         somebody may have",
        path.display(),
        path.display()
    )]
    Loose {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// No key can be made.
    #[error(transparent)]
    Generate(IdentityError),
    /// The stored record is damaged or not this key's.
    #[error("the identity record {} cannot be used: {source}; restore it from a backup", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: RecordError,
    },
    /// libp2p does not take the key.
    #[error("libp2p does not accept the Ed25519 key: {0}")]
    Libp2p(#[from] libp2p::identity::DecodingError),
}

/// This node: its secret keys, its record, the network they are for.
#[derive(Debug)]
pub struct NodeIdentity {
    keys: Identity,
    genesis: Hash32,
    record: VerifiedRecord,
    record_bytes: Vec<u8>,
}

impl NodeIdentity {
    /// Makes new keys and their first record for the network of `genesis`, in files that their owner alone can read.
    /// Files that are there already, from an attempt that was cut short, are kept.
    ///
    /// # Errors
    /// When a file cannot be written, or one that is there is damaged.
    pub fn create(home: &Home, genesis: Hash32) -> Result<Self, KeyError> {
        files::create_dir(&home.identity(), Access::Owner)?;
        if !key_path(home).exists() {
            let keys = Identity::generate().map_err(KeyError::Generate)?;
            files::write_new(&key_path(home), &keys.to_secret_bytes(), Access::Owner)?;
        }
        if !home.record().exists() {
            let signed = SignedRecord::first(&read_keys(home)?, &genesis.0, validity());
            files::write_new(&home.record(), &signed.encode(), Access::Owner)?;
        }
        Self::open(home, genesis)
    }

    /// Reads keys and record. A record near its end is followed by the next one, which is on disk before anyone sees
    /// it: no number is ever used for two records.
    ///
    /// # Errors
    /// When a file is missing or damaged.
    pub fn open(home: &Home, genesis: Hash32) -> Result<Self, KeyError> {
        let identity = Self::with_stored_record(home, read_keys(home)?, genesis)?;
        if identity.record.record().expires < unix_now().saturating_add(RENEW_BEFORE) {
            return identity.renew(home);
        }
        Ok(identity)
    }

    fn with_stored_record(home: &Home, keys: Identity, genesis: Hash32) -> Result<Self, KeyError> {
        let path = home.record();
        let record_bytes = files::read(&path, MAX_RECORD_BYTES as u64)?;
        let fail = |source| KeyError::Record {
            path: path.clone(),
            source,
        };
        let signed = SignedRecord::decode(&record_bytes).map_err(fail)?;
        // Read as of its beginning: an expired record of one's own is still the one to continue from.
        let record = signed
            .verify(&genesis.0, signed.body.issued, Anchor::Itself)
            .map_err(fail)?;
        if record.keys() != keys.public() {
            return Err(fail(RecordError::OtherPeer));
        }
        Ok(Self {
            keys,
            genesis,
            record,
            record_bytes,
        })
    }

    fn renew(self, home: &Home) -> Result<Self, KeyError> {
        let path = home.record();
        let fail = |source| KeyError::Record {
            path: path.clone(),
            source,
        };
        let signed = SignedRecord::next(&self.keys, &self.keys, &self.record, &self.genesis.0, validity())
            .map_err(fail)?;
        let record_bytes = signed.encode();
        let record = signed
            .verify(&self.genesis.0, unix_now(), Anchor::Previous(&self.record))
            .map_err(fail)?;
        files::write_atomic(&path, &record_bytes, Access::Owner)?;
        Ok(Self {
            record,
            record_bytes,
            ..self
        })
    }

    /// The secret keys.
    #[must_use]
    pub fn keys(&self) -> &Identity {
        &self.keys
    }

    /// Hash of the genesis file.
    #[must_use]
    pub fn genesis(&self) -> Hash32 {
        self.genesis
    }

    /// This node's peer id.
    #[must_use]
    pub fn peer(&self) -> PeerBytes {
        PeerBytes::new(self.keys.peer_bytes().to_vec()).unwrap_or_default()
    }

    /// The identity record.
    #[must_use]
    pub fn record(&self) -> &VerifiedRecord {
        &self.record
    }

    /// Hash of the record.
    #[must_use]
    pub fn record_hash(&self) -> Hash32 {
        Hash32(*self.record.hash())
    }

    /// The signed record, as others get it.
    #[must_use]
    pub fn record_bytes(&self) -> &[u8] {
        &self.record_bytes
    }

    /// The key pair for libp2p.
    ///
    /// # Errors
    /// Never for keys made here; libp2p's error is passed on.
    pub fn keypair(&self) -> Result<libp2p::identity::Keypair, KeyError> {
        let mut seed = self.keys.ed25519_seed();
        Ok(libp2p::identity::Keypair::ed25519_from_bytes(
            seed.as_mut_slice(),
        )?)
    }
}

/// As ssh does, a key that others can read is not used.
fn check_owner_only(path: &Path) -> Result<(), KeyError> {
    use std::os::unix::fs::PermissionsExt;
    let metadata = std::fs::metadata(path).map_err(|e| FileError::new("read", path, e))?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 == 0 {
        Ok(())
    } else {
        Err(KeyError::Loose {
            path: path.to_path_buf(),
            mode,
        })
    }
}

fn key_path(home: &Home) -> PathBuf {
    home.identity().join("secret.key")
}

fn read_keys(home: &Home) -> Result<Identity, KeyError> {
    let path = key_path(home);
    check_owner_only(&path)?;
    let secret = zeroize::Zeroizing::new(files::read(&path, SECRET_BYTES as u64)?);
    Identity::from_secret_bytes(&secret).map_err(|source| KeyError::Key { path, source })
}

fn validity() -> Validity {
    let now = unix_now();
    Validity {
        issued: now,
        expires: now + YEAR,
    }
}

/// Why a record may not stand where another of the same peer was accepted.
#[derive(Debug, thiserror::Error)]
pub enum Replaced {
    /// An earlier record again.
    #[error("identity record: number {number} is older than {before}, which is known")]
    Older {
        /// Its number.
        number: u64,
        /// The known one's.
        before: u64,
    },
    /// Both records are signed by the peer.
    #[error("identity record: the peer signed two different records with number {0}, which is fraud")]
    Twice(u64),
    /// Another record with the same number, which the known one's ML-DSA key does not vouch for.
    #[error("identity record: another one with this number is known: {0}")]
    Another(NotEvidence),
    /// Not signed by the key of the one before.
    #[error(transparent)]
    Chain(#[from] RecordError),
}

/// Somebody else's identity: a record that agrees with itself and with the connection it came over. How far its ML-DSA
/// key is trusted is for whoever pins it (genesis, roster).
#[derive(Clone, Debug)]
pub struct PeerIdentity {
    record: VerifiedRecord,
    bytes: Vec<u8>,
}

impl PeerIdentity {
    /// Checks a signed record that `peer` sent.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn open(bytes: &[u8], peer: &PeerBytes, genesis: &Hash32, now: u64) -> Result<Self, RecordError> {
        let record = SignedRecord::decode(bytes)?.verify(&genesis.0, now, Anchor::Itself)?;
        if record.peer().as_slice() != peer.as_bytes() {
            return Err(RecordError::OtherPeer);
        }
        Ok(Self {
            record,
            bytes: bytes.to_vec(),
        })
    }

    /// Checks that this record may stand for the peer after `known`, which was accepted before: the same one, a later one
    /// with the same ML-DSA key, or the next one, signed by the ML-DSA key of `known`. Whoever has broken Ed25519 alone
    /// takes nobody's place.
    ///
    /// # Errors
    /// Why it may not.
    pub fn follows(&self, known: &Self, genesis: &Hash32, now: u64) -> Result<(), Replaced> {
        if self.record.hash() == known.record.hash() {
            return Ok(());
        }
        let (number, before) = (self.record.record().number, known.record.record().number);
        if number == before {
            let (a, b) = (
                SignedRecord::decode(&known.bytes)?,
                SignedRecord::decode(&self.bytes)?,
            );
            return Err(match prove_equivocation(&genesis.0, &a, &b, None) {
                Ok(proof) => Replaced::Twice(proof.number),
                Err(why) => Replaced::Another(why),
            });
        }
        if number < before {
            return Err(Replaced::Older { number, before });
        }
        if self.record.record().mldsa == known.record.record().mldsa {
            return Ok(());
        }
        SignedRecord::decode(&self.bytes)?.verify(&genesis.0, now, Anchor::Previous(&known.record))?;
        Ok(())
    }

    /// The record.
    #[must_use]
    pub fn record(&self) -> &VerifiedRecord {
        &self.record
    }

    /// Hash of the record.
    #[must_use]
    pub fn record_hash(&self) -> Hash32 {
        Hash32(*self.record.hash())
    }

    /// Both public keys.
    #[must_use]
    pub fn keys(&self) -> &PublicKeys {
        self.record.keys()
    }

    /// The signed record.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const GENESIS: Hash32 = Hash32([3; 32]);

    fn home() -> (tempfile::TempDir, Home) {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::locate(Some(dir.path())).unwrap();
        home.create().unwrap();
        (dir, home)
    }

    #[test]
    fn keys_survive_and_are_the_owners_alone() {
        let (_dir, home) = home();
        let made = NodeIdentity::create(&home, GENESIS).unwrap();
        let read = NodeIdentity::open(&home, GENESIS).unwrap();
        assert_eq!(
            (made.peer(), made.record_hash()),
            (read.peer(), read.record_hash())
        );
        for path in [key_path(&home), home.record()] {
            assert_eq!(
                std::fs::metadata(path).unwrap().permissions().mode() & 0o777,
                0o600
            );
        }
        assert_eq!(
            read.keypair().unwrap().public().to_peer_id().to_bytes(),
            read.peer().as_bytes()
        );
    }

    #[test]
    fn a_key_that_others_can_read_is_not_used() {
        let (_dir, home) = home();
        NodeIdentity::create(&home, GENESIS).unwrap();
        std::fs::set_permissions(key_path(&home), std::fs::Permissions::from_mode(0o644)).unwrap();
        let message = NodeIdentity::open(&home, GENESIS).unwrap_err().to_string();
        assert!(
            message.contains("644") && message.contains("chmod 600"),
            "{message}"
        );
    }

    #[test]
    fn existing_keys_are_never_replaced() {
        let (_dir, home) = home();
        let first = NodeIdentity::create(&home, GENESIS).unwrap();
        let again = NodeIdentity::create(&home, GENESIS).unwrap();
        assert_eq!(
            (first.peer(), first.record_hash()),
            (again.peer(), again.record_hash())
        );
        std::fs::remove_file(home.record()).unwrap();
        assert_eq!(NodeIdentity::create(&home, GENESIS).unwrap().peer(), first.peer());
    }

    #[test]
    fn a_record_is_bound_to_network_and_peer() {
        let (_dir, home) = home();
        let node = NodeIdentity::create(&home, GENESIS).unwrap();
        PeerIdentity::open(node.record_bytes(), &node.peer(), &GENESIS, unix_now()).unwrap();
        assert!(PeerIdentity::open(node.record_bytes(), &node.peer(), &Hash32::ZERO, unix_now()).is_err());
        let other = PeerBytes::new(vec![1; 38]).unwrap();
        assert!(PeerIdentity::open(node.record_bytes(), &other, &GENESIS, unix_now()).is_err());
    }

    /// Keys with one's own Ed25519 key and another ML-DSA key: what breaking Ed25519 alone gives.
    fn forger(keys: &Identity) -> Identity {
        let (own, other) = (
            keys.to_secret_bytes(),
            Identity::generate().unwrap().to_secret_bytes(),
        );
        let body = own.len() - 32;
        let mut bytes = [&own[..33], &other[33..body]].concat();
        bytes.extend_from_slice(&gym_crypto::sha3_256(&[&bytes]));
        Identity::from_secret_bytes(&bytes).unwrap()
    }

    fn opened(signed: &SignedRecord, keys: &Identity) -> PeerIdentity {
        let peer = PeerBytes::new(keys.peer_bytes().to_vec()).unwrap();
        PeerIdentity::open(&signed.encode(), &peer, &GENESIS, unix_now()).unwrap()
    }

    #[test]
    fn a_second_self_signed_record_takes_nobodys_place() {
        let keys = Identity::generate().unwrap();
        let first = SignedRecord::first(&keys, &GENESIS.0, validity());
        let known = opened(&first, &keys);
        let follows = |signed: &SignedRecord| opened(signed, &keys).follows(&known, &GENESIS, unix_now());
        follows(&first).unwrap();
        let forger = forger(&keys);
        assert_eq!(forger.peer_bytes(), keys.peer_bytes());
        let forged = SignedRecord::first(&forger, &GENESIS.0, validity());
        assert!(matches!(
            follows(&forged),
            Err(Replaced::Another(NotEvidence::Unbound))
        ));
        // Nor under a later number.
        let verified = opened(&forged, &keys).record;
        let forged = SignedRecord::next(&forger, &forger, &verified, &GENESIS.0, validity()).unwrap();
        assert!(matches!(
            follows(&forged),
            Err(Replaced::Chain(RecordError::Chain { .. }))
        ));
        // The peer's own second record with one number is fraud; its next one is not, with other keys too.
        let later = Validity {
            expires: unix_now() + 2 * YEAR,
            ..validity()
        };
        let twice = SignedRecord::first(&keys, &GENESIS.0, later);
        assert!(matches!(follows(&twice), Err(Replaced::Twice(0))));
        let next = SignedRecord::next(&forger, &keys, &known.record, &GENESIS.0, validity()).unwrap();
        follows(&next).unwrap();
        let back = known.follows(&opened(&next, &keys), &GENESIS, unix_now());
        assert!(matches!(back, Err(Replaced::Older { number: 0, before: 1 })));
    }

    #[test]
    fn an_old_record_is_followed_by_the_next() {
        let (_dir, home) = home();
        let keys = NodeIdentity::create(&home, GENESIS).unwrap().keys;
        let now = unix_now();
        let old = SignedRecord::first(
            &keys,
            &GENESIS.0,
            Validity {
                issued: now - YEAR,
                expires: now - 1,
            },
        );
        files::write_atomic(&home.record(), &old.encode(), Access::Owner).unwrap();
        let renewed = NodeIdentity::open(&home, GENESIS).unwrap();
        assert_eq!(renewed.record().record().number, 1);
        assert_eq!(
            NodeIdentity::open(&home, GENESIS).unwrap().record_hash(),
            renewed.record_hash()
        );
    }
}
