//! Sealed links: identity records, both handshake messages, sealed messages. Keys are new in every run, so whatever the
//! bytes do to a true message, it must be refused unless it is unchanged.

use gym_crypto::attestation::{self, Kind};
use gym_crypto::identity::Identity;
use gym_crypto::link::{Config, Initiator, LinkParty, Opener, Sealer, peek_init, respond};
use gym_crypto::record::{Anchor, SignedRecord, Validity, VerifiedRecord};
use std::sync::LazyLock;

const GENESIS: [u8; 32] = [2; 32];
const NOW: u64 = 50;
/// Small enough to pass several epochs.
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

static A: LazyLock<Node> = LazyLock::new(Node::new);
static B: LazyLock<Node> = LazyLock::new(Node::new);

impl Node {
    fn new() -> Self {
        let identity = Identity::generate().expect("there is randomness");
        let validity = Validity {
            issued: 0,
            expires: 100,
        };
        let record = SignedRecord::first(&identity, &GENESIS, validity);
        let record = record
            .verify(&GENESIS, NOW, Anchor::Itself)
            .expect("a record of our own");
        Self { identity, record }
    }

    fn party(&self) -> LinkParty<'_> {
        LinkParty::new(&self.identity, &self.record, &GENESIS).expect("its own record")
    }
}

/// Does one of five things with the bytes.
pub fn run(data: &[u8]) {
    let Some((what, bytes)) = data.split_first() else {
        return;
    };
    match what % 5 {
        0 => record(bytes),
        1 => {
            let _ = peek_init(bytes);
            assert!(respond(B.party(), &A.record, bytes, SMALL).is_err());
        }
        2 => init(bytes),
        3 => response(bytes),
        _ => sealed(bytes),
    }
}

fn record(bytes: &[u8]) {
    if let Ok(signed) = SignedRecord::decode(bytes) {
        assert_eq!(signed.encode(), bytes);
        let _ = signed.verify(&GENESIS, NOW, Anchor::Itself);
    }
    assert!(attestation::verify(Kind::Software, bytes, &A.record, &GENESIS, &[0; 32]).is_err());
}

fn init(bytes: &[u8]) {
    let (_, message) = Initiator::new(A.party(), &B.record).expect("a new link");
    let altered = alter(&message, bytes);
    let answer = respond(B.party(), &A.record, &altered, SMALL);
    assert_eq!(answer.is_ok(), altered == message);
}

fn response(bytes: &[u8]) {
    let (initiator, message) = Initiator::new(A.party(), &B.record).expect("a new link");
    let (_, response) = respond(B.party(), &A.record, &message, SMALL).expect("a true message");
    let altered = alter(&response, bytes);
    assert_eq!(initiator.finish(&altered, 0, SMALL).is_ok(), altered == response);
}

/// A link, and the messages that the bytes describe: sealed, altered, replayed, out of order, late.
fn sealed(bytes: &[u8]) {
    let (mut sealer, mut opener) = link();
    let (mut now, mut sent) = (0u64, Vec::<(Vec<u8>, bool)>::new());
    for act in bytes.chunks(3).take(256) {
        let argument = act.get(1).copied().unwrap_or(0);
        match act[0] % 4 {
            0 => {
                let mut message = vec![argument; usize::from(argument)];
                if sealer.seal(now, b"header", &mut message).is_ok() {
                    sent.push((message, false));
                }
            }
            1 => now += u64::from(argument) * 8,
            2 => {
                let Some(i) = sent.len().checked_sub(1 + usize::from(argument)) else {
                    continue;
                };
                let (mut message, opened) = sent[i].clone();
                let result = opener.open(now, b"header", &mut message);
                assert!(result.is_err() || !opened, "a message opened twice");
                sent[i].1 |= result.is_ok();
            }
            _ => {
                let Some((message, _)) = sent.last() else { continue };
                let mut altered = alter(message, &act[1..]);
                if altered != *message {
                    assert!(
                        opener.open(now, b"header", &mut altered).is_err(),
                        "an altered message opened"
                    );
                }
            }
        }
    }
    let mut foreign = bytes.to_vec();
    assert!(opener.open(now, b"header", &mut foreign).is_err());
}

fn link() -> (Sealer, Opener) {
    let (initiator, message) = Initiator::new(A.party(), &B.record).expect("a new link");
    let (pending, response) = respond(B.party(), &A.record, &message, SMALL).expect("a true message");
    let mut sealer = initiator.finish(&response, 0, SMALL).expect("a true answer");
    let mut first = Vec::new();
    sealer.seal(0, b"header", &mut first).expect("a first message");
    let opener = pending.open_first(b"header", &mut first).expect("a true message");
    (sealer, opener)
}

/// Replaces bytes at the places given, three bytes a change: place and value; a last odd byte cuts or lengthens.
fn alter(message: &[u8], changes: &[u8]) -> Vec<u8> {
    let mut altered = message.to_vec();
    let (changes, rest) = changes.as_chunks::<3>();
    for [high, low, value] in changes {
        let at = (usize::from(*high) << 8 | usize::from(*low)) % altered.len().max(1);
        if let Some(byte) = altered.get_mut(at) {
            *byte ^= value;
        }
    }
    match rest {
        [n] if n % 2 == 0 => altered.truncate(message.len() - usize::from(n / 2).min(message.len())),
        [n] => altered.extend(vec![0; usize::from(*n)]),
        _ => {}
    }
    altered
}
