//! The wire is frozen: one encoding of every message by its hash. A change here is a change of the protocol's version.

mod messages;

use gym_protocol::cbor::{sha3_256, to_wire};
use gym_protocol::ids::{Hash32, PeerBytes};
use gym_protocol::message::*;
use messages::{bodies, header, peer};
use serde_bytes::ByteBuf;
use std::collections::BTreeSet;

/// The first 8 bytes of SHA3-256 of each encoding, by kind.
const FROZEN: &[(Kind, &str)] = &[
    (Kind::Job, "f2035fc56f3b64f0"),
    (Kind::Roster, "97401e74bb1f5aca"),
    (Kind::Manifest, "183fd0f325a1fa3c"),
    (Kind::Attest, "2f7f3995e5648988"),
    (Kind::Close, "ad21531fb5a8e7bb"),
    (Kind::Report, "71b76ac2ab064bcc"),
    (Kind::Ready, "7134530b6a881198"),
    (Kind::Commitment, "4016c12984e5ad5c"),
    (Kind::Receipt, "320806c253879615"),
    (Kind::Cutoff, "9e0de2e3bb7b9be0"),
    (Kind::Reveal, "ae32cbf3c1c1fa0c"),
    (Kind::Complaint, "bd08947999257905"),
    (Kind::Status, "89421817d4db47f0"),
    (Kind::Links, "19ba4edaac96a996"),
    (Kind::Proof, "6fda125257339aa6"),
    (Kind::Holding, "83fde53560e1121d"),
];

fn short(bytes: &[u8]) -> String {
    sha3_256(&[bytes]).to_hex()[..16].to_owned()
}

#[test]
fn every_body_keeps_its_encoding() {
    let found: Vec<(Kind, String)> = bodies()
        .iter()
        .map(|b| (b.kind(), short(&b.encode().expect("it encodes"))))
        .collect();
    let frozen: Vec<(Kind, String)> = FROZEN.iter().map(|(k, h)| (*k, (*h).to_owned())).collect();
    assert_eq!(found, frozen, "the wire has changed");
}

#[test]
fn a_manifest_names_its_grid_only_where_it_has_one() {
    let manifest = |grid| {
        let found = bodies()
            .into_iter()
            .find_map(|b| if let Body::Manifest(m) = b { Some(m) } else { None });
        let m = Manifest {
            grid,
            ..found.expect("there is one")
        };
        Body::Manifest(m).encode().expect("it encodes")
    };
    let grid = gym_protocol::ring::Grid { rows: 3, columns: 4 };
    assert_eq!(short(&manifest(Some(grid))), "0023f74ce3d584b6");
    assert!(!manifest(None).windows(4).any(|w| w == b"grid"));
}

#[test]
fn a_manifest_names_kept_chunks_only_where_it_has_some() {
    let manifest = |kept: Vec<Kept>| {
        let found = bodies()
            .into_iter()
            .find_map(|b| if let Body::Manifest(m) = b { Some(m) } else { None });
        let m = Manifest {
            kept,
            ..found.expect("there is one")
        };
        Body::Manifest(m).encode().expect("it encodes")
    };
    let kept = Kept {
        chunk: 2,
        origin: Hash32([5; 32]),
        mean: Hash32([8; 32]),
        holders: Kept::bits(11, &BTreeSet::from([1, 9])),
    };
    assert_eq!(kept.holders.as_slice(), [2, 2]);
    assert_eq!(kept.holders(11), Some(BTreeSet::from([1, 9])));
    assert_eq!(kept.holders(9), None, "a bit beyond the ring");
    assert_eq!(short(&manifest(vec![kept])), "efd59a6c87551a73");
    assert!(!manifest(Vec::new()).windows(4).any(|w| w == b"kept"));
}

#[test]
fn the_envelope_and_the_link_header_keep_theirs() {
    let envelope = Envelope {
        kind: Kind::Ready.number(),
        sender: peer(1),
        body: ByteBuf::from(vec![1, 2, 3]),
        ed25519: ByteBuf::from(vec![4; 64]),
        mldsa: ByteBuf::new(),
    };
    assert_eq!(
        short(&to_wire(&envelope).expect("it encodes")),
        "767ace8cc9b4fe51"
    );
    let header = header();
    assert_eq!(short(&to_wire(&header).expect("it encodes")), "7bf9331bb98872e5");
}

#[test]
fn numbers_name_one_thing_each() {
    for n in 0..=u8::MAX {
        assert!(Kind::from_number(n).is_none_or(|k| k.number() == n));
        assert!(Offence::from_number(n).is_none_or(|o| o.number() == n));
        assert!(Phase::from_number(n).is_none_or(|p| p.number() == n));
        assert!(LinkKind::from_number(n).is_none_or(|k| k.number() == n));
    }
}

/// Accepts every signature: what is tested is the form.
struct Trusting;

impl Verifier for Trusting {
    fn verify(
        &self,
        _: &PeerBytes,
        _: &'static str,
        _: &[u8],
        _: &[u8],
        _: Option<&[u8]>,
    ) -> Result<(), VerifyError> {
        Ok(())
    }
}

#[test]
fn every_truncation_and_every_flipped_byte_is_refused_or_another_message() {
    for body in bodies() {
        // A close's attests are opened too; this one holds none.
        let body = if let Body::Close(close) = body {
            Body::Close(Close {
                attests: Vec::new(),
                ..close
            })
        } else {
            body
        };
        let encoded = body.encode().expect("it encodes");
        let mldsa = if body.kind().signed_by_both() {
            vec![5; 16]
        } else {
            Vec::new()
        };
        let whole =
            Verified::own(peer(1), body, encoded, vec![4; 64], mldsa, Vec::new()).expect("it encodes");
        let bytes = whole.envelope.clone();
        assert_eq!(Verified::open(&bytes, &Trusting).expect("it opens"), whole);
        for cut in 0..bytes.len() {
            assert!(
                Verified::open(&bytes[..cut], &Trusting).is_err(),
                "{:?} cut at {cut}",
                whole.body.kind()
            );
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(
                Verified::open(&damaged, &Trusting).map_or(true, |m| m != whole),
                "byte {at}"
            );
        }
    }
}
