//! NIST's published vectors for FIPS 203 and FIPS 204 (ACVP) against our ML-KEM-768 and ML-DSA-87, and against the second
//! implementation, so that neither is judged by the other alone. Backends take no seeds: key generation, encapsulation
//! and signing are covered by cross-checks (`interop.rs`).

#![allow(clippy::unwrap_used, reason = "a test")]

use gym_crypto::{mldsa, mlkem};
use ml_dsa::{ExpandedSigningKey, MlDsa87};
use ml_kem::MlKem768;
use ml_kem::array::Array;
use ml_kem::kem::Decapsulate as _;
use pqcrypto_mldsa::mldsa87;
use pqcrypto_traits::sign::{DetachedSignature as _, PublicKey as _};
use serde_json::Value;

fn load(text: &str, group: &str) -> Vec<Value> {
    let mut value: Value = serde_json::from_str(text).unwrap();
    serde_json::from_value(value[group].take()).unwrap()
}

fn kem(group: &str) -> Vec<Value> {
    load(include_str!("vectors/acvp_mlkem_768.json"), group)
}

fn dsa(group: &str) -> Vec<Value> {
    load(include_str!("vectors/acvp_mldsa_87.json"), group)
}

fn bytes(test: &Value, field: &str) -> Vec<u8> {
    hex::decode(test[field].as_str().unwrap()).unwrap()
}

fn passes(test: &Value) -> bool {
    test["testPassed"].as_bool().unwrap()
}

/// Both kinds of outcome are among the tests.
fn assert_mixed(tests: &[Value]) {
    assert!(tests.iter().any(passes) && !tests.iter().all(passes));
}

#[test]
fn ml_kem_768_decapsulates() {
    let tests = kem("decapsulation");
    assert!(tests.iter().any(|t| t["reason"] == "modified ciphertext"));
    for test in &tests {
        let (dk, secret) = (bytes(test, "dk"), bytes(test, "k"));
        let ciphertext: [u8; mlkem::CIPHERTEXT_BYTES] = bytes(test, "c").try_into().unwrap();
        let ours = mlkem::DecapsulationKey::from_bytes(&dk).unwrap();
        assert_eq!(
            ours.decapsulate(&ciphertext).as_slice(),
            secret,
            "{}",
            test["tcId"]
        );
        let expanded = Array::try_from(dk.as_slice()).unwrap();
        #[allow(deprecated, reason = "the vectors hold expanded keys")]
        let theirs: ml_kem::DecapsulationKey<MlKem768> =
            ml_kem::ExpandedKeyEncoding::from_expanded_bytes(&expanded).unwrap();
        assert_eq!(
            theirs.decapsulate(&ciphertext.into()).as_slice(),
            secret,
            "{}",
            test["tcId"]
        );
    }
}

#[test]
fn ml_kem_768_checks_decapsulation_keys() {
    let tests = kem("decapsulationKeyCheck");
    assert_mixed(&tests);
    for test in &tests {
        let key = mlkem::DecapsulationKey::from_bytes(&bytes(test, "dk"));
        assert_eq!(key.is_ok(), passes(test), "{} {}", test["tcId"], test["reason"]);
    }
}

#[test]
fn ml_kem_768_checks_encapsulation_keys() {
    let tests = kem("encapsulationKeyCheck");
    assert_mixed(&tests);
    for test in &tests {
        let ek = bytes(test, "ek");
        let ours = mlkem::EncapsulationKey::from_bytes(&ek);
        assert_eq!(ours.is_ok(), passes(test), "{} {}", test["tcId"], test["reason"]);
        let theirs = ml_kem::EncapsulationKey::<MlKem768>::new(&Array::try_from(ek.as_slice()).unwrap());
        assert_eq!(theirs.is_ok(), passes(test), "{}", test["tcId"]);
    }
}

/// All but one have a context, which the protocol never has: our backend is asked with it, our own `verify` without.
#[test]
fn ml_dsa_87_verifies() {
    let tests = dsa("verify");
    assert_mixed(&tests);
    for test in &tests {
        let [pk, message, context, signature] =
            ["pk", "message", "context", "signature"].map(|field| bytes(test, field));
        let key = mldsa87::PublicKey::from_bytes(&pk).unwrap();
        let parsed = mldsa87::DetachedSignature::from_bytes(&signature).unwrap();
        let verified = mldsa87::verify_detached_signature_ctx(&parsed, &message, &context, &key).is_ok();
        assert_eq!(verified, passes(test), "{} {}", test["tcId"], test["reason"]);

        let ours = mldsa::PublicKey::from_bytes(&pk).unwrap();
        let expected = context.is_empty() && passes(test);
        assert_eq!(ours.verify(&message, &signature), expected, "{}", test["tcId"]);

        let key = ml_dsa::VerifyingKey::<MlDsa87>::decode(&Array::try_from(pk.as_slice()).unwrap());
        let theirs = ml_dsa::Signature::<MlDsa87>::try_from(signature.as_slice())
            .is_ok_and(|parsed| key.verify_with_context(&message, &context, &parsed));
        assert_eq!(theirs, passes(test), "{}", test["tcId"]);
    }
}

/// Signatures with the empty context that NIST published; the public key is computed by the second implementation.
#[test]
fn ml_dsa_87_accepts_published_signatures() {
    let tests = dsa("sign");
    assert!(!tests.is_empty());
    for test in &tests {
        let [sk, message, signature] = ["sk", "message", "signature"].map(|field| bytes(test, field));
        assert!(bytes(test, "context").is_empty());
        #[allow(deprecated, reason = "the vectors hold expanded keys")]
        let theirs = ExpandedSigningKey::<MlDsa87>::from_expanded(&Array::try_from(sk.as_slice()).unwrap());
        let public = mldsa::PublicKey::from_bytes(&theirs.verifying_key().encode()).unwrap();
        assert!(public.verify(&message, &signature), "{}", test["tcId"]);
        let mut wrong = signature.clone();
        wrong[100] ^= 1;
        assert!(!public.verify(&message, &wrong), "{}", test["tcId"]);
        let again = theirs.sign_deterministic(&message, &[]).unwrap().encode();
        assert_eq!(again.as_slice(), signature, "{}", test["tcId"]);
        let ours = mldsa::SecretKey::from_bytes(&sk).unwrap().sign(&message);
        assert!(public.verify(&message, &ours), "{}", test["tcId"]);
    }
}
