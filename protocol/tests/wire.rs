//! The wire is frozen: one encoding of every message by its hash. A change here is a change of the protocol's version.

use gym_protocol::cbor::{sha3_256, to_wire};
use gym_protocol::ids::{CidBytes, Hash32, PeerBytes, Round, View};
use gym_protocol::job::spec::{JobFile, Resolved};
use gym_protocol::message::*;
use serde_bytes::ByteBuf;

fn peer(n: u8) -> PeerBytes {
    PeerBytes::new(vec![n; 38]).expect("a peer id")
}

fn cid(n: u8) -> CidBytes {
    CidBytes::new([&[1, 0x70, 0x12, 32][..], &[n; 32]].concat()).expect("a CID")
}

fn hash(n: u8) -> Hash32 {
    Hash32([n; 32])
}

fn job() -> JobBody {
    let text = "name = \"w\"\nmodel = \"m\"\ntrain = \"t\"\nheldout = \"h\"\nrewards = [{ name = \"numeric\" }]\n[schedule]\nrounds = 3\n";
    let file = JobFile::parse(text).expect("a job file");
    let spec = Box::new(file.resolve(Resolved {
        base: cid(1),
        train: cid(2),
        heldout: cid(3),
    }));
    JobBody {
        spec,
        orchestrator: peer(1),
        submitted: 1_700_000_000_000,
        rows: 2_000,
    }
}

fn attest() -> Attest {
    Attest {
        job: cid(9),
        round: Round(4),
        view: View(1),
        manifest: hash(5),
        parent: hash(6),
        state: hash(7),
        checkpoint: cid(8),
    }
}

fn bodies() -> Vec<Body> {
    let (round, view) = (Round(4), View(1));
    vec![
        job().into(),
        Roster {
            job: cid(9),
            round,
            attempt: 1,
            members: vec![RosterMember {
                peer: peer(2),
                record: hash(3),
                ready_at: 77,
            }],
            parent: hash(6),
            checkpoint: cid(8),
        }
        .into(),
        Manifest {
            job: cid(9),
            round,
            view,
            roster: hash(4),
            parent: hash(6),
            entries: vec![Entry {
                member: peer(2),
                cid: cid(4),
                weight: 256,
                server: peer(3),
            }],
            grid: None,
            left_out: vec![LeftOut {
                member: peer(4),
                reason: Reason::NotFinite,
            }],
        }
        .into(),
        attest().into(),
        Close {
            job: cid(9),
            round,
            view,
            manifest: hash(5),
            state: hash(7),
            checkpoint: cid(8),
            attests: vec![ByteBuf::from(vec![1, 2, 3])],
        }
        .into(),
        Report {
            job: cid(9),
            round,
            subject: Subject::Delta {
                member: peer(2),
                cid: cid(4),
            },
            questions: 100,
            correct_before: 30,
            correct_after: 40,
        }
        .into(),
        Ready {
            job: cid(9),
            closed: 4,
            record: hash(3),
            at: 77,
        }
        .into(),
        Commitment {
            job: cid(9),
            round,
            roster: hash(4),
            commitment: hash(2),
        }
        .into(),
        Receipt {
            job: cid(9),
            round,
            roster: hash(4),
            member: peer(2),
            commitment: hash(2),
            cid: cid(4),
        }
        .into(),
        Cutoff {
            job: cid(9),
            round,
            roster: hash(4),
        }
        .into(),
        Reveal {
            job: cid(9),
            round,
            roster: hash(4),
            member: peer(2),
            salt: hash(1),
            cid: cid(4),
        }
        .into(),
        Complaint {
            job: cid(9),
            round,
            view,
            context: hash(5),
            accused: peer(4),
            offence: Offence::BadSeal.number(),
            missing: 12,
        }
        .into(),
        Status {
            job: cid(9),
            closed: 4,
            standing: 1,
            why: "done".into(),
        }
        .into(),
        Links {
            job: cid(9),
            links: vec![Link {
                peer: peer(2),
                delay_us: 50_000,
                bytes_per_ms: 12_500,
            }]
            .try_into()
            .expect("few enough"),
        }
        .into(),
    ]
}

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
    let header = LinkHeader {
        kind: LinkKind::Ring.number(),
        job: cid(9),
        round: 4,
        view: 1,
        manifest: hash(5),
        phase: Phase::AllGather.number(),
        step: 2,
        chunk: 3,
        segment: 0,
        slot: 1,
        sender: peer(2),
        receiver: peer(3),
    };
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
