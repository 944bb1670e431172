//! The round's machines over the simulated network: whole rounds, deaths in every phase, and peers that misbehave.
#![cfg(feature = "sim")]

use gym_protocol::sim::{Broken, Fault, OrchestratorFault, Outcome, Scenario, run};
use std::collections::BTreeMap;

const JOB: &str = r#"
name = "sim"
model = "m"
train = "t"
heldout = "h"
wire = "WIRE"
rewards = [{ name = "numeric" }]
[schedule]
rounds = 4
min_workers = 2
max_workers = 64
redundancy = 1
aggregate_interval = 1
[schedule.deadlines]
recruit_ms = 2000
train_ms = 60000
commit_ms = 20000
"#;

fn scenario(members: u32, faults: &[(u32, &[Fault])]) -> Scenario {
    Scenario {
        members,
        job: JOB.replace("WIRE", "f32"),
        faults: faults
            .iter()
            .map(|(i, f)| (*i, f.to_vec()))
            .collect::<BTreeMap<_, _>>(),
        limit_ms: 3_600_000,
        ..Scenario::default()
    }
}

/// With as few members as are left without `liars`.
fn without_liars(members: u32, liars: &[(u32, &[Fault])]) -> Scenario {
    let s = scenario(members, liars);
    let least = members - u32::try_from(liars.len()).expect("they are few");
    Scenario {
        job: s
            .job
            .replace("min_workers = 2", &format!("min_workers = {}", least.min(2))),
        ..s
    }
}

/// What must hold whatever went wrong.
fn check(s: &Scenario) -> Outcome {
    let o = run(s).expect("the job parses");
    assert_eq!(o.closed, 4, "all rounds close: {o:#?}");
    assert_eq!(
        o.broken,
        Broken::default(),
        "every close is the exact mean of its manifest: {o:#?}"
    );
    let rounds: Vec<u64> = o.closes.iter().map(|c| c.round).collect();
    assert_eq!(rounds, [0, 1, 2, 3], "one close a round");
    for c in &o.closes {
        assert!(3 * c.signers > 2 * c.summed.len(), "{c:?}");
    }
    o
}

fn round(o: &Outcome, n: u64) -> &gym_protocol::sim::ClosedRound {
    o.closes.iter().find(|c| c.round == n).expect("the round closed")
}

#[test]
fn all_members_sign_one_state() {
    for wire in ["f32", "bf16", "q8", "q4"] {
        for members in [2, 3, 4, 9] {
            let s = Scenario {
                job: JOB.replace("WIRE", wire),
                ..scenario(members, &[])
            };
            let o = check(&s);
            for c in &o.closes {
                assert_eq!(
                    (c.view, c.signers, c.summed.len()),
                    (0, members as usize, members as usize),
                    "{wire}"
                );
            }
            assert!(o.offences.is_empty(), "{:?}", o.offences);
        }
    }
}

#[test]
fn a_job_of_one_member_runs() {
    let s = scenario(1, &[]);
    let s = Scenario {
        job: s.job.replace("min_workers = 2", "min_workers = 1"),
        ..s
    };
    assert_eq!(check(&s).closes.len(), 4);
}

#[test]
fn one_seed_gives_one_trace() {
    let s = scenario(5, &[(2, &[Fault::DieInReduce(1), Fault::ReviveAfter(3_000)])]);
    assert_eq!(run(&s), run(&s));
    assert_ne!(
        run(&s).unwrap().trace,
        run(&Scenario { seed: 2, ..s.clone() }).unwrap().trace
    );
}

#[test]
fn a_member_that_dies_in_training_is_left_out_and_comes_back() {
    let o = check(&scenario(
        4,
        &[(1, &[Fault::DieInTrain(1), Fault::ReviveAfter(1_500)])],
    ));
    assert_eq!(round(&o, 1).summed, [0, 2, 3]);
    assert!(round(&o, 3).summed.contains(&1), "it rejoins: {o:#?}");
}

#[test]
fn a_member_that_dies_before_it_commits_is_left_out() {
    let o = check(&scenario(4, &[(1, &[Fault::DieBeforeCommit(1)])]));
    assert_eq!(round(&o, 1).summed, [0, 2, 3]);
}

#[test]
fn a_member_that_dies_in_the_ring_is_in_the_sum() {
    for dead in 0..4 {
        let o = check(&scenario(
            4,
            &[(dead, &[Fault::DieInReduce(1), Fault::ReviveAfter(1_500)])],
        ));
        assert_eq!(
            round(&o, 1).summed.len(),
            4,
            "its replica's holder contributes for it"
        );
        assert_eq!(round(&o, 1).signers, 3);
        assert!(round(&o, 3).summed.contains(&dead), "it rejoins");
    }
}

