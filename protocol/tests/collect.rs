//! The orchestrator's machine alone, from the commits to the first manifest: what it waits for when commits with their receipts
//! are out of reach, and for whose receipts.
#![allow(clippy::unwrap_used, reason = "helpers of a test fail by panicking")]

mod stage;

use gym_protocol::ids::Hash32;
use gym_protocol::message::{Complaint, Offence, Reveal};
use gym_protocol::orchestrator::{Doing, Event};
use stage::{MEMBERS, Stage, cid, peer};

/// All have committed with their receipts; the cutoff is out.
fn cut_off() -> Stage {
    let mut stage = Stage::new();
    (0..MEMBERS).for_each(|n| stage.commit(n));
    (0..MEMBERS).for_each(|n| stage.receipt(n));
    assert_eq!((stage.cutoffs, stage.machine.doing()), (1, Doing::Collecting));
    stage
}

#[test]
fn all_that_is_revealed_is_in_the_first_manifest() {
    let mut stage = cut_off();
    (0..MEMBERS).for_each(|n| stage.reveal(n));
    assert_eq!(stage.members(), [0, 1, 2, 3, 4, 5]);
}

/// Four of six are no quorum of six; five are.
#[test]
fn a_commit_out_of_reach_is_given_up_only_with_a_quorum_of_all_that_count() {
    let mut stage = cut_off();
    (0..5).for_each(|n| stage.reveal(n));
    assert!(stage.manifests.is_empty(), "the last may come");
    stage.wait(21_000);
    assert_eq!(stage.members(), [0, 1, 2, 3, 4]);

    let mut stage = cut_off();
    (0..4).for_each(|n| stage.reveal(n));
    stage.wait(60_000);
    assert!(stage.manifests.is_empty());
    assert_eq!(stage.machine.doing(), Doing::Collecting);
}

#[test]
fn when_the_network_heals_everybodys_commit_is_in() {
    let mut stage = cut_off();
    for n in [4, 5] {
        stage.event(Event::PeerLost(peer(n)));
    }
    (0..4).for_each(|n| stage.reveal(n));
    stage.wait(40_000);
    assert!(stage.manifests.is_empty(), "four of six");
    for n in [4, 5] {
        stage.event(Event::PeerSeen(peer(n)));
    }
    stage.reveal(4);
    assert!(stage.manifests.is_empty(), "others may be on their way");
    stage.reveal(5);
    assert_eq!(stage.members(), [0, 1, 2, 3, 4, 5]);
    let served = |e: &gym_protocol::message::Entry| e.server == e.member;
    assert!(stage.manifests[0].entries.iter().all(served));
}

#[test]
fn who_heals_alone_is_waited_for_no_longer_than_a_deadline() {
    let mut stage = cut_off();
    (0..4).for_each(|n| stage.reveal(n));
    stage.wait(40_000);
    stage.reveal(4);
    stage.wait(1_000);
    assert_eq!(stage.members(), [0, 1, 2, 3, 4]);
}

#[test]
fn a_round_that_no_quorum_comes_back_to_is_void() {
    let mut stage = cut_off();
    let first = stage.roster().1;
    (0..3).for_each(|n| stage.reveal(n));
    stage.wait(20_000 + 60_000 + 1_000);
    assert!(stage.manifests.is_empty());
    assert_eq!(stage.roster().0.attempt, 1, "tried again");
    assert_ne!(stage.roster().1, first);
}

#[test]
fn a_commit_that_is_wrong_counts_for_nothing() {
    let mut stage = cut_off();
    (0..4).for_each(|n| stage.reveal(n));
    let (roster, hash) = stage.roster();
    for n in [4, 5] {
        let (job, round, salt) = (cid(9), roster.round, Hash32([n; 32]));
        let reveal = Reveal {
            job,
            round,
            roster: hash,
            member: peer(n),
            salt,
            cid: cid(n),
        };
        stage.say(n, reveal.into());
        stage.event(Event::DeltaChecked {
            roster: hash,
            member: peer(n),
            cid: cid(n),
            outcome: Err(gym_protocol::message::Reason::NotFinite),
        });
    }
    assert_eq!(stage.members(), [0, 1, 2, 3], "of four that count");
}

