use super::{aws_lc, rust_crypto};
use proptest::prelude::*;

/// Both libraries' sealed bytes, tag at the end.
fn sealed(key: &[u8; 32], nonce: [u8; 12], associated: &[u8], parts: (&[u8], &[u8])) -> [Vec<u8>; 2] {
    let mut ours = [(); 2].map(|()| vec![0xa5; parts.0.len() + parts.1.len()]);
    let [a, b] = &mut ours;
    let tag_a = rust_crypto::Cipher::new(key)
        .encrypt(nonce, associated, parts, a)
        .unwrap();
    let tag_b = aws_lc::Cipher::new(key)
        .encrypt(nonce, associated, parts, b)
        .unwrap();
    a.extend(tag_a);
    b.extend(tag_b);
    ours
}

/// `None` and nothing of the plaintext, or the plaintext.
fn opened(sealed: &[u8], open: impl FnOnce(&mut Vec<u8>) -> Option<()>) -> Result<Vec<u8>, Vec<u8>> {
    let mut buffer = sealed.to_vec();
    match open(&mut buffer) {
        Some(()) => Ok(buffer),
        None => Err(buffer),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// What one library seals the other opens, and the bytes are the same; altered anywhere, neither does.
    #[test]
    fn both_libraries_make_the_same_bytes(
        key: [u8; 32],
        nonce: [u8; 12],
        associated in proptest::collection::vec(any::<u8>(), 0..300),
        plaintext in proptest::collection::vec(any::<u8>(), 0..3000),
        end in proptest::collection::vec(any::<u8>(), 0..40),
        at: prop::sample::Index,
        bit in 0..8u32,
    ) {
        let [a, b] = sealed(&key, nonce, &associated, (&plaintext, &end));
        prop_assert_eq!(&a, &b);
        let whole = [plaintext, end].concat();
        let (rust, aws) = (rust_crypto::Cipher::new(&key), aws_lc::Cipher::new(&key));
        prop_assert_eq!(&opened(&a, |s| rust.decrypt(nonce, &associated, s)).unwrap(), &whole);
        prop_assert_eq!(&opened(&a, |s| aws.decrypt(nonce, &associated, s)).unwrap(), &whole);

        let mut altered = a;
        let at = at.index(altered.len());
        altered[at] ^= 1 << bit;
        for left in [
            opened(&altered, |s| rust.decrypt(nonce, &associated, s)).unwrap_err(),
            opened(&altered, |s| aws.decrypt(nonce, &associated, s)).unwrap_err(),
        ] {
            prop_assert!(whole.len() < 8 || !left.windows(8).any(|part| part == &whole[..8]));
        }
        let mut other = nonce;
        other[0] ^= 1;
        prop_assert!(opened(&b, |s| aws.decrypt(other, &associated, s)).is_err());
    }
}

#[test]
fn what_is_too_short_for_a_tag_does_not_open() {
    for len in 0..16 {
        let mut short = vec![0; len];
        assert!(
            aws_lc::Cipher::new(&[1; 32])
                .decrypt([0; 12], b"", &mut short)
                .is_none()
        );
        assert!(
            rust_crypto::Cipher::new(&[1; 32])
                .decrypt([0; 12], b"", &mut short)
                .is_none()
        );
    }
}

#[test]
fn a_buffer_of_another_length_is_refused() {
    for parts in [(&b"12345"[..], &b""[..]), (b"123", b"45")] {
        for len in [0, 4, 6] {
            let mut other = vec![0; len];
            let rust = rust_crypto::Cipher::new(&[1; 32]).encrypt([0; 12], b"", parts, &mut other);
            assert_eq!(rust, None);
            let aws = aws_lc::Cipher::new(&[1; 32]).encrypt([0; 12], b"", parts, &mut other);
            assert_eq!(aws, None);
        }
    }
}