#[test]
fn a_holder_contributes_for_the_dead_at_every_precision_in_a_ring_and_in_a_grid() {
    for wire in ["bf16", "q8", "q4"] {
        for flat_ring_max in [28, 4] {
            let faults: &[(u32, &[Fault])] = &[(2, &[Fault::DieInReduce(1)]), (5, &[Fault::MuteInReduce(2)])];
            let s = Scenario {
                job: JOB.replace("WIRE", wire),
                flat_ring_max,
                ..scenario(7, faults)
            };
            let o = check(&s);
            assert_eq!(round(&o, 1).grid.is_some(), flat_ring_max == 4);
            assert_eq!(round(&o, 1).summed.len(), 7, "{wire}");
            assert_eq!(round(&o, 2).summed.len(), 6, "{wire}: {o:#?}");
        }
    }
}

#[test]
fn two_deaths_at_once_with_two_replicas() {
    let faults: &[(u32, &[Fault])] = &[(1, &[Fault::DieInReduce(1)]), (2, &[Fault::DieInReduce(1)])];
    let s = scenario(7, faults);
    let o = check(&Scenario {
        job: s.job.replace("redundancy = 1", "redundancy = 2"),
        ..s
    });
    assert_eq!(round(&o, 1).summed.len(), 7);
}

/// A killed process says nothing, and its connections look alive for a while: the orchestrator's own question tells.
#[test]
fn deaths_that_no_connection_shows_are_met_in_one_view() {
    let die: &[Fault] = &[Fault::DieInReduce(1), Fault::NoticedAfter(30_000)];
    for (one, other) in (0..7).flat_map(|one| (one + 1..7).map(move |other| (one, other))) {
        let s = scenario(7, &[(one, die), (other, die)]);
        let o = check(&Scenario {
            job: s.job.replace("redundancy = 1", "redundancy = 2"),
            ..s
        });
        let second = round(&o, 1);
        let met = (second.summed.len(), second.view);
        assert_eq!(met, (7, 1), "{one} and {other}: {o:#?}");
    }
}

/// The dead are not waited for as long as the slow: the orchestrator asks whose attest is missing.
#[test]
fn a_death_before_the_attest_does_not_hold_the_close_up() {
    // How long others are heard, in virtual microseconds.
    const HEARING_US: u64 = 1_500_000;
    for unseen_ms in [0, 30_000] {
        let die: &[Fault] = &[Fault::DieInApply(1), Fault::NoticedAfter(unseen_ms)];
        let o = check(&scenario(5, &[(2, die)]));
        let (hit, before) = (round(&o, 1), round(&o, 0));
        assert_eq!((hit.summed.len(), hit.view, hit.signers), (5, 0, 4), "{o:#?}");
        assert_eq!(before.signers, 5);
        let took = |i: usize| {
            let r = &o.rounds[i];
            r.closed.unwrap() - r.reduced.unwrap()
        };
        // Once the hearing before it asks, once for the answer.
        assert!(
            took(1) < took(0) + 2 * HEARING_US + 500_000,
            "{} µs after {}",
            took(1),
            took(0)
        );
    }
}

/// Two of three are no quorum of three: the round waits for the third while it may come back, and is then tried without it.
#[test]
fn a_round_whose_quorum_died_is_tried_again_without_the_dead() {
    let o = check(&scenario(3, &[(1, &[Fault::DieInReduce(1)])]));
    assert_eq!(round(&o, 1).summed, [0, 2]);
}

/// Whoever dies at once, with or without the only holder of its work: what is left closes nothing that is no quorum of the
/// members whose work was to be summed, though it may be one of what can still be.
#[test]
fn the_rest_of_a_manifest_is_no_quorum_by_itself() {
    let seen: &[Fault] = &[Fault::DieInReduce(1)];
    let unseen: &[Fault] = &[Fault::DieInReduce(1), Fault::NoticedAfter(30_000)];
    for members in 4..=7u32 {
        for dead in (1..1u32 << members).filter(|dead| dead.count_ones() + 2 <= members) {
            for fault in [seen, unseen] {
                let dies = (0..members).filter(|m| dead >> m & 1 == 1);
                let faults: Vec<_> = dies.map(|m| (m, fault)).collect();
                let o = run(&scenario(members, &faults)).expect("the job parses");
                let second = o.closes.iter().find(|c| c.round == 1);
                let of_all = |signers: usize| 3 * signers > 2 * members as usize;
                assert!(
                    second.is_none_or(|c| c.view == 0 || of_all(c.signers)),
                    "{members} members, dead {dead:b}: {second:?}"
                );
            }
        }
    }
}

