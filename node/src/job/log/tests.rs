use super::*;
use gym_protocol::ids::{CidBytes, Hash32, Round, View};
use gym_protocol::job::spec::JobFile;
use gym_protocol::message::{
    Attest, Close, Commitment, JobBody, Link, Links, Manifest, Ready, Report, RosterMember, Status,
};
use proptest::prelude::*;

const ORCHESTRATOR: u16 = 0;
const ME: u16 = 1;

fn peer(n: u16) -> PeerBytes {
    PeerBytes::new([&[0x12; 36][..], &n.to_le_bytes()].concat()).unwrap()
}

fn job() -> CidBytes {
    CidBytes::new(vec![9; 36]).unwrap()
}

/// A signed message; `salt` stands for a signature that differs each time.
fn said(by: u16, body: Body, salt: u64) -> Verified {
    let encoded = body.encode().unwrap();
    let signature = salt.to_le_bytes().repeat(8);
    Verified::own(peer(by), body, encoded, signature, Vec::new(), Vec::new()).unwrap()
}

fn announced() -> Verified {
    let text = "name = \"w\"\nmodel = \"m\"\ntrain = \"t\"\nheldout = \"h\"\nrewards = [{ name = \"numeric\" }]\n[schedule]\nrounds = 3\n";
    let resolved = gym_protocol::job::spec::Resolved {
        base: job(),
        train: job(),
        heldout: job(),
    };
    let spec = Box::new(JobFile::parse(text).unwrap().resolve(resolved));
    let body = JobBody {
        spec,
        orchestrator: peer(ORCHESTRATOR),
        submitted: 1,
        rows: 10,
    };
    said(ORCHESTRATOR, body.into(), 0)
}

fn roster(by: u16, round: u64, members: &[u16], salt: u64) -> Verified {
    let members = members.iter().map(|m| RosterMember {
        peer: peer(*m),
        record: Hash32::ZERO,
        ready_at: 0,
    });
    let body = Roster {
        job: job(),
        round: Round(round),
        attempt: 0,
        members: members.collect(),
        parent: Hash32::ZERO,
        checkpoint: job(),
    };
    said(by, body.into(), salt)
}

fn manifest(by: u16, round: u64, salt: u64) -> Verified {
    let body = Manifest {
        job: job(),
        round: Round(round),
        view: View(0),
        roster: Hash32::ZERO,
        parent: Hash32::ZERO,
        entries: Vec::new(),
        grid: None,
        kept: Vec::new(),
        left_out: Vec::new(),
    };
    said(by, body.into(), salt)
}

fn close(by: u16, round: u64, bytes: usize, salt: u64) -> Verified {
    let body = Close {
        job: job(),
        round: Round(round),
        view: View(0),
        manifest: Hash32::ZERO,
        state: Hash32::ZERO,
        checkpoint: job(),
        attests: vec![vec![0; bytes].into()],
        signers: None,
    };
    said(by, body.into(), salt)
}

fn links(by: u16, salt: u64) -> Verified {
    let link = Link {
        peer: peer(2),
        delay_us: 1,
        bytes_per_ms: 1,
    };
    let body = Links {
        job: job(),
        links: vec![link].try_into().unwrap(),
    };
    said(by, body.into(), salt)
}

fn report(by: u16, round: u64, is_delta: bool, salt: u64) -> Verified {
    let subject = if is_delta {
        Subject::Delta {
            member: peer(2),
            cid: job(),
        }
    } else {
        Subject::Checkpoint { cid: job() }
    };
    let body = Report {
        job: job(),
        round: Round(round),
        subject,
        questions: 1,
        correct_before: 0,
        correct_after: 1,
    };
    said(by, body.into(), salt)
}

fn status(by: u16, standing: u8, salt: u64) -> Verified {
    let body = Status {
        job: job(),
        closed: 1,
        standing,
        why: "because".into(),
    };
    said(by, body.into(), salt)
}

