//! What strangers and members send a member out of turn: it changes neither the outcome nor, beyond a bound, the memory.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, reason = "helpers of a test fail by panicking")]

use gym_protocol::buffers::Buffers;
use gym_protocol::cbor;
use gym_protocol::ids::{CidBytes, Hash32, PeerBytes, Round, View};
use gym_protocol::job::spec::{JobFile, Resolved};
use gym_protocol::member::{Action, Config, Event, Held, Member, Sums};
use gym_protocol::message::{
    Body, Commitment, Cutoff, Entry, LinkHeader, Manifest, Phase, Roster, RosterMember, Verified,
};
use gym_protocol::sim::StandInKeys;
use gym_protocol::time::Time;
use peak_alloc::PeakAlloc;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;
/// Memory is counted of one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

const JOB: &str = r#"
name = "w"
model = "m"
train = "t"
heldout = "h"
wire = "f32"
rewards = [{ name = "numeric" }]
[schedule]
rounds = 3
min_workers = 2
max_workers = 6
redundancy = 1
"#;
const ELEMENTS: usize = 3_000;
const SEGMENT: usize = 300;
const ORCHESTRATOR: u8 = 99;
/// Members are peers 0 to 2, at the slots of their numbers.
const MEMBERS: u8 = 3;
/// Before member 0 in the ring, and after it.
const BEFORE: u8 = 2;
const AFTER: u8 = 1;

fn peer(n: u8) -> PeerBytes {
    PeerBytes::new(vec![n; 38]).unwrap()
}

fn stranger(n: u32) -> PeerBytes {
    PeerBytes::new([&n.to_le_bytes()[..], &[200; 34]].concat()).unwrap()
}

fn cid(n: u8) -> CidBytes {
    CidBytes::new([&[1, 0x70, 0x12, 32][..], &[n; 32]].concat()).unwrap()
}

fn message(sender: PeerBytes, body: Body) -> Event {
    let encoded = body.encode().unwrap();
    let m = Verified::own(sender, body, encoded, Vec::new(), Vec::new(), Vec::new());
    Event::Message(Box::new(m.unwrap()))
}

fn hash_of<T: serde::Serialize>(object: &T) -> Hash32 {
    cbor::object_hash(&cbor::to_dag(object).unwrap())
}

fn commitment(round: u64, roster: Hash32, n: u8) -> Body {
    let commitment = gym_protocol::member::commitment(Hash32([7; 32]), &peer(n), Hash32([n; 32]), &cid(n));
    Body::Commitment(Commitment {
        job: cid(9),
        round: Round(round),
        roster,
        commitment,
    })
}

/// Three members, what is on its way to them, and what they have asked for.
struct Stage {
    members: Vec<Member>,
    travelling: VecDeque<(u8, Event)>,
    means: Vec<Option<Vec<f32>>>,
    replicas: Vec<(u8, PeerBytes)>,
    accused: Vec<String>,
}

impl Stage {
    fn new() -> Self {
        let member = |n: u8| {
            let spec = JobFile::parse(JOB).unwrap().resolve(Resolved {
                base: cid(1),
                train: cid(2),
                heldout: cid(3),
            });
            Member::new(Config {
                me: peer(n),
                record: Hash32([n; 32]),
                genesis: Hash32([7; 32]),
                job: cid(9),
                orchestrator: peer(ORCHESTRATOR),
                spec,
                segment: SEGMENT,
                buffers: Buffers::default(),
                keys: Arc::new(StandInKeys(peer(n))),
                sums: Sums::True,
            })
        };
        let mut stage = Self {
            members: (0..MEMBERS).map(member).collect(),
            travelling: VecDeque::new(),
            means: vec![None; MEMBERS.into()],
            replicas: Vec::new(),
            accused: Vec::new(),
        };
        let held = Held {
            closed: 0,
            state: Hash32([1; 32]),
            checkpoint: cid(4),
        };
        (0..MEMBERS).for_each(|n| stage.give(n, Event::Synced(held.clone())));
        stage
    }

    fn give(&mut self, to: u8, event: Event) {
        let mut out = Vec::new();
        self.members[usize::from(to)].handle(Time(1_000), event, &mut out);
        for action in out {
            self.act(to, action);
        }
    }

