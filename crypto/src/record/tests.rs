use super::*;
use proptest::prelude::*;

const GENESIS: GenesisHash = [3; 32];
const NOW: u64 = 1_700_000_000;
const YEAR: Validity = Validity {
    issued: NOW - 10,
    expires: NOW + 31_536_000,
};

fn identity() -> Identity {
    Identity::generate().unwrap()
}

/// A new ML-DSA key for the same peer.
fn with_new_mldsa(old: &Identity) -> Identity {
    let mut bytes = old.to_secret_bytes();
    let fresh = identity().to_secret_bytes();
    let end = bytes.len() - 32;
    bytes[33..end].copy_from_slice(&fresh[33..end]);
    let checksum = sha3_256(&[&bytes[..end]]);
    bytes[end..].copy_from_slice(&checksum);
    Identity::from_secret_bytes(&bytes).unwrap()
}

fn resign(record: &mut SignedRecord, identity: &Identity) {
    record.signatures = identity.sign_both(DOMAIN, &GENESIS, &record.body.body());
}

#[test]
fn a_record_survives_encoding_and_verifies() {
    let record = SignedRecord::first(&identity(), &GENESIS, YEAR);
    let bytes = record.encode();
    assert!(bytes.len() < MAX_RECORD_BYTES);
    let read = SignedRecord::decode(&bytes).unwrap();
    assert_eq!(read, record);
    let verified = read.verify(&GENESIS, NOW, Anchor::Itself).unwrap();
    assert_eq!(*verified.hash(), record.record_hash());
    read.verify(&GENESIS, NOW, Anchor::Pinned(&record.record_hash()))
        .unwrap();
}

#[test]
fn the_hash_covers_the_body_and_not_the_signatures() {
    let identity = identity();
    let a = SignedRecord::first(&identity, &GENESIS, YEAR);
    let b = SignedRecord::first(&identity, &GENESIS, YEAR);
    assert_ne!(a.signatures.mldsa, b.signatures.mldsa);
    assert_eq!(a.record_hash(), b.record_hash());
    assert_eq!(a.record_hash(), sha3_256(&[&a.body.body()]));
}

#[test]
fn times_are_checked() {
    let record = SignedRecord::first(&identity(), &GENESIS, YEAR);
    let at = |now| record.verify(&GENESIS, now, Anchor::Itself).map(drop);
    assert_eq!(at(YEAR.issued - CLOCK_SKEW_SECONDS), Ok(()));
    assert!(matches!(
        at(YEAR.issued - CLOCK_SKEW_SECONDS - 1),
        Err(RecordError::Time { .. })
    ));
    assert_eq!(at(YEAR.expires - 1), Ok(()));
    assert!(matches!(at(YEAR.expires), Err(RecordError::Expired { .. })));
    let backwards = Validity {
        issued: NOW,
        expires: NOW,
    };
    let record = SignedRecord::first(&identity(), &GENESIS, backwards);
    assert!(matches!(
        record.verify(&GENESIS, NOW, Anchor::Itself),
        Err(RecordError::Time { .. })
    ));
}

#[test]
fn another_network_another_pin_another_peer_are_refused() {
    let identity = identity();
    let mut record = SignedRecord::first(&identity, &GENESIS, YEAR);
    let ed25519 = Err(RecordError::Signature(SignatureError::Ed25519));
    assert_eq!(record.verify(&[4; 32], NOW, Anchor::Itself).map(drop), ed25519);
    let pinned = record.verify(&GENESIS, NOW, Anchor::Pinned(&[0; 32]));
    assert!(matches!(pinned, Err(RecordError::NotPinned { .. })));
    record.body.peer[37] ^= 1;
    resign(&mut record, &identity);
    assert_eq!(
        record.verify(&GENESIS, NOW, Anchor::Itself).map(drop),
        Err(RecordError::Peer)
    );
}

#[test]
fn every_field_is_signed() {
    let record = SignedRecord::first(&identity(), &GENESIS, YEAR);
    let changes: [fn(&mut IdentityRecord); 3] = [
        |r| r.issued += 1,
        |r| r.expires += 1,
        |r| r.mldsa = crate::mldsa::generate().0,
    ];
    for change in changes {
        let mut changed = record.clone();
        change(&mut changed.body);
        let result = changed.verify(&GENESIS, NOW, Anchor::Itself);
        assert!(matches!(result, Err(RecordError::Signature(_))), "{result:?}");
    }
}

#[test]
fn the_chain_holds_over_a_change_of_mldsa_key() {
    let old = identity();
    let first = SignedRecord::first(&old, &GENESIS, YEAR)
        .verify(&GENESIS, NOW, Anchor::Itself)
        .unwrap();
    let new = with_new_mldsa(&old);
    let next = SignedRecord::next(&new, &old, &first, &GENESIS, YEAR).unwrap();
    let second = next.verify(&GENESIS, NOW, Anchor::Previous(&first)).unwrap();
    assert_eq!(second.record().number, 1);
    assert_eq!(second.keys(), new.public());
    // The record after must follow the second one and be signed with its key.
    let third = SignedRecord::next(&new, &new, &second, &GENESIS, YEAR).unwrap();
    third.verify(&GENESIS, NOW, Anchor::Previous(&second)).unwrap();
    let skipped = third.verify(&GENESIS, NOW, Anchor::Previous(&first));
    assert_eq!(
        skipped,
        Err(RecordError::Number {
            number: 2,
            previous: 0
        })
    );
}

