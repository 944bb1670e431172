//! Who is called: names that nobody stands behind, words that are said again by others, members that never commit.
#![allow(clippy::unwrap_used, reason = "helpers of a test fail by panicking")]

mod stage;

use gym_protocol::ids::PeerBytes;
use gym_protocol::message::Standing;
use gym_protocol::orchestrator::Event;
use gym_protocol::time::Time;
use stage::{MEMBERS, Stage, peer};

/// A name that comes before every member's.
fn ghost(n: usize) -> PeerBytes {
    PeerBytes::new(vec![0; n]).unwrap()
}

const GHOSTS: std::ops::Range<usize> = 1..37;

fn members() -> Vec<PeerBytes> {
    (0..MEMBERS).map(peer).collect()
}

#[test]
fn who_is_not_connected_is_not_called() {
    let mut stage = Stage::empty();
    let now = stage.now;
    GHOSTS.for_each(|n| stage.ready_as(ghost(n), now));
    stage.wait(3_600_000);
    assert!(stage.roster.is_none());
    assert_eq!(stage.machine.ready(), 0);
    (0..MEMBERS).for_each(|n| stage.join(n));
    assert_eq!(stage.called(), members());
}

#[test]
fn who_left_is_heard_again_only_when_it_is_back() {
    let mut stage = Stage::empty();
    (0..2).for_each(|n| stage.join(n));
    stage.event(Event::PeerLost(peer(0)));
    stage.wait(4_000);
    assert_eq!(stage.machine.ready(), 1);
    stage.ready(0);
    assert_eq!(stage.machine.ready(), 1, "others may say it for it");
    stage.join(0);
    assert_eq!(stage.machine.ready(), 2);
}

/// The orchestrator's own worker has no connection to it.
#[test]
fn its_own_worker_is_called() {
    let mut stage = Stage::empty();
    stage.ready(99);
    assert_eq!(stage.machine.ready(), 1);
}

/// Recruiting may end just when members say again that they are ready: such words cross the roster.
#[test]
fn a_word_that_crosses_the_roster_leaves_nobody_out() {
    let mut stage = Stage::new();
    for _ in 0..3 {
        (0..MEMBERS).for_each(|n| stage.ready(n));
        stage.wait(1_500);
    }
    (0..MEMBERS - 1).for_each(|n| stage.commit(n));
    (0..MEMBERS - 1).for_each(|n| stage.receipt(n));
    assert_eq!(stage.cutoffs, 0, "the last one trains");
    stage.commit(MEMBERS - 1);
    stage.receipt(MEMBERS - 1);
    assert_eq!(stage.cutoffs, 1);
}

/// What a member said before is said again by anybody: it goes on training. A later word is its own: it has restarted.
#[test]
fn a_word_that_is_said_again_does_not_take_a_member_out_of_its_round() {
    let mut stage = Stage::new();
    let (before, now) = (Time(stage.now.0 - 1), stage.now);
    stage.wait(500);
    (0..5).for_each(|n| stage.commit(n));
    (0..5).for_each(|n| stage.receipt(n));
    for at in [now, before] {
        stage.ready_as(peer(5), at);
        assert_eq!(stage.cutoffs, 0, "the sixth trains");
    }
    let mut restarted = Stage::new();
    restarted.wait(500);
    (0..5).for_each(|n| restarted.commit(n));
    (0..5).for_each(|n| restarted.receipt(n));
    restarted.event(Event::PeerLost(peer(5)));
    restarted.event(Event::PeerSeen(peer(5)));
    assert_eq!(restarted.cutoffs, 0, "connections come and go");
    restarted.ready(5);
    assert_eq!(restarted.cutoffs, 1);

    stage.ready(5);
    assert_eq!(stage.cutoffs, 0, "it may have crossed the roster");
    stage.wait(5_000);
    stage.ready(5);
    assert_eq!(stage.cutoffs, 1);
}

/// Whoever was called and did not commit comes after those who were not.
#[test]
fn connected_ghosts_do_not_fail_the_job() {
    let mut stage = Stage::empty();
    for n in 1..=18 {
        let now = stage.now;
        stage.event(Event::PeerSeen(ghost(n)));
        stage.ready_as(ghost(n), now);
    }
    (0..MEMBERS).for_each(|n| stage.join(n));
    for attempt in 0..3 {
        assert_eq!(stage.called().len(), 6);
        assert!(!stage.called().contains(&peer(0)), "attempt {attempt}");
        stage.wait(600_000);
    }
    assert_eq!(stage.called(), members());
    assert_ne!(stage.standing, Some(Standing::Failed));
}

/// Where nobody else is there, they are called all the same: the first rounds of a job may be too slow for all.
#[test]
fn who_did_not_commit_is_called_again() {
    let mut stage = Stage::new();
    for _ in 0..4 {
        assert_eq!(stage.called(), members());
        stage.wait(600_000);
    }
    // One that never commits beside others that do is called more rarely.
    let mut called = 0;
    let mut stage = Stage::new();
    for _ in 0..4 {
        let now = stage.called();
        called += u32::from(now.contains(&peer(5)));
        let missing = [peer(5)];
        assert!(now == members() || now.iter().all(|p| !missing.contains(p)));
        (0..5).for_each(|n| stage.commit(n));
        stage.wait(600_000);
    }
    assert!((2..4).contains(&called), "{called} of 4 rosters");
}
