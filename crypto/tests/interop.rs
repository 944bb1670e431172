//! ML-KEM-768 and ML-DSA-87 against a second implementation (RustCrypto's), both ways, and peer ids against libp2p's form.

use gym_crypto::{identity, mldsa, mlkem};
use ml_dsa::{EncodedVerifyingKey, ExpandedSigningKey, MlDsa87};
use ml_kem::{MlKem768, array::Array, kem::Decapsulate as _};

const ROUNDS: u8 = 8;

#[test]
fn we_encapsulate_and_they_decapsulate() {
    use ml_kem::kem::KeyExport as _;
    for round in 0..ROUNDS {
        let dk = ml_kem::DecapsulationKey::<MlKem768>::from_seed(Array::from([round; 64]));
        let ek = mlkem::EncapsulationKey::from_bytes(&dk.encapsulation_key().to_bytes()).unwrap();
        let (ciphertext, secret) = ek.encapsulate();
        assert_eq!(
            dk.decapsulate(&Array::from(ciphertext)).as_slice(),
            secret.as_slice()
        );
    }
}

#[test]
fn they_encapsulate_and_we_decapsulate() {
    for round in 0..ROUNDS {
        let (ek, dk) = mlkem::generate();
        let theirs = ml_kem::EncapsulationKey::<MlKem768>::new(&Array::from(*ek.as_bytes())).unwrap();
        let (ciphertext, secret) = theirs.encapsulate_deterministic(&Array::from([round; 32]));
        assert_eq!(dk.decapsulate(&ciphertext.into()).as_slice(), secret.as_slice());
    }
}

#[test]
fn both_refuse_the_same_keys() {
    for at in 0..768 * 3 / 2 {
        let mut bytes = *mlkem::generate().0.as_bytes();
        bytes[at] = 0xff;
        let ours = mlkem::EncapsulationKey::from_bytes(&bytes).is_ok();
        let theirs = ml_kem::EncapsulationKey::<MlKem768>::new(&Array::from(bytes)).is_ok();
        assert_eq!(ours, theirs, "byte {at}");
    }
}

#[test]
fn we_sign_and_they_verify() {
    for round in 0..ROUNDS {
        let (public, secret) = mldsa::generate();
        let message = [round; 100];
        let signature = secret.sign(&message);
        let key = ml_dsa::VerifyingKey::<MlDsa87>::decode(&EncodedVerifyingKey::<MlDsa87>::from(
            *public.as_bytes(),
        ));
        let parsed = ml_dsa::Signature::<MlDsa87>::try_from(signature.as_slice()).unwrap();
        assert!(key.verify_with_context(&message, &[], &parsed));
        assert!(!key.verify_with_context(&message, b"context", &parsed));
        assert!(!key.verify_with_context(&message[1..], &[], &parsed));
    }
}

#[test]
fn they_sign_and_we_verify() {
    for round in 0..ROUNDS {
        let key = ExpandedSigningKey::<MlDsa87>::from_seed(&Array::from([round; 32]));
        let public = mldsa::PublicKey::from_bytes(&key.verifying_key().encode()).unwrap();
        let message = [round; 100];
        let signature = key.sign_deterministic(&message, &[]).unwrap().encode();
        assert!(public.verify(&message, &signature));
        assert!(!public.verify(&message[1..], &signature));
        let with_context = key.sign_deterministic(&message, b"context").unwrap().encode();
        assert!(!public.verify(&message, &with_context));
    }
}

/// The Ed25519 example of the libp2p specification (peer-ids, test vectors): its protobuf-encoded public key.
#[test]
fn a_peer_id_is_the_identity_multihash_of_libp2ps_public_key() {
    let encoded = "080112201ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e";
    let protobuf = hex::decode(encoded).unwrap();
    let key: [u8; 32] = protobuf[4..].try_into().unwrap();
    let peer = identity::peer_from_ed25519(&key);
    assert_eq!(peer[..2], [0x00, 36]);
    assert_eq!(peer[2..], protobuf);
}
