mod bounds;
mod damage;
mod roundtrip;
mod streams;
mod trust;
mod vectors;

use super::*;
use crate::cbor::sha3_256;
use crate::ids::{CidBytes, Hash32, PeerBytes, Round};
use crate::message::{Verifier, VerifyError};
use crate::tensor::{F32Tensor, TensorSet};
use std::collections::BTreeMap;

/// Stands in for a pair of keys: a hash of what is signed.
struct HashSigner;

impl DeltaSigner for HashSigner {
    fn sign(&self, domain: &'static str, body: &[u8]) -> DeltaSignatures {
        let tag = |key: &[u8]| sha3_256(&[key, domain.as_bytes(), body]).0;
        DeltaSignatures {
            ed25519: [tag(b"e1"), tag(b"e2")].concat().try_into().unwrap(),
            mldsa: Some(tag(b"m").to_vec().try_into().unwrap()),
        }
    }
}

impl Verifier for HashSigner {
    fn verify(
        &self,
        sender: &PeerBytes,
        domain: &'static str,
        body: &[u8],
        ed25519: &[u8],
        mldsa: Option<&[u8]>,
    ) -> Result<(), VerifyError> {
        let good = self.sign(domain, body);
        if *sender != peer() {
            return Err(VerifyError::UnknownSender);
        }
        if *good.ed25519 != *ed25519 {
            return Err(VerifyError::BadSignature("ed25519"));
        }
        if mldsa != good.mldsa.as_deref() {
            return Err(VerifyError::BadSignature("mldsa"));
        }
        Ok(())
    }
}

fn peer() -> PeerBytes {
    PeerBytes::new(vec![7; 38]).unwrap()
}

fn job() -> CidBytes {
    crate::cbor::dag_cid(&[0xa0])
}

fn auth_body() -> AuthBody {
    AuthBody {
        peer: peer(),
        job: job(),
        round: Round(3),
        parent: Hash32([5; 32]),
        sequence: 9,
        timestamp: Timestamp::parse("2024-01-01T00:00:00Z").unwrap(),
        attestation: Attestation::None,
    }
}

fn metadata() -> Metadata {
    Metadata {
        timestamp: Some(Timestamp::parse("2024-01-01T00:00:00Z").unwrap()),
        epoch: Some(1),
        loss: Some(2.34),
        worker_id: Some("worker-a".into()),
        ..Metadata::default()
    }
}

fn f32_tensor(shape: &[u64], start: f32) -> F32Tensor {
    let n = format::elements(shape).unwrap();
    F32Tensor {
        shape: shape.to_vec(),
        data: (0..n).map(|i| start + 0.25 * i as f32).collect(),
    }
}

fn set() -> TensorSet {
    TensorSet(BTreeMap::from([
        ("lora.q_proj.weight".to_owned(), f32_tensor(&[2, 3], -0.5)),
        ("lora.k_proj.weight".to_owned(), f32_tensor(&[4], 1.0)),
    ]))
}

fn limits() -> Limits {
    Limits::for_f32(1 << 20)
}

fn signed(compression: Compression) -> Vec<u8> {
    encode(&set(), &metadata(), &auth_body(), compression, &HashSigner).unwrap()
}

fn refusal(bytes: &[u8]) -> String {
    decode(bytes, &limits()).unwrap_err().to_string()
}
