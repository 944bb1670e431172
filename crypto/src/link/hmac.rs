//! HMAC-SHA3-256 (RFC 2104), and HKDF on it (RFC 5869) for outputs of one hash, in memory that is overwritten when dropped:
//! the crates for them leave the padded keys behind, and from the extracted key every key of a link follows.

use sha3::{Digest as _, Sha3_256};
use zeroize::Zeroizing;

/// A secret of 32 bytes, overwritten when dropped.
pub(super) type Key = Zeroizing<[u8; 32]>;

/// Bytes that SHA3-256 absorbs at once.
const BLOCK: usize = 136;

/// HMAC-SHA3-256 of `parts`, one after the other.
pub(super) fn hmac(key: &[u8; 32], parts: &[&[u8]]) -> Key {
    let inner = digest(&padded(key, 0x36), parts);
    digest(&padded(key, 0x5c), &[inner.as_slice()])
}

/// HKDF-Expand of 32 bytes.
pub(super) fn expand(key: &Key, label: &[u8]) -> Key {
    hmac(key, &[label, &[1]])
}

/// A key, shorter than a block, with zeros behind it, every byte changed by `pad`.
fn padded(key: &[u8; 32], pad: u8) -> Zeroizing<[u8; BLOCK]> {
    let mut block = Zeroizing::new([pad; BLOCK]);
    for (byte, key) in block.iter_mut().zip(key) {
        *byte ^= key;
    }
    block
}

/// SHA3-256 of a block and `parts`. The hash overwrites its state when dropped (feature `zeroize`).
fn digest(block: &[u8; BLOCK], parts: &[&[u8]]) -> Key {
    let mut hash = Sha3_256::new_with_prefix(block);
    for part in parts {
        hash.update(part);
    }
    let mut out = Key::default();
    hash.finalize_into((&mut *out).into());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::hmac::{KeyInit as _, Mac as _, SimpleHmac};
    use hkdf::SimpleHkdf;
    use proptest::prelude::*;

    /// HMAC-SHA3-256 sample of NIST (key shorter than a block).
    #[test]
    fn it_is_nists_hmac_sha3_256() {
        let key = std::array::from_fn(|i| i as u8);
        let expected = "4fe8e202c4f058e8dddc23d8c34e467343e23555e24fc2f025d598f558f67205";
        assert_eq!(
            hex::encode(*hmac(&key, &[b"Sample message ", b"for keylen<blocklen"])),
            expected
        );
    }

    proptest! {
        #[test]
        fn it_is_the_crates(
            key: [u8; 32],
            text in prop::collection::vec(any::<u8>(), 0..600),
            label: Vec<u8>,
        ) {
            let mut mac = SimpleHmac::<Sha3_256>::new_from_slice(&key).unwrap();
            mac.update(&text);
            prop_assert_eq!(*hmac(&key, &[&text]), <[u8; 32]>::from(mac.finalize().into_bytes()));
            let (prk, hkdf) = SimpleHkdf::<Sha3_256>::extract(Some(&key), &text);
            prop_assert_eq!(*hmac(&key, &[&text]), <[u8; 32]>::from(prk));
            let mut want = [0; 32];
            hkdf.expand(&label, &mut want).unwrap();
            prop_assert_eq!(*expand(&hmac(&key, &[&text]), &label), want);
        }
    }
}