#[test]
fn a_thief_of_the_ed25519_key_alone_cannot_continue_the_chain() {
    let owner = identity();
    let first = SignedRecord::first(&owner, &GENESIS, YEAR)
        .verify(&GENESIS, NOW, Anchor::Itself)
        .unwrap();
    let thief = with_new_mldsa(&owner);
    assert_eq!(
        SignedRecord::next(&thief, &thief, &first, &GENESIS, YEAR).map(drop),
        Err(RecordError::OtherPeer)
    );
    let mut forged = SignedRecord::next(&thief, &owner, &first, &GENESIS, YEAR).unwrap();
    forged.previous = Some(thief.sign_mldsa(DOMAIN, &GENESIS, &forged.body.body()));
    let result = forged.verify(&GENESIS, NOW, Anchor::Previous(&first));
    assert_eq!(
        result,
        Err(RecordError::Chain {
            number: 1,
            problem: "does not verify"
        })
    );
    forged.previous = None;
    let result = forged.verify(&GENESIS, NOW, Anchor::Itself);
    assert_eq!(
        result,
        Err(RecordError::Chain {
            number: 1,
            problem: "is missing"
        })
    );
}

#[test]
fn another_peers_record_does_not_continue_a_chain() {
    let (a, b) = (identity(), identity());
    let first = |i| {
        SignedRecord::first(i, &GENESIS, YEAR)
            .verify(&GENESIS, NOW, Anchor::Itself)
            .unwrap()
    };
    let (a0, b0) = (first(&a), first(&b));
    let a1 = SignedRecord::next(&a, &a, &a0, &GENESIS, YEAR).unwrap();
    assert_eq!(
        a1.verify(&GENESIS, NOW, Anchor::Previous(&b0)),
        Err(RecordError::OtherPeer)
    );
}

#[test]
fn two_bodies_with_one_number_are_evidence() {
    let owner = identity();
    let a = SignedRecord::first(&owner, &GENESIS, YEAR);
    let later = Validity {
        expires: YEAR.expires + 1,
        ..YEAR
    };
    let b = SignedRecord::first(&owner, &GENESIS, later);
    let expected = Equivocation {
        peer: owner.peer_bytes(),
        number: 0,
    };
    assert_eq!(prove_equivocation(&GENESIS, &a, &b, None), Ok(expected));
    let again = SignedRecord::first(&owner, &GENESIS, YEAR);
    assert_eq!(
        prove_equivocation(&GENESIS, &a, &again, None),
        Err(NotEvidence::SameBody)
    );
}

#[test]
fn evidence_cannot_be_made_up() {
    let owner = identity();
    let a = SignedRecord::first(&owner, &GENESIS, YEAR);
    let framed = SignedRecord::first(&with_new_mldsa(&owner), &GENESIS, YEAR);
    assert_eq!(
        prove_equivocation(&GENESIS, &a, &framed, None),
        Err(NotEvidence::Unbound)
    );
    let mut unsigned = a.clone();
    unsigned.body.expires += 1;
    let result = prove_equivocation(&GENESIS, &a, &unsigned, None);
    assert!(matches!(result, Err(NotEvidence::Invalid(_))));
    let stranger = SignedRecord::first(&identity(), &GENESIS, YEAR);
    assert_eq!(
        prove_equivocation(&GENESIS, &a, &stranger, None),
        Err(NotEvidence::DifferentPeers)
    );
}

#[test]
fn evidence_further_along_the_chain_needs_the_record_before() {
    let owner = identity();
    let first = SignedRecord::first(&owner, &GENESIS, YEAR);
    let zero = first.verify(&GENESIS, NOW, Anchor::Itself).unwrap();
    let next = |i: &Identity| SignedRecord::next(i, &owner, &zero, &GENESIS, YEAR).unwrap();
    let (a, b) = (next(&owner), next(&with_new_mldsa(&owner)));
    assert_eq!(
        prove_equivocation(&GENESIS, &a, &b, None),
        Err(NotEvidence::Unbound)
    );
    assert_eq!(
        prove_equivocation(&GENESIS, &a, &b, Some(&zero)).unwrap().number,
        1
    );
    assert_eq!(
        prove_equivocation(&GENESIS, &a, &first, None),
        Err(NotEvidence::DifferentNumbers)
    );
}

#[test]
fn only_the_one_valid_encoding_is_read() {
    let record = SignedRecord::first(&identity(), &GENESIS, YEAR);
    let bytes = record.encode();
    let mut trailing = bytes.clone();
    trailing.push(0);
    assert!(SignedRecord::decode(&trailing).is_err());
    assert!(SignedRecord::decode(&bytes[..bytes.len() - 1]).is_err());
    // The number 0 as a two-byte integer: the same value, written otherwise.
    let key = b"fnumber";
    let at = bytes.windows(key.len()).position(|w| w == key).unwrap() + key.len();
    assert_eq!(bytes[at], 0);
    let mut padded = bytes.clone();
    padded.splice(at..=at, [0x18, 0]);
    assert!(SignedRecord::decode(&padded).is_err());
    let long = SignedRecord::decode(&vec![0; MAX_RECORD_BYTES + 1]);
    assert!(matches!(
        long,
        Err(RecordError::Encoding(CanonicalError::TooLong { .. }))
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
        prop_assert!(SignedRecord::decode(&bytes).is_err());
    }
}

#[test]
fn a_damaged_record_never_verifies() {
    let bytes = SignedRecord::first(&identity(), &GENESIS, YEAR).encode();
    let good = SignedRecord::decode(&bytes).unwrap();
    for at in (0..bytes.len()).step_by(13) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        let Ok(record) = SignedRecord::decode(&damaged) else {
            continue;
        };
        assert_ne!(record, good);
        assert!(record.verify(&GENESIS, NOW, Anchor::Itself).is_err(), "byte {at}");
    }
}
