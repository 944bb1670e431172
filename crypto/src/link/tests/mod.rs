mod cipher;
mod handshake;
mod messages;

use super::*;
use crate::identity::Identity;
use crate::record::{Anchor, SignedRecord, Validity, VerifiedRecord};
use crate::signing::GenesisHash;
use proptest::prelude::*;
use std::sync::LazyLock;

const GENESIS: GenesisHash = [2; 32];
const HEADER: &[u8] = b"job, round, view, ...";
/// Small enough to pass several epochs in a test.
const SMALL: Config = Config {
    epoch_messages: 4,
    epoch_ms: 1000,
    grace_ms: 300,
    max_plaintext: 4096,
};

struct Node {
    identity: Identity,
    record: VerifiedRecord,
}

impl Node {
    fn new() -> Self {
        let identity = Identity::generate().unwrap();
        let record = SignedRecord::first(
            &identity,
            &GENESIS,
            Validity {
                issued: 0,
                expires: 100,
            },
        );
        let record = record.verify(&GENESIS, 50, Anchor::Itself).unwrap();
        Self { identity, record }
    }

    fn party(&self) -> LinkParty<'_> {
        LinkParty::new(&self.identity, &self.record, &GENESIS).unwrap()
    }
}

static A: LazyLock<Node> = LazyLock::new(Node::new);
static B: LazyLock<Node> = LazyLock::new(Node::new);

fn handshake(config: Config) -> (Sealer, PendingReceiver) {
    let (initiator, init) = Initiator::new(A.party(), &B.record).unwrap();
    let (pending, response) = respond(B.party(), &A.record, &init, config).unwrap();
    (initiator.finish(&response, 0, config).unwrap(), pending)
}

fn seal(sealer: &mut Sealer, now: u64, plaintext: &[u8]) -> Vec<u8> {
    let mut buffer = plaintext.to_vec();
    sealer.seal(now, HEADER, &mut buffer).unwrap();
    buffer
}

fn open(opener: &mut Opener, now: u64, sealed: &[u8]) -> Result<Vec<u8>, OpenError> {
    let mut buffer = sealed.to_vec();
    opener.open(now, HEADER, &mut buffer).map(|()| buffer)
}

/// A confirmed link whose first message is spent.
fn link(config: Config) -> (Sealer, Opener) {
    let (mut sealer, pending) = handshake(config);
    let mut first = seal(&mut sealer, 0, b"first");
    let opener = pending.open_first(HEADER, &mut first).unwrap();
    assert_eq!(first, b"first");
    (sealer, opener)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..INIT_BYTES + 10)) {
        prop_assert!(respond(B.party(), &A.record, &bytes, SMALL).is_err());
        let (initiator, _) = Initiator::new(A.party(), &B.record).unwrap();
        prop_assert!(initiator.finish(&bytes, 0, SMALL).is_err());
        let (_, mut opener) = link(SMALL);
        prop_assert!(open(&mut opener, 0, &bytes).is_err());
    }
}