    fn act(&mut self, n: u8, action: Action) {
        match action {
            Action::Publish(Body::Complaint(c)) => self.accused.push(format!("{n} complains: {c:?}")),
            Action::Penalise { detail, .. } => self.accused.push(format!("{n} penalises: {detail}")),
            Action::Publish(body) => {
                for to in 0..MEMBERS {
                    self.travelling.push_back((to, message(peer(n), body.clone())));
                }
            }
            Action::Train { roster, .. } => {
                let delta = (0..ELEMENTS).map(|i| (i % 7) as f32 + f32::from(n)).collect();
                let trained = Event::Trained {
                    roster,
                    delta,
                    samples: 1,
                };
                self.travelling.push_back((n, trained));
            }
            Action::BuildCommit { roster, .. } => {
                let (cid, salt) = (cid(n), Hash32([n; 32]));
                let built = Event::CommitBuilt { roster, cid, salt };
                self.travelling.push_back((n, built));
            }
            Action::SendReplica { to, .. } => self.replicas.push((n, to)),
            Action::SendSegment { to, header, payload } => {
                let from = peer(n);
                let segment = Event::Segment {
                    from,
                    header,
                    payload,
                };
                self.travelling.push_back((to.as_bytes()[0], segment));
            }
            Action::Apply { mean, .. } => self.means[usize::from(n)] = Some(mean.to_vec()),
            Action::Fetch(_)
            | Action::AbandonTraining
            | Action::KeepHops { .. }
            | Action::Judge(_)
            | Action::Promote(_)
            | Action::Notice(_)
            | Action::Finished(_) => {}
        }
    }

    fn run(&mut self) {
        while let Some((to, event)) = self.travelling.pop_front() {
            self.give(to, event);
        }
    }

    fn tell(&mut self, to: u8, body: impl Into<Body>) {
        self.give(to, message(peer(ORCHESTRATOR), body.into()));
    }

    /// All have trained and committed.
    fn committed() -> (Self, Hash32) {
        let mut stage = Self::new();
        let roster = roster(0);
        for n in 0..MEMBERS {
            stage.tell(n, roster.clone());
        }
        stage.run();
        (stage, hash_of(&roster))
    }

    /// Bytes that `work` leaves behind.
    fn kept(&mut self, work: impl FnOnce(&mut Self)) -> usize {
        let before = ALLOCATOR.current_usage();
        work(self);
        ALLOCATOR.current_usage().saturating_sub(before)
    }
}

fn roster(attempt: u32) -> Roster {
    let member = |n: u8| RosterMember {
        peer: peer(n),
        record: Hash32([n; 32]),
        ready_at: 1_000,
    };
    Roster {
        job: cid(9),
        round: Round(0),
        attempt,
        members: (0..MEMBERS).map(member).collect(),
        parent: Hash32([1; 32]),
        checkpoint: cid(4),
    }
}

fn manifest(roster: Hash32) -> Manifest {
    let entry = |n: u8| Entry {
        member: peer(n),
        cid: cid(n),
        weight: 1,
        server: peer(n),
    };
    Manifest {
        job: cid(9),
        round: Round(0),
        view: View(0),
        roster,
        parent: Hash32([1; 32]),
        entries: (0..MEMBERS).map(entry).collect(),
        grid: None,
        kept: Vec::new(),
        left_out: Vec::new(),
    }
}

fn junk(from: PeerBytes, manifest: Hash32, numbers: [u32; 4], round: u64) -> Event {
    let [view, step, chunk, slot] = numbers;
    let header = LinkHeader {
        kind: 0,
        job: cid(9),
        round,
        view,
        manifest,
        phase: Phase::ScatterReduce.number(),
        step,
        chunk,
        segment: 0,
        slot,
        sender: from.clone(),
        receiver: peer(0),
    };
    Event::Segment {
        from,
        header,
        payload: vec![1; 4 * SEGMENT],
    }
}

/// Segments of strangers, and of the member after member 0, which has nothing to send it, under the ring's manifest as under
/// others.
fn flood(stage: &mut Stage, manifest: Hash32) {
    for i in 0..1_000 {
        for (hash, view, round) in [
            (manifest, 0, 0),
            (Hash32([8; 32]), 0, 0),
            (Hash32([8; 32]), 1, 0),
            (manifest, 0, 1),
            (Hash32([8; 32]), 0, u64::MAX),
        ] {
            stage.give(0, junk(stranger(i), hash, [view, 0, 2, 2], round));
            if hash != manifest {
                stage.give(0, junk(peer(AFTER), hash, [view, 0, 2, 2], round));
            }
        }
    }
}

