//! What a job's members send each other beside messages.

#[path = "../../../node/src/job/log/mod.rs"]
mod log;
#[path = "../../../node/src/job/replica.rs"]
mod replica;
#[path = "../../../node/src/job/sync.rs"]
mod sync;

/// As in `node/src/job/commit.rs`.
mod commit {
    pub(crate) type Files = std::collections::BTreeMap<String, Vec<u8>>;
}

use gym_protocol::ids::{CidBytes, Hash32, PeerBytes};
use gym_protocol::message::LinkHeader;
use replica::{Assembly, MAX_REPLICA, Part, Replica};

/// A question on `/gym/sync/1`.
pub(super) fn question(bytes: &[u8]) {
    if let Some(question) = sync::Question::decode(bytes) {
        assert_eq!(question.encode().expect("what was decoded encodes"), bytes);
    }
}

/// An answer.
pub(super) fn answer(bytes: &[u8]) {
    if let Some(answer) = sync::Answer::decode(bytes) {
        assert_eq!(answer.encode().expect("what was decoded encodes"), bytes);
    }
}

/// A replica, and its way to a holder and back.
pub(super) fn replica(bytes: &[u8]) {
    let Some(replica) = Replica::decode(bytes) else {
        return;
    };
    let mut assembly = Assembly::default();
    let mut whole = None;
    for (header, payload) in replica.frames(&CidBytes::default(), 1, &peer(1), &peer(2)) {
        match assembly.add(&peer(1), &header, &payload) {
            Part::More => {}
            Part::Whole(bytes) => whole = Some(bytes),
            Part::Wrong => panic!("its own parts are wrong"),
        }
    }
    assert_eq!(whole.as_deref(), Some(bytes));
}

/// Parts as the bytes say, four bytes each: sender and round, number, how many, length.
pub(super) fn parts(bytes: &[u8]) {
    let mut assembly = Assembly::default();
    for part in bytes.as_chunks::<4>().0 {
        let [who, number, count, length] = *part;
        let header = LinkHeader {
            kind: 1,
            job: CidBytes::default(),
            round: u64::from(who / 16),
            view: 0,
            manifest: Hash32::ZERO,
            phase: 0,
            step: 0,
            chunk: u32::from(number),
            segment: u32::from(count),
            slot: 0,
            sender: peer(who % 16),
            receiver: peer(255),
        };
        if let Part::Whole(bytes) =
            assembly.add(&header.sender, &header, &vec![who; 16 * usize::from(length)])
        {
            assert!(bytes.len() <= MAX_REPLICA);
            assert!(
                bytes.iter().all(|b| *b == who),
                "parts of several replicas in one"
            );
        }
    }
}

fn peer(n: u8) -> PeerBytes {
    PeerBytes::new(vec![n; 4]).expect("a short name")
}
