//! The orchestrator's machine alone, from the manifest to the close: which attests count, what a replay makes of them, and whom
//! complaints replace.
#![allow(clippy::unwrap_used, reason = "helpers of a test fail by panicking")]

mod stage;

use gym_protocol::cbor;
use gym_protocol::ids::{Hash32, Round, View};
use gym_protocol::message::{Attest, Body, Complaint, Manifest, Offence};
use gym_protocol::orchestrator::{Audited, Doing, Event, Follows};
use stage::{MEMBERS, Stage, cid, peer};

const STATE: Hash32 = Hash32([5; 32]);
const CHECKPOINT: u8 = 50;

/// All have revealed; the first manifest is out.
fn reducing() -> Stage {
    let mut stage = Stage::new();
    (0..MEMBERS).for_each(|n| stage.commit(n));
    (0..MEMBERS).for_each(|n| stage.receipt(n));
    (0..MEMBERS).for_each(|n| stage.reveal(n));
    assert_eq!(
        (stage.manifests.len(), stage.machine.doing()),
        (1, Doing::Reducing)
    );
    stage
}

fn hash_of(manifest: &Manifest) -> Hash32 {
    cbor::object_hash(&cbor::to_dag(manifest).unwrap())
}

impl Stage {
    fn attest(&mut self, n: u8, change: impl Fn(&mut Attest)) {
        let manifest = self.manifests.last().unwrap();
        let mut attest = Attest {
            job: cid(9),
            round: manifest.round,
            view: manifest.view,
            manifest: hash_of(manifest),
            parent: manifest.parent,
            state: STATE,
            checkpoint: cid(CHECKPOINT),
        };
        change(&mut attest);
        self.say(n, attest.into());
    }

    fn audited(&mut self, outcome: Audited, follows: Option<(Hash32, u8)>) {
        let follows = follows.map(|(state, checkpoint)| Follows {
            state,
            checkpoint: cid(checkpoint),
        });
        self.event(Event::Audited {
            manifest: *self.audits.last().unwrap(),
            outcome,
            follows,
        });
    }
}

#[test]
fn an_attest_of_another_round_is_in_no_certificate() {
    let wrong: [fn(&mut Attest); 3] = [
        |a| a.round = Round(a.round.0 + 1),
        |a| a.view = View(a.view.0 + 1),
        |a| a.parent = Hash32([9; 32]),
    ];
    for change in wrong {
        let mut stage = reducing();
        stage.attest(5, change);
        assert_eq!(stage.offences, [(peer(5), Offence::BadMessage)]);
        (0..5).for_each(|n| stage.attest(n, |_| ()));
        stage.wait(20_000);
        stage.audited(Audited::Sound, None);
        let (close, attests) = stage.closes.last().unwrap();
        assert_eq!((attests.len(), close.state), (5, STATE));
        for attest in attests {
            let Body::Attest(a) = &attest.body else {
                panic!("{attest:?}")
            };
            assert_eq!((a.round, a.view), (close.round, close.view));
        }
    }
}

/// All agree, on a state or a checkpoint that does not follow from their deltas: nothing closes, and whose sums were true are
/// struck for it.
#[test]
fn what_does_not_follow_from_the_deltas_is_not_closed() {
    for right in [(Hash32([6; 32]), CHECKPOINT), (STATE, CHECKPOINT + 1)] {
        let mut stage = reducing();
        (0..MEMBERS).for_each(|n| stage.attest(n, |_| ()));
        stage.audited(Audited::Sound, Some(right));
        stage.wait(5_000);
        assert!(stage.closes.is_empty());
        let differs: Vec<_> = (0..MEMBERS).map(|n| (peer(n), Offence::StateDiffers)).collect();
        assert_eq!(stage.offences, differs);
        assert_eq!(stage.roster().0.attempt, 1, "tried again");
    }
}

#[test]
fn what_follows_from_the_deltas_is_closed() {
    let mut stage = reducing();
    (0..5).for_each(|n| stage.attest(n, |_| ()));
    stage.attest(5, |a| a.checkpoint = cid(CHECKPOINT + 1));
    stage.audited(Audited::Sound, Some((STATE, CHECKPOINT)));
    assert_eq!(stage.closes.len(), 1);
    assert_eq!(stage.closes[0].1.len(), 5);
    assert_eq!(stage.offences, [(peer(5), Offence::StateDiffers)]);
}

/// The hops were not all shown: those who attest may have been given a false sum, and are not struck; it does not close either.
#[test]
fn nobody_is_struck_where_the_hops_are_not_shown() {
    let mut stage = reducing();
    (0..MEMBERS).for_each(|n| stage.attest(n, |_| ()));
    stage.audited(
        Audited::Open("too few".into()),
        Some((Hash32([6; 32]), CHECKPOINT)),
    );
    assert!(stage.closes.is_empty() && stage.offences.is_empty());
    assert_eq!(stage.manifests.last().unwrap().view, View(1), "summed again");
    (0..MEMBERS).for_each(|n| stage.attest(n, |_| ()));
    stage.audited(Audited::Open("too few".into()), None);
    assert_eq!(stage.closes.len(), 1, "nothing is known against it");
}

/// It answers, and complains in each view of another member of whom nobody else does: it would use the round's views up.
#[test]
fn who_accuses_one_after_another_alone_is_replaced() {
    let served = |stage: &Stage| -> Vec<u8> {
        let entries = &stage.manifests.last().unwrap().entries;
        let own = entries.iter().filter(|e| e.server == e.member);
        let mut own: Vec<u8> = own.map(|e| e.member.as_bytes()[0]).collect();
        own.sort_unstable();
        own
    };
    let mut stage = reducing();
    for accused in 1..=3 {
        assert_eq!(served(&stage), [0, 1, 2, 3, 4, 5], "view {}", accused - 1);
        let manifest = stage.manifests.last().unwrap().clone();
        let complaint = Complaint {
            job: cid(9),
            round: manifest.round,
            view: manifest.view,
            context: hash_of(&manifest),
            accused: peer(accused),
            offence: Offence::Timeout.number(),
            missing: 4,
        };
        stage.say(0, complaint.into());
        stage.wait(1_100);
        assert_eq!(stage.manifests.len(), usize::from(accused) + 1, "another view");
    }
    assert_eq!(served(&stage), [1, 2, 3, 4, 5]);
    assert_eq!(stage.members(), [0, 1, 2, 3, 4, 5], "its work stays in the sum");
}
