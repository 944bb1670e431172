//! Published vectors (C2SP/wycheproof) against our ML-KEM-768 and ML-DSA-87.

#![allow(clippy::unwrap_used)]

use gym_crypto::{mldsa, mlkem};
use ml_kem::array::Array;
use serde_json::Value;

fn load(text: &str) -> Vec<Value> {
    serde_json::from_str(text).unwrap()
}

fn bytes(test: &Value, field: &str) -> Vec<u8> {
    hex::decode(test[field].as_str().unwrap()).unwrap()
}

fn is_valid(test: &Value) -> bool {
    match test["result"].as_str().unwrap() {
        "valid" => true,
        "invalid" => false,
        other => panic!("unknown result {other}"),
    }
}

/// The shared secret, or none where key or ciphertext must be refused.
fn decapsulate(dk: &[u8], ciphertext: &[u8]) -> Option<Vec<u8>> {
    let ciphertext: &[u8; mlkem::CIPHERTEXT_BYTES] = ciphertext.try_into().ok()?;
    let dk = mlkem::DecapsulationKey::from_bytes(dk).ok()?;
    Some(dk.decapsulate(ciphertext).to_vec())
}

#[test]
fn ml_kem_768_decapsulates_from_expanded_keys() {
    let tests = load(include_str!("vectors/mlkem_768_decaps.json"));
    assert_eq!(tests.len(), 9);
    for test in &tests {
        let secret = decapsulate(&bytes(test, "dk"), &bytes(test, "c"));
        let expected = is_valid(test).then(|| bytes(test, "K"));
        assert_eq!(secret, expected, "{} {}", test["tcId"], test["comment"]);
    }
}

/// The seed is expanded by the second implementation, as ours takes none.
#[test]
fn ml_kem_768_decapsulates_from_seeds() {
    use ml_kem::kem::KeyExport as _;
    let tests = load(include_str!("vectors/mlkem_768_seed.json"));
    assert!(tests.len() >= 7);
    for test in &tests {
        let seed: [u8; 64] = bytes(test, "seed").try_into().unwrap();
        let dk = ml_kem::DecapsulationKey::<ml_kem::MlKem768>::from_seed(Array::from(seed));
        let ek = dk.encapsulation_key().to_bytes();
        assert_eq!(ek.as_slice(), bytes(test, "ek"), "{}", test["tcId"]);
        #[allow(deprecated)]
        let expanded = ml_kem::ExpandedKeyEncoding::to_expanded_bytes(&dk);
        let secret = decapsulate(expanded.as_slice(), &bytes(test, "c"));
        assert_eq!(secret, Some(bytes(test, "K")), "{}", test["tcId"]);
    }
}

#[test]
fn ml_kem_768_keys_are_checked() {
    let tests = load(include_str!("vectors/mlkem_768_keys.json"));
    assert!(tests.iter().any(is_valid) && tests.iter().filter(|t| !is_valid(t)).count() >= 12);
    for test in &tests {
        let key = mlkem::EncapsulationKey::from_bytes(&bytes(test, "ek"));
        assert_eq!(key.is_ok(), is_valid(test), "{} {key:?}", test["tcId"]);
    }
}

#[test]
fn ml_dsa_87_verifies() {
    let groups = load(include_str!("vectors/mldsa_87_verify.json"));
    let (mut accepted, mut refused) = (0, 0);
    for group in &groups {
        let key = mldsa::PublicKey::from_bytes(&bytes(group, "publicKey"));
        for test in group["tests"].as_array().unwrap() {
            let verified = key
                .as_ref()
                .is_ok_and(|key| key.verify(&bytes(test, "msg"), &bytes(test, "sig")));
            assert_eq!(verified, is_valid(test), "{} {}", test["tcId"], test["comment"]);
            *(if verified { &mut accepted } else { &mut refused }) += 1;
        }
    }
    assert!(accepted >= 8 && refused >= 8, "{accepted} {refused}");
}