fn ready(by: u16, salt: u64) -> Verified {
    let body = Ready {
        job: job(),
        closed: 0,
        record: Hash32::ZERO,
        at: salt,
    };
    said(by, body.into(), salt)
}

fn commitment(by: u16, round: u64, salt: u64) -> Verified {
    let body = Commitment {
        job: job(),
        round: Round(round),
        roster: Hash32::ZERO,
        commitment: Hash32::ZERO,
    };
    said(by, body.into(), salt)
}

fn attest(by: u16, round: u64, salt: u64) -> Verified {
    let body = Attest {
        job: job(),
        round: Round(round),
        view: View(0),
        manifest: Hash32::ZERO,
        parent: Hash32::ZERO,
        state: Hash32::ZERO,
        checkpoint: job(),
    };
    said(by, body.into(), salt)
}

fn log() -> RoundLog {
    let mut log = RoundLog::new(peer(ORCHESTRATOR), peer(ME));
    assert!(log.add(&announced()));
    log
}

fn has(log: &RoundLog, m: &Verified, limit: usize) -> bool {
    log.lacking(&BTreeSet::new(), limit).contains(&m.envelope)
}

fn share(log: &RoundLog) -> Share {
    log.total(|_| true)
}

/// Anything that somebody may sign about a job, of a round near or far.
fn anything(by: u16, what: u8, round: u64, salt: u64) -> Verified {
    match what % 10 {
        0 => roster(by, round, &[by, by.wrapping_add(1)], salt),
        1 => manifest(by, round, salt),
        2 => close(by, round, 300_000, salt),
        3 => links(by, salt),
        4 => report(by, round, true, salt),
        5 => report(by, round, false, salt),
        6 => status(by, (round % 5) as u8, salt),
        7 => ready(by, salt),
        8 => commitment(by, round, salt),
        _ => attest(by, round, salt),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever strangers and members say, before and after, what the orchestrator said of this round is handed out.
    #[test]
    fn nobody_drives_the_orchestrators_words_out(
        round in 1u64..1_000,
        before in prop::collection::vec((2u16..300, any::<u8>(), prop_oneof![0u64..1_100, Just(u64::MAX), Just(u64::MAX - 1)]), 0..300),
        after in prop::collection::vec((2u16..300, any::<u8>(), prop_oneof![0u64..1_100, Just(u64::MAX), Just(u64::MAX - 1)]), 0..300),
    ) {
        let mut log = log();
        for (salt, (by, what, r)) in (0u64..).zip(before) {
            log.add(&anything(by, what, r, salt));
        }
        let words = [
            roster(ORCHESTRATOR, round, &[ME, 2, 3], 0),
            manifest(ORCHESTRATOR, round, 0),
            close(ORCHESTRATOR, round, 600_000, 0),
        ];
        words.iter().for_each(|m| assert!(log.add(m)));
        for (salt, (by, what, r)) in (1_000u64..).zip(after) {
            log.add(&anything(by, what, r, salt));
        }
        for m in &words {
            prop_assert!(has(&log, m, super::super::sync::MAX_ENVELOPES));
        }
        let all = log.lacking(&BTreeSet::new(), usize::MAX);
        prop_assert_eq!(all.first(), Some(&announced().envelope));
    }
}

#[test]
fn a_strangers_roster_ends_no_round() {
    let mut log = log();
    log.add(&roster(ORCHESTRATOR, 5, &[2], 0));
    for far in [u64::MAX - 1, u64::MAX] {
        log.add(&roster(7, far, &[7], far));
    }
    let words = [manifest(ORCHESTRATOR, 5, 0), attest(2, 5, 0)];
    for m in &words {
        assert!(log.add(m) && has(&log, m, usize::MAX));
    }
}

#[test]
fn after_a_thousand_rounds_everything_of_the_last_is_there() {
    let mut log = log();
    let members: Vec<u16> = (2..32).collect();
    for round in 0..1_000 {
        let words = [
            roster(ORCHESTRATOR, round, &members, 0),
            manifest(ORCHESTRATOR, round, 0),
        ];
        words.iter().for_each(|m| assert!(log.add(m)));
        for by in &members {
            log.add(&links(*by, round));
            log.add(&report(*by, round, true, round));
            log.add(&commitment(*by, round, round));
            log.add(&attest(*by, round, round));
        }
        let last = close(ORCHESTRATOR, round, 100, 0);
        log.add(&last);
        if round % 100 == 99 {
            for m in words.iter().chain([&last]) {
                assert!(has(&log, m, usize::MAX), "round {round}");
            }
            assert!(members.iter().all(|by| has(&log, &links(*by, round), usize::MAX)));
            assert!(
                members
                    .iter()
                    .all(|by| has(&log, &report(*by, round, true, round), usize::MAX))
            );
        }
    }
    // Two rounds, and one of each kind that is superseded.
    assert!(share(&log).messages <= 2 * (3 + 2 * members.len()) + 2 * members.len() + 1);
}

#[test]
fn what_is_kept_is_bounded_whoever_says_it() {
    let mut log = log();
    log.add(&roster(ORCHESTRATOR, 1, &(2..200).collect::<Vec<_>>(), 0));
    // Members that sign without end, large and small.
    for salt in 0..30 {
        for by in 2..200 {
            log.add(&commitment(by, 1, salt));
        }
    }
    for salt in 0..100 {
        log.add(&close(2, 1, 900_000, salt));
        log.add(&close(3 + (salt % 90) as u16, 1, 900_000, salt));
    }
    let all = share(&log);
    assert!(all.messages <= MAX_KEPT && all.bytes <= MAX_BYTES, "{all:?}");
    assert!(log.seen.len() <= MAX_SEEN && log.seen.len() == log.recent.len());
    let one = log.total(|k| k.sender == peer(2));
    assert!(!one.exceeds(MEMBER), "{one:?}");
    // Strangers have little, each and together.
    for salt in 0..2_000 {
        log.add(&commitment(1_000 + (salt % 500) as u16, 1, salt));
    }
    (0..20).for_each(|salt| assert!(log.add(&close(5_000, 1, 200_000, salt))));
    let strangers = log.total(|k| k.rank == Rank::Stranger);
    let one = log.total(|k| k.sender == peer(5_000));
    assert!(
        !strangers.exceeds(STRANGERS) && !one.exceeds(STRANGER),
        "{strangers:?} {one:?}"
    );
}

#[test]
fn what_was_let_go_is_not_asked_for_again() {
    let mut log = log();
    let early: Vec<Verified> = (0..20).map(|salt| commitment(7, 0, salt)).collect();
    early.iter().for_each(|m| assert!(log.add(m)));
    let ids = log.ids();
    assert!(
        !has(&log, &early[0], usize::MAX),
        "a stranger has no more than its share"
    );
    assert!(early.iter().all(|m| ids.contains(&message_id(&m.envelope))));
    assert_eq!(ids.len(), 21);
}

#[test]
fn the_last_word_on_a_job_stays_the_last() {
    let mut log = log();
    let (paused, done) = (status(ORCHESTRATOR, 0, 1), status(ORCHESTRATOR, 1, 2));
    log.add(&paused);
    log.add(&done);
    assert!(has(&log, &done, usize::MAX) && !has(&log, &paused, usize::MAX));
    log.add(&status(ORCHESTRATOR, 0, 3));
    assert!(has(&log, &done, usize::MAX));
}

#[test]
fn ones_own_words_are_pushed_within_a_questions_size() {
    let mut log = log();
    for round in 0..2 {
        (0..30).for_each(|salt| assert!(log.add(&close(ME, round, 5_000, 100 * round + salt))));
    }
    let pushed = log.own_lacking(&BTreeSet::new(), 60_000);
    assert!(!pushed.is_empty() && pushed.iter().map(Vec::len).sum::<usize>() <= 60_000);
}
