//! An orchestrator's machine alone on a stage: members are what a test says in their name.
#![allow(dead_code, reason = "each test uses a part of it")]

use gym_protocol::cbor;
use gym_protocol::ids::{CidBytes, Hash32, PeerBytes};
use gym_protocol::job::spec::{JobFile, Resolved};
use gym_protocol::member::{DeltaFacts, Held, commitment};
use gym_protocol::message::{
    Body, Close, Commitment, Manifest, Offence, Ready, Receipt, Reveal, Roster, Standing, Verified,
};
use gym_protocol::orchestrator::{Action, Config, Event, Orchestrator};
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
pub(crate) const MEMBERS: u8 = 6;

pub(crate) fn peer(n: u8) -> PeerBytes {
    PeerBytes::new(vec![n; 38]).unwrap()
}

pub(crate) fn cid(n: u8) -> CidBytes {
    CidBytes::new([&[1, 0x70, 0x12, 32][..], &[n; 32]].concat()).unwrap()
}

pub(crate) struct Stage {
    pub(crate) machine: Orchestrator,
    pub(crate) now: Time,
    pub(crate) roster: Option<Roster>,
    pub(crate) manifests: Vec<Manifest>,
    /// Manifests whose sums are to be replayed.
    pub(crate) audits: Vec<Hash32>,
    /// What was closed, and the attests that it carries.
    pub(crate) closes: Vec<(Close, Vec<Verified>)>,
    pub(crate) cutoffs: usize,
    pub(crate) standing: Option<Standing>,
    /// Who was said to have done what.
    pub(crate) offences: Vec<(PeerBytes, Offence)>,
    /// Deltas that are to be fetched.
    pub(crate) wanted: Vec<u8>,
}

impl Stage {
    /// All members are connected and ready, and called.
    pub(crate) fn new() -> Self {
        let mut stage = Self::empty();
        (0..MEMBERS).for_each(|n| stage.join(n));
        stage
    }

    /// Nobody is there.
    pub(crate) fn empty() -> Self {
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
                segment: 100,
                flat_ring_max: 28,
            },
            &mut out,
        );
        let mut stage = Self {
            machine,
            now: Time(1_000),
            roster: None,
            manifests: Vec::new(),
            audits: Vec::new(),
            closes: Vec::new(),
            cutoffs: 0,
            wanted: Vec::new(),
            standing: None,
            offences: Vec::new(),
        };
        stage.event(Event::Prepared(Held {
            closed: 0,
            state: Hash32([1; 32]),
            checkpoint: cid(4),
        }));
        stage
    }

    /// Connects, and is ready.
    pub(crate) fn join(&mut self, n: u8) {
        self.event(Event::PeerSeen(peer(n)));
        self.ready(n);
    }

    pub(crate) fn event(&mut self, event: Event) {
        let mut out = Vec::new();
        self.machine.handle(self.now, event, &mut out);
        for action in out {
            match action {
                Action::Publish(Body::Roster(roster)) => self.roster = Some(roster),
                Action::Publish(Body::Manifest(m)) => self.manifests.push(m),
                Action::Publish(Body::Cutoff(_)) => self.cutoffs += 1,
                Action::Audit { manifest, .. } => self.audits.push(manifest),
                Action::Close { body, attests } => self.closes.push((body, attests)),
                Action::CheckDelta { member, .. } => self.wanted.push(member.as_bytes()[0]),
                Action::Publish(_) | Action::Prepare | Action::Probe { .. } | Action::Notice(_) => {}
                Action::Penalise { peer, offence, .. } => self.offences.push((peer, offence)),
                Action::Finished(standing) => self.standing = Some(standing),
            }
        }
    }

    pub(crate) fn say(&mut self, sender: u8, body: Body) {
        self.say_as(peer(sender), body);
    }

    pub(crate) fn say_as(&mut self, sender: PeerBytes, body: Body) {
        let encoded = body.encode().unwrap();
        let m = Verified::own(sender, body, encoded, Vec::new(), Vec::new(), Vec::new());
        self.event(Event::Message(Box::new(m.unwrap())));
    }

    pub(crate) fn ready(&mut self, n: u8) {
        self.ready_as(peer(n), self.now);
    }

    pub(crate) fn ready_as(&mut self, sender: PeerBytes, at: Time) {
        let ready = Ready {
            job: cid(9),
            closed: 0,
            record: Hash32([1; 32]),
            at: at.0,
        };
        self.say_as(sender, ready.into());
    }

    /// Whom the latest roster calls.
    pub(crate) fn called(&self) -> Vec<PeerBytes> {
        let members = self.roster.iter().flat_map(|r| r.members.iter());
        members.map(|m| m.peer.clone()).collect()
    }

    pub(crate) fn roster(&self) -> (Roster, Hash32) {
        let roster = self.roster.clone().unwrap();
        let hash = cbor::object_hash(&cbor::to_dag(&roster).unwrap());
        (roster, hash)
    }

    pub(crate) fn commit(&mut self, n: u8) {
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
    pub(crate) fn receipt(&mut self, n: u8) {
        self.receipt_by((n + 1) % MEMBERS, n, cid(n));
    }

    pub(crate) fn receipt_by(&mut self, holder: u8, n: u8, of: CidBytes) {
        let (roster, hash) = self.roster();
        let commitment = commitment(Hash32([7; 32]), &peer(n), Hash32([n; 32]), &cid(n));
        let (job, round) = (cid(9), roster.round);
        self.say(
            holder,
            Receipt {
                job,
                round,
                roster: hash,
                member: peer(n),
                commitment,
                cid: of,
            }
            .into(),
        );
    }

    pub(crate) fn reveal(&mut self, n: u8) {
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
    pub(crate) fn wait(&mut self, ms: u64) {
        let end = self.now.plus(ms);
        while let Some((at, _)) = self.machine.deadline().filter(|(at, _)| *at <= end) {
            assert!(at > self.now, "a deadline that has passed is not met");
            self.now = at;
            self.event(Event::Tick);
        }
        self.now = end;
    }

    pub(crate) fn members(&self) -> Vec<u8> {
        let entries = self.manifests.last().unwrap().entries.iter();
        let mut members: Vec<u8> = entries.map(|e| e.member.as_bytes()[0]).collect();
        members.sort_unstable();
        members
    }
}