/// Whoever dies when it would reveal, with or without the holders of its work: what is left closes nothing that is no quorum
/// of the commits that count. The round may be tried again by those who are there.
#[test]
fn the_rest_of_the_commits_is_no_quorum_by_itself() {
    let seen: &[Fault] = &[Fault::DieInReveal(1)];
    let unseen: &[Fault] = &[Fault::DieInReveal(1), Fault::NoticedAfter(30_000)];
    let mut closed = 0;
    for members in 4..=7u32 {
        for dead in (1..1u32 << members).filter(|dead| dead.count_ones() + 2 <= members) {
            for fault in [seen, unseen] {
                let dies = (0..members).filter(|m| dead >> m & 1 == 1);
                let faults: Vec<_> = dies.map(|m| (m, fault)).collect();
                let o = run(&scenario(members, &faults)).expect("the job parses");
                let whole = o.rounds.iter().find(|r| r.round == 1 && r.closed.is_some());
                let Some(first) = whole.filter(|r| r.attempt == 0) else {
                    continue;
                };
                closed += 1;
                let close = round(&o, first.round);
                assert!(
                    3 * close.signers > 2 * members as usize,
                    "{members} members, dead {dead:b}: {close:?}"
                );
            }
        }
    }
    assert!(closed > 0, "some are a quorum");
}

/// Below four members those who are left are no quorum: the round is void at once, and tried again without the silent one.
#[test]
fn a_member_that_is_silent_in_the_ring_is_replaced_but_summed() {
    for members in 2..=5 {
        for silent in 0..members {
            let o = check(&without_liars(members, &[(silent, &[Fault::MuteInReduce(1)])]));
            one_round_less(&o, members, silent);
        }
    }
}

/// A round closed without the honest work of nobody: with the liar's too, where the others are a quorum.
fn one_round_less(o: &Outcome, members: u32, liar: u32) {
    let r = round(o, 1);
    let tries = o.rounds.iter().filter(|r| r.round == 1).count();
    if members < 4 {
        let others: Vec<u32> = (0..members).filter(|m| *m != liar).collect();
        assert_eq!((&r.summed, tries), (&others, 2), "{members} members: {o:#?}");
    } else {
        assert_eq!(
            (r.summed.len(), tries),
            (members as usize, 1),
            "{members} members: {o:#?}"
        );
        assert_eq!(r.signers, members as usize - 1);
        assert!(r.view > 0);
    }
    assert!(round(o, 3).summed.contains(&liar), "once is forgiven");
}

#[test]
fn misbehaviour_on_a_link_is_named_and_the_work_is_summed_all_the_same() {
    for (fault, label) in [
        (Fault::WrongRound(1), "wrong_round"),
        (Fault::Truncate(1), "truncated"),
        (Fault::BadSeal(1), "bad_seal"),
    ] {
        for members in 2..=5 {
            for liar in 0..members {
                let o = check(&without_liars(members, &[(liar, &[fault])]));
                assert!(o.offences.contains_key(label), "{label}: {:?}", o.offences);
                one_round_less(&o, members, liar);
            }
        }
    }
}

#[test]
fn a_delta_with_a_nan_is_refused_and_the_round_goes_on() {
    for members in 2..=5 {
        let liar = members - 1;
        let o = check(&without_liars(members, &[(liar, &[Fault::NotFinite(1)])]));
        let others: Vec<u32> = (0..liar).collect();
        assert_eq!(round(&o, 1).summed, others);
        assert!(o.offences.contains_key("delta_not_finite"));
        assert!(round(&o, 2).summed.contains(&liar));
    }
}

/// Of three, two are no quorum: the third, whose state differs though the sum is sound, is left out of the next try.
#[test]
fn a_state_that_differs_does_not_hold_a_small_network_up() {
    for liar in 0..3 {
        let o = check(&scenario(3, &[(liar, &[Fault::OtherState(1)])]));
        assert!(o.offences.contains_key("state_differs"));
        let others: Vec<u32> = (0..3).filter(|m| *m != liar).collect();
        let (r, tries) = (round(&o, 1), o.rounds.iter().filter(|r| r.round == 1).count());
        assert_eq!((&r.summed, r.signers, tries), (&others, 2, 2), "{o:#?}");
        assert!(round(&o, 3).summed.contains(&liar), "once is forgiven");
    }
}

