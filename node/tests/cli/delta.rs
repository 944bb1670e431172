//! `hanzod delta inspect | verify` on files that are whole, damaged and forged.

use crate::support::{failure, genesis, init, json, run};
use gym_protocol::cbor::{BoundedBytes, dag_cid};
use gym_protocol::delta::{
    Attestation, AuthBody, Compression, DeltaSignatures, DeltaSigner, Limits, Metadata, Timestamp, decode,
    encode,
};
use gym_protocol::ids::{Hash32, Round};
use gym_protocol::tensor::{F32Tensor, TensorSet};
use hanzod::home::Home;
use hanzod::identity::NodeIdentity;
use hanzod::runtime::Network;
use std::fs;
use std::path::Path;

struct Signer(NodeIdentity);

impl DeltaSigner for Signer {
    fn sign(&self, domain: &'static str, body: &[u8]) -> DeltaSignatures {
        let both = self.0.keys().sign_both(domain, &self.0.genesis().0, body);
        DeltaSignatures {
            ed25519: BoundedBytes::try_from(both.ed25519.to_vec()).unwrap(),
            mldsa: Some(BoundedBytes::try_from(both.mldsa).unwrap()),
        }
    }
}

/// A delta that the node of `home` signed: two tensors of norms 5 and 12.
fn signed(home: &Path, genesis: &Path) -> Vec<u8> {
    let network = Network::load(genesis).unwrap();
    let identity = NodeIdentity::open(&Home::locate(Some(home)).unwrap(), network.hash).unwrap();
    let tensor = |values: &[f32]| F32Tensor {
        shape: vec![values.len() as u64],
        data: values.to_vec(),
    };
    let tensors = [
        ("a".to_owned(), tensor(&[3.0, -4.0])),
        ("b".to_owned(), tensor(&[12.0])),
    ];
    let auth = AuthBody {
        peer: identity.peer(),
        job: dag_cid(&[0xa0]),
        round: Round(3),
        parent: Hash32([5; 32]),
        sequence: 9,
        timestamp: Timestamp::parse("2024-01-01T00:00:00Z").unwrap(),
        attestation: Attestation::None,
    };
    let metadata = Metadata {
        loss: Some(2.34),
        ..Metadata::default()
    };
    let tensors = TensorSet(tensors.into());
    encode(&tensors, &metadata, &auth, Compression::None, &Signer(identity)).unwrap()
}

#[test]
fn a_delta_is_shown_and_verified() {
    let dir = tempfile::tempdir().unwrap();
    let genesis = genesis(dir.path(), "net");
    let home = init(dir.path(), "worker", &genesis);
    let bytes = signed(&home, &genesis);
    let file = dir.path().join("delta.bin");
    fs::write(&file, &bytes).unwrap();
    let file = file.to_str().unwrap();

    let shown = json(&home, &["delta", "inspect", file]);
    assert_eq!(
        (&shown["norm"], &shown["compression"]),
        (&13.0.into(), &"None".into())
    );
    assert_eq!(
        (&shown["flags"], &shown["bytes"]),
        (&3.into(), &bytes.len().into())
    );
    assert_eq!(
        (&shown["tensors"][0]["norm"], &shown["tensors"][0]["largest"]),
        (&5.0.into(), &4.0.into())
    );
    assert_eq!(
        (&shown["metadata"]["loss"], &shown["auth"]["sequence"]),
        (&2.34.into(), &9.into())
    );
    let plain = String::from_utf8(run(&home, &["delta", "inspect", file]).stdout).unwrap();
    let signer = shown["auth"]["peer"].as_str().unwrap();
    assert!(
        plain.contains(&format!("signer        {signer}")) && plain.contains("NORM"),
        "{plain}"
    );

    assert_eq!(json(&home, &["delta", "verify", file])["signatures"], "ed25519");
    let record = home.join("identity/record.cbor");
    let both = ["delta", "verify", file, "--record", record.to_str().unwrap()];
    assert_eq!(json(&home, &both)["signatures"], "ed25519, mldsa");
}

#[test]
fn a_bad_delta_is_told_by_its_offset() {
    let dir = tempfile::tempdir().unwrap();
    let genesis_file = genesis(dir.path(), "net");
    let home = init(dir.path(), "worker", &genesis_file);
    let bytes = signed(&home, &genesis_file);
    let file = dir.path().join("delta.bin");
    let refusal = |bytes: &[u8], arguments: &[&str]| {
        fs::write(&file, bytes).unwrap();
        failure(
            &home,
            &[&["delta", "verify", file.to_str().unwrap()], arguments].concat(),
            1,
        )
    };
    let flipped = |at: usize| {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        bytes
    };
    assert!(refusal(&flipped(40), &[]).contains("checksum at offset 8"));
    assert!(refusal(&bytes[..50], &[]).contains("truncated at offset"));
    assert!(
        refusal(&[&bytes[..], b"x"].concat(), &[])
            .contains(&format!("1 trailing bytes at offset {}", bytes.len()))
    );
    let auth = decode(&bytes, &Limits::for_f32(100))
        .unwrap()
        .offsets
        .auth
        .unwrap();
    let auth = format!("auth block at offset {auth}");
    let forged = {
        let at = bytes.windows(8).position(|w| w == b"sequence").unwrap() + 8;
        let mut forged = bytes.clone();
        assert_eq!(forged[at], 9);
        forged[at] = 10;
        forged
    };
    let words = refusal(&forged, &[]);
    assert!(words.contains(&auth) && words.contains("Ed25519"), "{words}");

    let other_home = init(dir.path(), "other", &genesis_file);
    let record = other_home.join("identity/record.cbor");
    let words = refusal(&bytes, &["--record", record.to_str().unwrap()]);
    assert!(
        words.contains("the record is of 12D3") && words.contains("the delta is signed by 12D3"),
        "{words}"
    );
    let other_genesis = genesis(dir.path(), "another");
    let words = refusal(&bytes, &["--genesis", other_genesis.to_str().unwrap()]);
    assert!(words.contains("Ed25519"), "{words}");
}
