//! Messages to test with.

use gym_protocol::ids::{CidBytes, Hash32, PeerBytes, Round, View};
use gym_protocol::job::spec::{JobFile, Resolved};
use gym_protocol::message::*;
use serde_bytes::ByteBuf;

pub(crate) fn peer(n: u8) -> PeerBytes {
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

/// One of every kind.
pub(crate) fn bodies() -> Vec<Body> {
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
            kept: Vec::new(),
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
            signers: None,
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
        Proof {
            job: cid(9),
            round,
            manifest: hash(5),
            accused: peer(4),
            hops: vec![1; 173].try_into().expect("few enough"),
        }
        .into(),
        Holding {
            job: cid(9),
            round,
            view,
            manifest: hash(5),
            held: vec![HeldChunk {
                chunk: 2,
                mean: hash(8),
            }]
            .try_into()
            .expect("few enough"),
        }
        .into(),
    ]
}

/// The header of a ring segment.
pub(crate) fn header() -> LinkHeader {
    LinkHeader {
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
    }
}
