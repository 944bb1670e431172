//! The two messages.

use super::*;
use crate::mlkem;
use crate::signing::SignatureError;

#[test]
fn message_sizes_are_the_specifications() {
    let (initiator, init) = Initiator::new(A.party(), &B.record).unwrap();
    let (_, response) = respond(B.party(), &A.record, &init, SMALL).unwrap();
    assert_eq!((init.len(), response.len()), (6003, 5843));
    assert_eq!((INIT_BYTES, RESPONSE_BYTES), (6003, 5843));
    let mut sealer = initiator.finish(&response, 0, SMALL).unwrap();
    assert_eq!(seal(&mut sealer, 0, b"four").len(), 4 + FIRST_OVERHEAD_BYTES);
}

#[test]
fn peeking_tells_whose_record_to_look_up() {
    let (_, init) = Initiator::new(A.party(), &B.record).unwrap();
    let header = peek_init(&init).unwrap();
    assert_eq!(header.genesis, GENESIS);
    assert_eq!(header.initiator_record, *A.record.hash());
    assert_eq!(header.responder_record, *B.record.hash());
    let short = peek_init(&init[1..]);
    assert_eq!(
        short,
        Err(HandshakeError::Length {
            message: 1,
            expected: INIT_BYTES,
            len: INIT_BYTES - 1
        })
    );
}

#[test]
fn every_byte_of_message_1_counts() {
    let (_, init) = Initiator::new(A.party(), &B.record).unwrap();
    for at in 0..init.len() {
        let mut tampered = init.clone();
        tampered[at] ^= 1 << (at % 8);
        let result = respond(B.party(), &A.record, &tampered, SMALL);
        assert!(result.is_err(), "byte {at} of message 1 can be changed");
    }
    let mut long = init;
    long.push(0);
    assert!(respond(B.party(), &A.record, &long, SMALL).is_err());
}

#[test]
fn every_byte_of_message_2_counts() {
    let (initiator, init) = Initiator::new(A.party(), &B.record).unwrap();
    let (_, response) = respond(B.party(), &A.record, &init, SMALL).unwrap();
    for at in 0..response.len() {
        let mut tampered = response.clone();
        tampered[at] ^= 1 << (at % 8);
        let result = again(&initiator).finish(&tampered, 0, SMALL);
        assert!(result.is_err(), "byte {at} of message 2 can be changed");
    }
    assert!(again(&initiator).finish(&response[1..], 0, SMALL).is_err());
    again(&initiator).finish(&response, 0, SMALL).unwrap();
}

/// The same initiator once more; only a test may.
fn again(initiator: &Initiator) -> Initiator {
    initiator.copy_for_test()
}

#[test]
fn a_message_2_for_another_message_1_is_refused() {
    let (first, _) = Initiator::new(A.party(), &B.record).unwrap();
    let (_, init) = Initiator::new(A.party(), &B.record).unwrap();
    let (_, response) = respond(B.party(), &A.record, &init, SMALL).unwrap();
    let error = SignatureError::Ed25519;
    let expected = HandshakeError::Signature {
        party: Party::Responder,
        error,
    };
    assert_eq!(first.finish(&response, 0, SMALL).map(drop), Err(expected));
}

#[test]
fn mac_b_is_checked_even_under_good_signatures() {
    let (initiator, init) = Initiator::new(A.party(), &B.record).unwrap();
    let (_, mut response) = respond(B.party(), &A.record, &init, SMALL).unwrap();
    *response.last_mut().unwrap() ^= 1;
    assert_eq!(
        initiator.finish(&response, 0, SMALL).map(drop),
        Err(HandshakeError::Confirmation)
    );
}

#[test]
fn another_network_says_so() {
    let other = [9; 32];
    let party = LinkParty::new(&A.identity, &A.record, &other).unwrap();
    let (_, init) = Initiator::new(party, &B.record).unwrap();
    let error = respond(B.party(), &A.record, &init, SMALL).map(drop).unwrap_err();
    assert!(matches!(error, HandshakeError::Genesis { .. }));
    assert!(error.to_string().contains("another network"), "{error}");
}

#[test]
fn records_other_than_those_in_the_message_are_refused() {
    let stranger = Node::new();
    let (_, init) = Initiator::new(A.party(), &B.record).unwrap();
    let named = |party| move |e| matches!(e, HandshakeError::Record { party: p, .. } if p == party);
    let wrong_sender = respond(B.party(), &stranger.record, &init, SMALL).map(drop);
    assert!(wrong_sender.is_err_and(named(Party::Initiator)));
    let wrong_receiver = respond(stranger.party(), &A.record, &init, SMALL).map(drop);
    assert!(wrong_receiver.is_err_and(named(Party::Responder)));
    assert_eq!(
        LinkParty::new(&A.identity, &stranger.record, &GENESIS).map(drop),
        Err(HandshakeError::OwnRecord)
    );
    assert_eq!(
        Initiator::new(A.party(), &A.record).map(drop),
        Err(HandshakeError::SamePeer)
    );
}

#[test]
fn a_signed_but_invalid_key_is_refused() {
    let header = InitHeader {
        genesis: GENESIS,
        initiator_record: *A.record.hash(),
        responder_record: *B.record.hash(),
    };
    let mut ek = *mlkem::generate().0.as_bytes();
    ek[..2].copy_from_slice(&[0xff, 0x0f]);
    let mut init = message::Init::body(&header, &[0; 32], &ek);
    let signatures = A.identity.sign_both(INIT_DOMAIN, &GENESIS, &init);
    message::push_signatures(&mut init, &signatures);
    let result = respond(B.party(), &A.record, &init, SMALL).map(drop);
    assert!(matches!(
        result,
        Err(HandshakeError::Key(mlkem::KeyError::Coefficient {
            index: 0,
            value: 4095
        }))
    ));
}

#[test]
fn secrets_are_not_printed() {
    let (mut sealer, opener) = link(SMALL);
    sealer.seal(0, HEADER, &mut Vec::new()).unwrap();
    let (initiator, _) = Initiator::new(A.party(), &B.record).unwrap();
    let text = format!("{sealer:?} {initiator:?} {:?}", A.identity);
    assert!(text.contains("key: EpochKey(0)"), "{text}");
    assert!(format!("{opener:?}").contains("key: EpochKey(0)"));
    let seed = hex::encode(A.identity.ed25519_seed().as_slice());
    assert!(!text.contains(&seed));
}
