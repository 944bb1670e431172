//! Hop signatures of this node: made and checked with its keys, kept on disk for the challenge window (PROTOCOL section 6).

use crate::files::{self, Access};
use crate::identity::NodeIdentity;
use crate::signatures::Signed;
use gym_protocol::ids::{Hash32, PeerBytes, Round};
use gym_protocol::ring::{HOP_DOMAIN, Hop, HopKeys, Place, placed_from_bytes, placed_to_bytes};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rings whose hops are kept, the latest: a day of rounds of a minute and a half. A ring of 28 takes some 30 KB.
const MAX_RINGS: usize = 1_024;

/// Signs with this node's Ed25519 key; checks by the key in the signer's peer id.
#[derive(Debug)]
pub struct NodeHopKeys(pub Arc<NodeIdentity>);

impl HopKeys for NodeHopKeys {
    fn sign(&self, body: &[u8]) -> [u8; 64] {
        self.0.keys().sign_ed25519(HOP_DOMAIN, &self.0.genesis().0, body)
    }

    fn verify(&self, signer: &PeerBytes, body: &[u8], signature: &[u8; 64]) -> bool {
        let signed = Signed {
            genesis: &self.0.genesis().0,
            sender: signer,
            domain: HOP_DOMAIN,
            body,
            ed25519: signature,
        };
        signed.check().is_ok()
    }
}

/// The hops of one job's rings, a file a ring.
#[derive(Clone, Debug)]
pub(crate) struct HopStore {
    dir: PathBuf,
}

impl HopStore {
    /// In a job's directory.
    pub(crate) fn new(job: &Path) -> Self {
        Self {
            dir: job.join("hops"),
        }
    }

    /// Keeps a ring's hops, and forgets the oldest rings above the limit. Blocks.
    pub(crate) fn keep(
        &self,
        round: Round,
        manifest: Hash32,
        hops: &[(Place, Hop)],
    ) -> Result<(), files::FileError> {
        files::create_dir(&self.dir, Access::Everyone)?;
        let bytes: Vec<u8> = hops
            .iter()
            .flat_map(|(place, hop)| placed_to_bytes(*place, hop))
            .collect();
        // Rounds are told apart by name, so that names in order are rings in order.
        let name = format!("{:012}-{}", round.0, manifest.to_hex());
        files::write_atomic(&self.dir.join(name), &bytes, Access::Everyone)?;
        let names = self.names();
        for name in names.iter().take(names.len().saturating_sub(MAX_RINGS)) {
            // What cannot be removed now is tried again with the next ring.
            let _ = std::fs::remove_file(self.dir.join(name));
        }
        Ok(())
    }

    /// The hops of a ring as they are handed out; `None` when none are kept. Blocks.
    pub(crate) fn read(&self, manifest: Hash32) -> Option<Vec<u8>> {
        let end = format!("-{}", manifest.to_hex());
        let name = self.names().into_iter().find(|name| name.ends_with(&end))?;
        let bytes = std::fs::read(self.dir.join(name)).ok()?;
        placed_from_bytes(&bytes).is_some().then_some(bytes)
    }

    /// Names in order; none where nothing was kept yet.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| !name.ends_with(".tmp")).collect();
        names.sort();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::home::Home;
    use gym_protocol::message::Phase;

    fn hop(n: u8) -> (Place, Hop) {
        let place = Place {
            phase: Phase::ScatterReduce,
            step: 1,
            chunk: 2,
            slot: u32::from(n),
        };
        let hop = Hop {
            came: Hash32([n; 32]),
            went: Hash32([2; 32]),
            previous: Hash32([3; 32]),
            signature: [4; 64],
        };
        (place, hop)
    }

    #[test]
    fn hops_are_kept_and_the_oldest_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let store = HopStore::new(dir.path());
        assert_eq!(store.read(Hash32([1; 32])), None);
        store.keep(Round(9), Hash32([1; 32]), &[hop(1), hop(2)]).unwrap();
        // Another process of the node reads them too.
        let bytes = HopStore::new(dir.path()).read(Hash32([1; 32])).unwrap();
        assert_eq!(placed_from_bytes(&bytes), Some(vec![hop(1), hop(2)]));
        for i in 0..MAX_RINGS as u64 {
            let name = format!("{:012}-{}", i + 10, Hash32([7; 32]).to_hex());
            std::fs::write(dir.path().join("hops").join(name), []).unwrap();
        }
        store.keep(Round(10_000), Hash32([5; 32]), &[hop(3)]).unwrap();
        assert_eq!(store.read(Hash32([1; 32])), None, "the oldest is gone");
        assert!(store.read(Hash32([5; 32])).is_some());
        assert_eq!(store.names().len(), MAX_RINGS);
    }

    #[test]
    fn the_nodes_keys_sign_for_itself_alone() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::locate(Some(dir.path())).unwrap();
        home.create().unwrap();
        let identity = Arc::new(NodeIdentity::create(&home, Hash32([7; 32])).unwrap());
        let keys = NodeHopKeys(identity.clone());
        let mut signature = keys.sign(b"body");
        assert!(keys.verify(&identity.peer(), b"body", &signature));
        assert!(!keys.verify(&identity.peer(), b"another", &signature));
        assert!(!keys.verify(&PeerBytes::new(vec![1; 38]).unwrap(), b"body", &signature));
        signature[0] ^= 1;
        assert!(!keys.verify(&identity.peer(), b"body", &signature));
    }
}
