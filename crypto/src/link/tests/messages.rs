//! Sealing, confirmation, replay, ratchet.

use super::*;

#[test]
fn a_link_carries_messages_of_every_size() {
    let (mut sealer, mut opener) = link(Config::default());
    for len in [0, 1, 15, 16, 17, 1 << 20] {
        let plaintext = vec![len as u8; len];
        let sealed = seal(&mut sealer, 0, &plaintext);
        assert_eq!(sealed.len(), len + OVERHEAD_BYTES);
        assert_eq!(open(&mut opener, 0, &sealed).unwrap(), plaintext);
    }
}

#[test]
fn every_byte_of_the_first_sealed_message_counts() {
    let (mut sealer, pending) = handshake(SMALL);
    let first = seal(&mut sealer, 0, b"payload");
    for at in 0..first.len() {
        let mut tampered = first.clone();
        tampered[at] ^= 1 << (at % 8);
        assert!(
            pending.copy_for_test().open_first(HEADER, &mut tampered).is_err(),
            "byte {at}"
        );
        assert!(!tampered.windows(7).any(|w| w == b"payload"));
    }
    pending.open_first(HEADER, &mut first.clone()).unwrap();
}

#[test]
fn every_byte_of_mac_a_counts_under_a_good_tag() {
    for at in 0..MAC_BYTES {
        let (mut sealer, pending) = handshake(SMALL);
        sealer.break_confirmation_for_test(at);
        let mut first = seal(&mut sealer, 0, b"payload");
        assert_eq!(
            pending.open_first(HEADER, &mut first).map(drop),
            Err(OpenError::Confirmation)
        );
        assert!(first.is_empty());
    }
}

#[test]
fn nothing_is_accepted_before_the_confirmation() {
    let (mut sealer, pending) = handshake(SMALL);
    let _first = seal(&mut sealer, 0, b"one");
    let mut second = seal(&mut sealer, 0, &[7; 64]);
    let result = pending.open_first(HEADER, &mut second).map(drop);
    assert_eq!(result, Err(OpenError::NotConfirmed { epoch: 0, counter: 1 }));
}

#[test]
fn other_associated_data_or_an_altered_byte_is_refused() {
    let (mut sealer, mut opener) = link(SMALL);
    let sealed = seal(&mut sealer, 0, b"chunk");
    let mut buffer = sealed.clone();
    let bad_tag = Err(OpenError::BadTag { epoch: 0, counter: 1 });
    assert_eq!(opener.open(0, b"another header", &mut buffer), bad_tag);
    for at in 0..sealed.len() {
        let mut tampered = sealed.clone();
        tampered[at] ^= 0x40;
        assert!(open(&mut opener, 0, &tampered).is_err(), "byte {at}");
    }
    assert_eq!(open(&mut opener, 0, &sealed).unwrap(), b"chunk");
}

#[test]
fn a_message_opens_once_and_in_any_order_within_the_window() {
    let config = Config {
        epoch_messages: 5000,
        ..SMALL
    };
    let (mut sealer, mut opener) = link(config);
    let sealed: Vec<_> = (0..1100u16)
        .map(|i| seal(&mut sealer, 0, &i.to_le_bytes()))
        .collect();
    assert_eq!(
        open(&mut opener, 0, &sealed[1099]).unwrap(),
        1099u16.to_le_bytes()
    );
    assert_eq!(
        open(&mut opener, 0, &sealed[1099]),
        Err(OpenError::Replay {
            epoch: 0,
            counter: 1100
        })
    );
    // Message i has counter i + 1; 1,024 behind counter 1100 is counter 76.
    assert_eq!(open(&mut opener, 0, &sealed[75]).unwrap(), 75u16.to_le_bytes());
    assert_eq!(
        open(&mut opener, 0, &sealed[75]),
        Err(OpenError::Replay {
            epoch: 0,
            counter: 76
        })
    );
    assert_eq!(
        open(&mut opener, 0, &sealed[74]),
        Err(OpenError::Behind {
            counter: 75,
            newest: 1100
        })
    );
}

#[test]
fn the_first_message_cannot_be_replayed() {
    let (mut sealer, pending) = handshake(SMALL);
    let first = seal(&mut sealer, 0, b"first");
    let mut opener = pending.open_first(HEADER, &mut first.clone()).unwrap();
    assert_eq!(
        open(&mut opener, 0, &first),
        Err(OpenError::Replay { epoch: 0, counter: 0 })
    );
}

#[test]
fn the_key_changes_by_count_and_by_time() {
    let (mut sealer, mut opener) = link(SMALL);
    let mut pass = |now, epoch| {
        let sealed = seal(&mut sealer, now, b"x");
        assert_eq!(open(&mut opener, now, &sealed).unwrap(), b"x");
        assert_eq!((sealer.epoch(), opener.epoch()), (epoch, epoch), "at {now}");
    };
    // The handshake's message was the first of four.
    [0, 0, 0].into_iter().for_each(|now| pass(now, 0));
    [0, 1, 2, 3].into_iter().for_each(|now| pass(now, 1));
    pass(3, 2);
    pass(1002, 2);
    pass(1003, 3);
    // However long the silence, one step: the receiver takes the next epoch only.
    pass(90_000, 4);
}

#[test]
fn epochs_use_different_keys_for_the_same_counter() {
    let config = Config {
        epoch_messages: 1,
        ..SMALL
    };
    let (mut sealer, _) = link(config);
    let (a, b) = (seal(&mut sealer, 0, &[0; 32]), seal(&mut sealer, 0, &[0; 32]));
    assert_ne!(a[..32], b[..32]);
}

