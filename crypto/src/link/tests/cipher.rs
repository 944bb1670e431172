//! Sealing from buffer to buffer gives what the cipher gives for the whole message.

use crate::link::keys::{EpochKey, nonce};
use aes_gcm::aead::{Aead as _, Payload};
use aes_gcm::{Aes256Gcm, KeyInit as _};

fn message(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 % 251) as u8).collect()
}

#[test]
fn from_buffer_to_buffer_is_the_plain_cipher() {
    let key = [5; 32];
    let (ours, theirs) = (EpochKey::new(3, key.into()), Aes256Gcm::new(&key.into()));
    for (counter, len) in [
        (0, 0),
        (0, 100),
        (1, 1),
        (2, 15),
        (3, 16),
        (4, 4097),
        (u64::MAX, 100_003),
    ] {
        let (text, header) = (message(len), b"header".as_slice());
        let end: &[u8] = if counter == 0 { &[9; 32] } else { &[] };
        let whole = [text.as_slice(), end].concat();
        let mut sealed = vec![0; whole.len() + 16];
        ours.encrypt(counter, header, (&text, end), &mut sealed).unwrap();
        let nonce = nonce(3, counter).into();
        let payload = |msg| Payload { msg, aad: header };
        assert_eq!(theirs.encrypt(&nonce, payload(whole.as_slice())).unwrap(), sealed);
        assert_eq!(theirs.decrypt(&nonce, payload(sealed.as_slice())).unwrap(), whole);
        let mut opened = sealed.clone();
        ours.decrypt(counter, header, &mut opened).unwrap();
        assert_eq!(opened, whole);
        let last = sealed.len() - 1;
        sealed[last] ^= 1;
        assert!(ours.decrypt(counter, header, &mut sealed).is_none());
    }
}