/// Whoever agrees on a state that does not follow from the deltas they summed, a quorum or all but one: nothing closes on it, and
/// those who do not lie go on.
#[test]
fn a_quorum_behind_another_state_closes_nothing() {
    for members in 2..=7u32 {
        for honest in 1..=members / 3 + 1 {
            if honest == members {
                continue;
            }
            let lies: &[Fault] = &[Fault::OtherState(1)];
            let liars: Vec<_> = (honest..members).map(|m| (m, lies)).collect();
            for flat_ring_max in [28, 4] {
                let s = scenario(members, &liars);
                let o = check(&Scenario {
                    job: s.job.replace("min_workers = 2", "min_workers = 1"),
                    flat_ring_max,
                    ..s
                });
                let (r, tries) = (round(&o, 1), o.rounds.iter().filter(|r| r.round == 1).count());
                let true_ones: Vec<u32> = (0..honest).collect();
                assert_eq!((&r.summed, tries), (&true_ones, 2), "{members} members: {o:#?}");
                assert_eq!(round(&o, 3).summed.len(), members as usize, "once is forgiven");
                one_state(&o);
            }
        }
    }
}

/// One that misbehaves in every round, and answers whoever asks, fails no job of any small size: it is not called again.
#[test]
fn one_that_always_misbehaves_does_not_fail_the_job() {
    let faults: &[fn(u64) -> Fault] = &[
        Fault::MuteInReduce,
        Fault::WrongRound,
        Fault::Truncate,
        Fault::BadSeal,
        Fault::NotFinite,
        Fault::FalseSum,
        Fault::OtherState,
        Fault::FalseReceipts,
        Fault::ForgesReveals,
        |round| Fault::Accuses(round, 4),
        |round| Fault::Accuses(round, u32::MAX),
    ];
    for fault in faults {
        let always: Vec<Fault> = (0..4).map(fault).collect();
        for members in 2..=7 {
            for liar in 0..members {
                let o = check(&without_liars(members, &[(liar, &always)]));
                let views: u32 = o.rounds.iter().map(|r| r.views).sum();
                assert!(views <= 16, "{always:?} {liar} of {members}: {o:#?}");
            }
        }
    }
}

/// Holders are silenced by nothing but what opens a member's commitment, after the cutoff, from a member: whoever forges it, a
/// commit whose maker died before its reveal is summed.
#[test]
fn a_forged_reveal_does_not_silence_the_holders() {
    for forges in [Fault::ForgesReveals(1), Fault::StrangerReveals(1)] {
        for (members, dead) in [(4, 1), (5, 3), (7, 0)] {
            for liar in (0..members).filter(|m| *m != dead) {
                let o = check(&scenario(
                    members,
                    &[(dead, &[Fault::DieInReveal(1)]), (liar, &[forges])],
                ));
                let all: Vec<u32> = (0..members).collect();
                assert_eq!(round(&o, 1).summed, all, "{forges:?} by {liar}: {o:#?}");
            }
        }
    }
}

/// A holder that signs for what it was not given is found out, and the commit has another holder.
#[test]
fn a_false_receipt_leaves_no_commit_out() {
    let mut found = 0;
    for members in 3..=6 {
        for liar in 0..members {
            let o = check(&scenario(members, &[(liar, &[Fault::FalseReceipts(1)])]));
            assert_eq!(
                round(&o, 1).summed.len(),
                members as usize,
                "{liar} of {members}: {o:#?}"
            );
            found += o.offences.get("bad_message").copied().unwrap_or(0);
        }
    }
    assert!(found > 0, "some are asked to hold");
}

#[test]
fn a_delta_too_large_to_be_summed_is_its_makers_fault_alone() {
    for (wire, flat_ring_max) in [
        ("f32", 28),
        ("bf16", 28),
        ("q8", 28),
        ("q4", 28),
        ("f32", 3),
        ("q8", 3),
    ] {
        let s = scenario(4, &[(2, &[Fault::Huge(1)])]);
        let o = check(&Scenario {
            job: JOB.replace("WIRE", wire),
            flat_ring_max,
            ..s
        });
        assert_eq!(round(&o, 1).summed, [0, 1, 3], "{wire}");
        let offences: Vec<_> = o.offences.keys().copied().collect();
        assert_eq!(offences, ["delta_not_finite"], "{wire}: nobody else is accused");
        assert!(round(&o, 2).summed.contains(&2), "{wire}");
    }
}