#[test]
fn the_old_epoch_is_taken_within_its_grace_only() {
    let (mut sealer, mut opener) = link(SMALL);
    let old: Vec<_> = (0..3).map(|_| seal(&mut sealer, 0, b"old")).collect();
    let new = seal(&mut sealer, 10, b"new");
    assert_eq!(sealer.epoch(), 1);
    open(&mut opener, 10, &new).unwrap();
    assert_eq!(open(&mut opener, 10, &old[0]).unwrap(), b"old");
    assert_eq!(open(&mut opener, 310, &old[1]).unwrap(), b"old");
    assert_eq!(
        open(&mut opener, 310, &old[1]),
        Err(OpenError::Replay { epoch: 0, counter: 2 })
    );
    assert_eq!(
        open(&mut opener, 311, &old[2]),
        Err(OpenError::Epoch { epoch: 0, current: 1 })
    );
}

#[test]
fn an_idle_link_forgets_the_old_key_when_its_reader_says_so() {
    let (mut sealer, mut opener) = link(SMALL);
    let old: Vec<_> = (0..3).map(|_| seal(&mut sealer, 0, b"old")).collect();
    assert_eq!(opener.forget_at(), None);
    let new = seal(&mut sealer, 10, b"new");
    open(&mut opener, 10, &new).unwrap();
    let at = opener.forget_at().unwrap();
    opener.forget_old(at - 1);
    assert_eq!(open(&mut opener, at - 1, &old[0]).unwrap(), b"old");
    opener.forget_old(at);
    assert_eq!(opener.forget_at(), None);
    // Gone for good: a clock that is set back does not bring it again.
    assert_eq!(
        open(&mut opener, 10, &old[1]),
        Err(OpenError::Epoch { epoch: 0, current: 1 })
    );
}

#[test]
fn the_default_grace_is_30_seconds_and_the_key_lasts_an_hour() {
    let (mut sealer, mut opener) = link(Config::default());
    let hour = 3_600_000;
    let old: Vec<_> = (0..2).map(|_| seal(&mut sealer, hour - 1, b"old")).collect();
    let new = seal(&mut sealer, hour, b"new");
    open(&mut opener, hour, &new).unwrap();
    assert_eq!(opener.epoch(), 1);
    assert_eq!(open(&mut opener, hour + 30_000, &old[0]).unwrap(), b"old");
    assert_eq!(
        open(&mut opener, hour + 30_001, &old[1]),
        Err(OpenError::Epoch { epoch: 0, current: 1 })
    );
    assert_eq!(Config::default().epoch_messages, 1_048_576);
}

#[test]
fn an_epoch_after_the_next_is_refused_and_changes_nothing() {
    let (mut sealer, mut opener) = link(SMALL);
    let sealed: Vec<_> = (0..8).map(|_| seal(&mut sealer, 0, b"x")).collect();
    assert_eq!(
        open(&mut opener, 0, &sealed[7]),
        Err(OpenError::Epoch { epoch: 2, current: 0 })
    );
    for message in &sealed {
        open(&mut opener, 0, message).unwrap();
    }
}

#[test]
fn a_forged_next_epoch_does_not_move_the_receiver() {
    let (mut sealer, mut opener) = link(SMALL);
    let sealed = seal(&mut sealer, 0, b"x");
    let mut forged = sealed.clone();
    let at = forged.len() - NONCE_BYTES;
    forged[at] = 1;
    assert_eq!(
        open(&mut opener, 0, &forged),
        Err(OpenError::BadTag { epoch: 1, counter: 1 })
    );
    assert_eq!(opener.epoch(), 0);
    open(&mut opener, 0, &sealed).unwrap();
}

#[test]
fn a_sender_that_does_not_ratchet_is_refused() {
    let (initiator, init) = Initiator::new(A.party(), &B.record).unwrap();
    let (pending, response) = respond(B.party(), &A.record, &init, SMALL).unwrap();
    let lazy = Config {
        epoch_messages: 1000,
        ..SMALL
    };
    let mut sealer = initiator.finish(&response, 0, lazy).unwrap();
    let mut opener = pending
        .open_first(HEADER, &mut seal(&mut sealer, 0, b""))
        .unwrap();
    for _ in 1..4 {
        open(&mut opener, 0, &seal(&mut sealer, 0, b"")).unwrap();
    }
    let full = Err(OpenError::EpochFull { counter: 4, limit: 4 });
    assert_eq!(open(&mut opener, 0, &seal(&mut sealer, 0, b"")), full);
}

#[test]
fn sizes_are_bounded() {
    let (mut sealer, mut opener) = link(SMALL);
    let mut long = vec![0; SMALL.max_plaintext + 1];
    let refused = Err(SealError::TooLong {
        len: long.len(),
        max: SMALL.max_plaintext,
    });
    assert_eq!(sealer.seal(0, HEADER, &mut long), refused);
    assert_eq!(long.len(), SMALL.max_plaintext + 1);
    let full = seal(&mut sealer, 0, &long[1..]);
    assert_eq!(open(&mut opener, 0, &full).unwrap().len(), SMALL.max_plaintext);
    let max = SMALL.max_plaintext + OVERHEAD_BYTES;
    assert_eq!(
        open(&mut opener, 0, &vec![0; max + 1]),
        Err(OpenError::TooLong { len: max + 1, max })
    );
    for len in 0..OVERHEAD_BYTES {
        assert_eq!(
            open(&mut opener, 0, &vec![0; len]),
            Err(OpenError::TooShort { len })
        );
    }
}

#[test]
fn a_link_does_not_open_anothers_messages() {
    let (mut sealer, _) = link(SMALL);
    let (_, mut opener) = link(SMALL);
    let sealed = seal(&mut sealer, 0, b"x");
    assert_eq!(
        open(&mut opener, 0, &sealed),
        Err(OpenError::BadTag { epoch: 0, counter: 1 })
    );
}