#[test]
fn segments_out_of_turn_change_neither_the_outcome_nor_the_memory() {
    let _alone = ALONE.lock();
    let (mut stage, roster) = Stage::committed();
    let manifest = manifest(roster);
    let hash = hash_of(&manifest);
    // The members before and after have the manifest first.
    let first = stage.kept(|stage| flood(stage, hash));
    for n in [BEFORE, AFTER] {
        stage.tell(n, manifest.clone());
    }
    stage.run();
    let second = stage.kept(|stage| flood(stage, hash));
    let vector = 4 * ELEMENTS;
    assert!(first + second < 10 * vector, "{first} and {second} bytes");
    stage.tell(0, manifest);
    stage.give(0, junk(stranger(1), hash, [0, 0, 2, 2], 0));
    stage.run();
    let mean: Vec<f32> = (0..ELEMENTS).map(|i| (i % 7) as f32 + 1.0).collect();
    assert!(
        stage.means.iter().all(|m| m.as_ref() == Some(&mean)),
        "{:?}",
        stage.accused
    );
    assert_eq!(stage.accused, [""; 0], "nobody is accused");
}

#[test]
fn who_is_a_round_ahead_is_not_accused() {
    let _alone = ALONE.lock();
    let (mut stage, roster) = Stage::committed();
    let manifest = manifest(roster);
    for n in 0..MEMBERS {
        stage.tell(n, manifest.clone());
    }
    stage.give(0, junk(peer(BEFORE), Hash32([8; 32]), [0, 0, 2, 2], 1));
    assert_eq!(stage.accused, [""; 0]);
    stage.give(0, junk(peer(BEFORE), hash_of(&manifest), [0, 0, 2, 2], 1));
    assert_eq!(
        stage.accused.len(),
        2,
        "of the ring that runs, it is: {:?}",
        stage.accused
    );
}

#[test]
fn extreme_numbers_are_refused() {
    let _alone = ALONE.lock();
    let (mut stage, roster) = Stage::committed();
    let manifest = manifest(roster);
    let hash = hash_of(&manifest);
    (0..MEMBERS).for_each(|n| stage.tell(n, manifest.clone()));
    let extremes = [0, 1, 2, 3, u32::MAX - 1, u32::MAX];
    for (slot, step) in extremes.iter().flat_map(|a| extremes.map(|b| (*a, b))) {
        for (chunk, view) in extremes.iter().flat_map(|a| [0, u32::MAX].map(|b| (*a, b))) {
            for from in [BEFORE, AFTER, 0] {
                stage.give(0, junk(peer(from), hash, [view, step, chunk, slot], 0));
            }
        }
    }
    assert!(stage.means[0].is_none());
}

/// Messages that name rosters which nobody has seen, in the name of as many signers.
fn junk_messages(stage: &mut Stage) {
    for i in 0..2_000 {
        for round in [0, 1, 2, u64::MAX] {
            let body = commitment(round, Hash32([8; 32]), 0);
            stage.give(0, message(stranger(i), body));
        }
    }
}

#[test]
fn messages_that_overtake_their_roster_are_not_crowded_out() {
    let _alone = ALONE.lock();
    let mut stage = Stage::new();
    let (first, second) = (roster(0), roster(1));
    let hash = hash_of(&second);
    stage.tell(0, first);
    stage.travelling.clear();
    let kept = stage.kept(|stage| {
        junk_messages(stage);
        // A member may say as much as it likes, too.
        for i in 0..2_000u32 {
            let mut named = [6; 32];
            named[..4].copy_from_slice(&i.to_le_bytes());
            stage.give(0, message(peer(BEFORE), commitment(0, Hash32(named), BEFORE)));
        }
    });
    assert!(kept < 1 << 20, "{kept} bytes");
    let (job, round) = (cid(9), Round(0));
    stage.give(0, message(peer(AFTER), commitment(0, hash, AFTER)));
    stage.tell(
        0,
        Cutoff {
            job,
            round,
            roster: hash,
        },
    );
    stage.tell(0, second);
    stage.run();
    assert_eq!(stage.replicas, [(0, peer(AFTER))], "its commitment was kept");
    let reveals = stage.members[0].deadline();
    assert_eq!(reveals, None, "the cutoff was kept: no receipt is waited for");
}

/// A roster that comes after a later one names nobody whose messages are waited for.
#[test]
fn a_late_roster_gives_members_places_to_nobody() {
    let _alone = ALONE.lock();
    for late in [0, 1] {
        let mut stage = Stage::new();
        stage.tell(0, roster(1));
        stage.travelling.clear();
        let mut of_others = roster(late);
        if late == 0 {
            of_others.members.truncate(1);
        }
        stage.tell(0, of_others);
        junk_messages(&mut stage);
        let next = roster(2);
        let hash = hash_of(&next);
        stage.give(0, message(peer(AFTER), commitment(0, hash, AFTER)));
        stage.tell(0, next);
        stage.run();
        assert_eq!(stage.replicas, [(0, peer(AFTER))], "its commitment was kept");
    }
}
