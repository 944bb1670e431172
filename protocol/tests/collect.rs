//! The orchestrator's machine alone, from the commits to the first manifest: what it waits for when commits with their receipts
//! are out of reach, and for whose receipts.
#![allow(clippy::unwrap_used, reason = "helpers of a test fail by panicking")]

use gym_protocol::cbor;
use gym_protocol::ids::{CidBytes, Hash32, PeerBytes};
use gym_protocol::job::spec::{JobFile, Resolved};
use gym_protocol::member::{DeltaFacts, Held, commitment};
use gym_protocol::message::{Body, Commitment, Manifest, Ready, Receipt, Reveal, Roster, Standing, Verified};
use gym_protocol::orchestrator::{Action, Config, Doing, Event, Orchestrator};
use gym_protocol::time::Time;

const JOB: &str = r#"
name = "w"
model = "m"
train = "t"
heldout = "h"
rewards = [{ name = "numeric" }]
[schedule]
rounds = 3
min_workers = 2
max_workers = 6
redundancy = 1
[schedule.deadlines]
train_ms = 600000
commit_ms = 20000
ring_floor_ms = 1000
attest_ms = 60000
"#;
const MEMBERS: u8 = 6;

fn peer(n: u8) -> PeerBytes {
    PeerBytes::new(vec![n; 38]).unwrap()
}

fn cid(n: u8) -> CidBytes {
    CidBytes::new([&[1, 0x70, 0x12, 32][..], &[n; 32]].concat()).unwrap()
}

struct Stage {
    machine: Orchestrator,
    now: Time,
    roster: Option<Roster>,
    manifests: Vec<Manifest>,
    cutoffs: usize,
    /// Deltas that are to be fetched.
    wanted: Vec<u8>,
}

impl Stage {
    /// All members are ready, and called.
    fn new() -> Self {
        let spec = JobFile::parse(JOB).unwrap().resolve(Resolved {
            base: cid(1),
            train: cid(2),
            heldout: cid(3),
        });
        let mut out = Vec::new();
        let machine = Orchestrator::new(
            Config {
                me: peer(99),
                genesis: Hash32([7; 32]),
                job: cid(9),
                spec,
                rows: 100,
                flat_ring_max: 28,
            },
            &mut out,
        );
        let mut stage = Self {
            machine,
            now: Time(1_000),
            roster: None,
            manifests: Vec::new(),
            cutoffs: 0,
            wanted: Vec::new(),
        };
        stage.event(Event::Prepared(Held {
            closed: 0,
            state: Hash32([1; 32]),
            checkpoint: cid(4),
        }));
        for n in 0..MEMBERS {
            stage.ready(n);
        }
        stage
    }

    fn event(&mut self, event: Event) {
        let mut out = Vec::new();
        self.machine.handle(self.now, event, &mut out);
        for action in out {
            match action {
                Action::Publish(Body::Roster(roster)) => self.roster = Some(roster),
                Action::Publish(Body::Manifest(m)) => self.manifests.push(m),
                Action::Publish(Body::Cutoff(_)) => self.cutoffs += 1,
                Action::CheckDelta { member, .. } => self.wanted.push(member.as_bytes()[0]),
                Action::Publish(_)
                | Action::Prepare
                | Action::Audit { .. }
                | Action::Probe { .. }
                | Action::Close { .. }
                | Action::Penalise { .. }
                | Action::Notice(_) => {}
                Action::Finished(standing) => assert_eq!(standing, Standing::Done),
            }
        }
    }

    fn say(&mut self, sender: u8, body: Body) {
        let encoded = body.encode().unwrap();
        let m = Verified::own(peer(sender), body, encoded, Vec::new(), Vec::new(), Vec::new());
        self.event(Event::Message(Box::new(m.unwrap())));
    }

    fn ready(&mut self, n: u8) {
        let ready = Ready {
            job: cid(9),
            closed: 0,
            record: Hash32([n; 32]),
            at: self.now.0,
        };
        self.say(n, ready.into());
    }

    fn roster(&self) -> (Roster, Hash32) {
        let roster = self.roster.clone().unwrap();
        let hash = cbor::object_hash(&cbor::to_dag(&roster).unwrap());
        (roster, hash)
    }

    fn commit(&mut self, n: u8) {
        let (roster, hash) = self.roster();
        let commitment = commitment(Hash32([7; 32]), &peer(n), Hash32([n; 32]), &cid(n));
        let (job, round) = (cid(9), roster.round);
        self.say(
            n,
            Commitment {
                job,
                round,
                roster: hash,
                commitment,
            }
            .into(),
        );
    }

    /// By the next member.
    fn receipt(&mut self, n: u8) {
        let (roster, hash) = self.roster();
        let commitment = commitment(Hash32([7; 32]), &peer(n), Hash32([n; 32]), &cid(n));
        let (job, round) = (cid(9), roster.round);
        self.say(
            (n + 1) % MEMBERS,
            Receipt {
                job,
                round,
                roster: hash,
                member: peer(n),
                commitment,
                cid: cid(n),
            }
            .into(),
        );
    }

    fn reveal(&mut self, n: u8) {
        let (roster, hash) = self.roster();
        let (job, round) = (cid(9), roster.round);
        self.say(
            n,
            Reveal {
                job,
                round,
                roster: hash,
                member: peer(n),
                salt: Hash32([n; 32]),
                cid: cid(n),
            }
            .into(),
        );
        for n in std::mem::take(&mut self.wanted) {
            let facts = DeltaFacts {
                member: peer(n),
                round,
                parent: roster.parent,
                samples: 8,
                delta: vec![1.0],
            };
            self.event(Event::DeltaChecked {
                roster: hash,
                member: peer(n),
                cid: cid(n),
                outcome: Ok(facts),
            });
        }
    }

    /// Time passes, and the machine is told of each of its deadlines.
    fn wait(&mut self, ms: u64) {
        let end = self.now.plus(ms);
        while let Some((at, _)) = self.machine.deadline().filter(|(at, _)| *at <= end) {
            assert!(at > self.now, "a deadline that has passed is not met");
            self.now = at;
            self.event(Event::Tick);
        }
        self.now = end;
    }

    fn members(&self) -> Vec<u8> {
        let entries = self.manifests.last().unwrap().entries.iter();
        let mut members: Vec<u8> = entries.map(|e| e.member.as_bytes()[0]).collect();
        members.sort_unstable();
        members
    }
}

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
