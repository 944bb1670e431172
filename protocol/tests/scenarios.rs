//! The scenario files of the test network: each names the invariant that must hold in it.
#![cfg(feature = "sim")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of a test fail by panicking and say what they saw"
)]

use gym_protocol::sim::{Order, Outcome, Scenario, parse, run};
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../testnet/scenarios")
}

fn load(name: &str) -> (Scenario, Vec<String>, Outcome) {
    let text = std::fs::read_to_string(folder().join(format!("{name}.toml"))).unwrap();
    let (scenario, invariant) = parse(&text).unwrap();
    let began = std::time::Instant::now();
    let outcome = run(&scenario).unwrap();
    let broken = invariant.broken(&scenario, &outcome);
    println!(
        "{name}: longest message {} bytes, seed {}, {:?}; {} closed in {:.1} s of virtual time, bytes {:?}, {} events, {} deaths, {:.1} s; grid {:?}; views {:?} of {} tries; {}",
        outcome.largest_message,
        scenario.seed,
        invariant,
        outcome.closed,
        outcome.virtual_us as f64 / 1e6,
        outcome.bytes_ratio,
        outcome.events,
        outcome.deaths,
        began.elapsed().as_secs_f64(),
        outcome.closes.first().and_then(|c| c.grid),
        outcome
            .closes
            .iter()
            .map(|c| (c.view, c.summed.len(), c.signers))
            .collect::<Vec<_>>(),
        outcome.rounds.len(),
        outcome.trace,
    );
    (scenario, broken, outcome)
}

fn holds(name: &str) -> Outcome {
    let (scenario, broken, outcome) = load(name);
    assert!(broken.is_empty(), "seed {}: {broken:#?}", scenario.seed);
    assert!(
        outcome.largest_message <= gym_protocol::message::MAX_ENVELOPE,
        "a message of {} bytes",
        outcome.largest_message
    );
    assert!(
        outcome.sum_exact(),
        "seed {}: {:?}",
        scenario.seed,
        outcome.broken.sum
    );
    outcome
}

macro_rules! scenarios {
    ($($test:ident: $name:literal;)*) => {
        $(#[test]
        fn $test() {
            holds($name);
        })*

        const NAMES: &[&str] = &[$($name),*];
    };
}

scenarios! {
    three_members_sum_exactly: "ring-3";
    thirty_members_send_what_theory_says: "ring-30";
    three_hundred_members_send_what_theory_says: "ring-300";
    slow_a_thousand_members_sum_exactly: "ring-1000";
    slow_a_thousand_members_in_one_ring_send_what_theory_says: "ring-1000-flat";
    a_grid_with_missing_slots_is_exact: "grid-missing";
    lost_packets_leave_one_state: "loss";
    no_commit_is_lost_when_members_are: "churn";
    three_hundred_members_that_come_and_go_are_not_stuck: "churn-300";
    the_dead_and_the_silent_of_a_grid_are_in_the_sum: "dead-in-grid";
    a_measured_order_leaves_the_sum: "order";
    a_false_sum_does_not_close: "false-sum";
    two_manifests_leave_one_state: "two-manifests";
    a_late_close_leaves_one_state: "late-close";
    a_view_after_a_death_keeps_what_was_finished: "kept";
    late_words_leave_one_state: "late-words";
}

/// Whatever comes late, in rings of all small sizes: rounds close, each with one state.
#[test]
fn late_words_leave_one_state_in_small_rings() {
    let text = std::fs::read_to_string(folder().join("late-words.toml")).unwrap();
    for members in 3..=12 {
        for (seed, jitter_ms) in [(1, 500), (2, 2000), (3, 4000), (4, 8000)] {
            let text = text
                .replace("members = 150", &format!("seed = {seed}\nmembers = {members}"))
                .replace("jitter_ms = 4000", &format!("jitter_ms = {jitter_ms}"));
            let (scenario, invariant) = parse(&text).unwrap();
            assert_eq!((scenario.members, scenario.seed), (members, seed));
            let outcome = run(&scenario).unwrap();
            let broken = invariant.broken(&scenario, &outcome);
            assert!(
                broken.is_empty() && outcome.broken.sum.is_empty(),
                "{members} members, {jitter_ms} ms, seed {seed}: {broken:#?} {:?}",
                outcome.broken.sum
            );
        }
    }
}

#[test]
fn a_measured_order_is_faster_in_a_ring_and_in_a_grid() {
    let (scenario, _, _) = load("order");
    for flat_ring_max in [28, 4096] {
        let reduced = |order| {
            let o = run(&Scenario {
                order,
                flat_ring_max,
                ..scenario.clone()
            });
            let r = o.unwrap().rounds.remove(0);
            r.reduced.unwrap() - r.manifest.unwrap()
        };
        let (measured, roster) = (reduced(Order::Measured), reduced(Order::Roster));
        assert!(measured * 10 < roster * 9, "{measured} µs of {roster} µs");
    }
}

#[test]
fn every_file_is_played() {
    let mut found: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| {
            entry
                .unwrap()
                .path()
                .file_stem()
                .unwrap()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    found.sort();
    let mut names: Vec<String> = NAMES.iter().map(|n| (*n).to_owned()).collect();
    names.sort();
    assert_eq!(found, names);
}

#[test]
fn one_seed_gives_one_trace() {
    let (scenario, _, outcome) = load("dead-in-grid");
    assert_eq!(run(&scenario).unwrap(), outcome);
    let other = Scenario {
        seed: scenario.seed + 1,
        ..scenario
    };
    assert_ne!(run(&other).unwrap().trace, outcome.trace);
}

#[test]
fn an_invariant_that_does_not_hold_is_said() {
    let text = |invariant: &str, faults: &str| {
        format!("invariant = \"{invariant}\"\nmembers = 4\nelements = 600\nfaults = [{faults}]\n")
    };
    let broken = |text: &str| {
        let (scenario, invariant) = parse(text).unwrap();
        invariant.broken(&scenario, &run(&scenario).unwrap())
    };
    // So many that the sum is replayed in part, and all agree on a wrong state.
    let wrong: Vec<String> = (0..65)
        .map(|m| format!("{{ member = {m}, kind = \"other_state\", value = 0 }}"))
        .collect();
    let of_many = |faults: &str| text("sum_exact", faults).replace("members = 4", "members = 65");
    assert!(broken(&of_many("")).is_empty());
    assert_eq!(
        broken(&of_many(&wrong.join(", "))),
        ["round 0: the mean is not the exact one"]
    );
    // A whole replay shows it.
    assert_eq!(
        broken(&text("sum_exact", &wrong[..4].join(", "))),
        ["0 of 1 rounds closed"]
    );
    let silent = "{ member = 1, kind = \"mute_in_reduce\", value = 0 }";
    assert!(broken(&text("bytes", "")).is_empty());
    assert!(
        !broken(&text("bytes", silent)).is_empty(),
        "no round closed in its first view"
    );
    // Two never come back: the job is paused after two rounds.
    let dead = ["1", "2"].map(|m| format!("{{ member = {m}, kind = \"die_in_train\", value = 1 }}"));
    let paused = |closes: &str| {
        format!(
            "rounds = 3\nlimit_s = 7200\n{closes}{}",
            text("one_state", &dead.join(", "))
        )
    };
    assert_eq!(broken(&paused("")), ["2 of 3 rounds closed"]);
    assert!(broken(&paused("closes = 2\n")).is_empty());
    assert!(parse(&paused("closes = 4\n")).is_err());
    assert!(parse(&text("luck", "")).is_err());
    assert!(parse(&text("bytes", "").replace("600", "0")).is_err());
}