#[test]
fn a_state_that_differs_is_named_and_its_member_catches_up() {
    let o = check(&scenario(4, &[(2, &[Fault::OtherState(1)])]));
    assert_eq!(round(&o, 1).signers, 3);
    assert!(o.offences.contains_key("state_differs"));
    assert_eq!(round(&o, 3).signers, 4, "it loaded the quorum's state");
    let last: Vec<_> = o.states.iter().flatten().collect();
    assert!(last.iter().all(|s| *s == last[0]));
}

#[test]
fn a_false_sum_is_found_before_the_close_and_every_honest_member_names_the_liar() {
    for wire in ["f32", "bf16", "q8", "q4"] {
        let small = [(2, 28, 0), (2, 28, 1), (3, 28, 0), (3, 28, 2)];
        let large = [(4, 28, 0), (5, 28, 3), (9, 4, 5), (7, 4, 6)];
        for (members, flat_ring_max, liar) in small.into_iter().chain(large) {
            let s = Scenario {
                job: without_liars(members, &[(liar, &[])]).job.replace("f32", wire),
                flat_ring_max,
                ..without_liars(members, &[(liar, &[Fault::FalseSum(1)])])
            };
            let o = check(&s);
            let honest: Vec<u32> = (0..members).filter(|m| *m != liar).collect();
            let named: Vec<u32> = o.named[&liar].iter().copied().collect();
            let by = named.iter().filter(|m| **m != liar).copied().collect::<Vec<_>>();
            assert_eq!(by, honest, "{wire} {members}: who names the liar");
            assert_eq!(o.named.len(), 1, "nobody else is named");
            let r = round(&o, 1);
            if members < 4 {
                assert_eq!(
                    (r.view, &r.summed),
                    (0, &honest),
                    "the others are no quorum: tried again"
                );
            } else {
                assert!(r.view > 0);
                assert_eq!(
                    r.summed.len(),
                    members as usize,
                    "its committed work stays in the sum"
                );
            }
            assert_eq!(r.signers, members as usize - 1);
            assert!(!round(&o, 2).summed.contains(&liar), "it is not called again");
            let last: Vec<_> = honest.iter().map(|m| o.states[*m as usize]).collect();
            assert!(last.iter().all(|s| s.is_some() && *s == last[0]), "one state");
        }
    }
}

/// The liar is found, and with a member that died too few are left for a next view: what all attested is false, and waiting for
/// the dead does not close it.
#[test]
fn a_false_sum_does_not_close_while_the_round_waits() {
    for members in 4..=5 {
        let pairs = (0..members).flat_map(|liar| (0..members).map(move |dead| (liar, dead)));
        for (liar, dead) in pairs.filter(|(liar, dead)| liar != dead) {
            for unseen_ms in [0, 30_000] {
                let die: &[Fault] = &[Fault::DieInApply(1), Fault::NoticedAfter(unseen_ms)];
                let o = check(&scenario(members, &[(liar, &[Fault::FalseSum(1)]), (dead, die)]));
                assert!(o.named.contains_key(&liar) && o.named.len() == 1, "{o:#?}");
                assert!(!round(&o, 1).summed.contains(&liar), "tried again without it");
            }
        }
    }
}

/// All living members ended in one state.
fn one_state(o: &Outcome) {
    let last: Vec<_> = o.states.iter().flatten().collect();
    assert!(last.iter().all(|s| *s == last[0]), "{:?}", o.states);
}

#[test]
fn of_two_manifests_for_a_view_one_closes_and_the_second_is_named() {
    for seed in 1..6 {
        let o = check(&Scenario {
            seed,
            orchestrator_faults: vec![OrchestratorFault::TwoManifests(1)],
            ..scenario(5, &[])
        });
        assert!(
            o.offences["equivocation"] >= 5,
            "every member says it: {:?}",
            o.offences
        );
        one_state(&o);
    }
}

#[test]
fn a_close_is_void_once_another_view_is_decided() {
    for seed in 1..6 {
        let o = check(&Scenario {
            seed,
            orchestrator_faults: vec![OrchestratorFault::LateClose(1)],
            ..scenario(5, &[])
        });
        assert!(
            o.offences["equivocation"] >= 5,
            "every member refuses it: {:?}",
            o.offences
        );
        assert_eq!(
            round(&o, 2).signers,
            5,
            "all load the closed state with the next roster"
        );
        one_state(&o);
    }
}