/// One never commits. The others' replicas take longer than it is waited for: they are not cut off for that.
#[test]
fn whoever_has_committed_has_its_time_for_the_receipts() {
    let mut stage = Stage::new();
    stage.wait(1_000);
    (0..5).for_each(|n| stage.commit(n));
    stage.wait(15_000);
    assert_eq!(stage.cutoffs, 0, "the receipts are on their way");
    (0..5).for_each(|n| stage.receipt(n));
    assert_eq!(stage.cutoffs, 1, "the straggler's time was over");
    (0..5).for_each(|n| stage.reveal(n));
    assert_eq!(stage.members(), [0, 1, 2, 3, 4]);

    let mut stage = Stage::new();
    stage.wait(1_000);
    (0..5).for_each(|n| stage.commit(n));
    (0..4).for_each(|n| stage.receipt(n));
    stage.wait(19_000);
    assert_eq!(stage.cutoffs, 0);
    stage.wait(1_000);
    assert_eq!(stage.cutoffs, 1, "nobody is waited for without end");
}

impl Stage {
    /// A complaint about a delta, before there is a manifest.
    fn refuse(&mut self, accuser: u8, accused: u8, context: Hash32) {
        let (roster, _) = self.roster();
        let complaint = Complaint {
            job: cid(9),
            round: roster.round,
            view: gym_protocol::ids::View(0),
            context,
            accused: peer(accused),
            offence: Offence::DeltaNotFinite.number(),
            missing: 0,
        };
        self.say(accuser, complaint.into());
    }
}

/// Complaints of another roster, said again by anybody, do not end the wait for a member's receipts; those of this one do.
#[test]
fn a_complaint_is_heard_under_its_roster_alone() {
    let mut stage = Stage::new();
    (0..MEMBERS).for_each(|n| stage.commit(n));
    (0..5).for_each(|n| stage.receipt(n));
    let (_, hash) = stage.roster();
    for context in [Hash32::ZERO, Hash32([3; 32])] {
        (0..2).for_each(|accuser| stage.refuse(accuser, 5, context));
        assert_eq!(stage.cutoffs, 0, "the last receipts are waited for");
    }
    (0..2).for_each(|accuser| stage.refuse(accuser, 5, hash));
    assert_eq!(stage.cutoffs, 1, "nobody holds it");
}

/// A holder's receipt for another delta than was committed counts for nothing once that is seen, and is its own fault: the true
/// holder's may still come.
#[test]
fn receipts_count_for_what_is_revealed() {
    let forged = || {
        let mut stage = Stage::new();
        (0..MEMBERS).for_each(|n| stage.commit(n));
        // The first word of a holder stands, and no number of words is more than one.
        stage.receipt_by(1, 0, cid(77));
        stage.receipt_by(1, 0, cid(78));
        stage.receipt_by(1, 0, cid(0));
        (1..MEMBERS).for_each(|n| stage.receipt(n));
        assert_eq!(stage.cutoffs, 1, "nobody can tell yet");
        (0..MEMBERS).for_each(|n| stage.reveal(n));
        assert_eq!(stage.offences, [(peer(1), Offence::BadMessage)]);
        assert!(stage.manifests.is_empty(), "true receipts may come");
        stage
    };
    let mut stage = forged();
    stage.receipt_by(2, 0, cid(0));
    assert_eq!(stage.members(), [0, 1, 2, 3, 4, 5]);
    let mut stage = forged();
    stage.wait(21_000);
    assert_eq!(stage.members(), [1, 2, 3, 4, 5], "it has no receipts");
}
