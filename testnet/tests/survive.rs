//! Survival with real processes: each test is a scenario of `testnet faults`, a network of its own. They are played one
//! after the other: their deadlines are short, and a machine that plays several at once is a slow one.

#![allow(clippy::unwrap_used, reason = "helpers of a test fail by panicking")]

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use testnet::RunFolder;
use testnet::interrupt::Interrupt;
use testnet::node::Program;
use testnet::scenario::{Recoveries, Set, Stage, play};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// On failure the folder stays, for its logs.
fn survives(name: &str) {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let stage = Stage {
        program: Program::at(Path::new(env!("CARGO_BIN_EXE_testnet"))),
        folder: RunFolder::create(Some(&dir)).unwrap(),
        interrupt: Interrupt::default(),
        recoveries: Recoveries::default(),
    };
    if let Err(error) = play(name, &stage) {
        panic!("{error:#}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn slow_a_worker_killed_in_train_is_missed_and_comes_back() {
    survives("killed-in-train");
}

#[test]
fn slow_a_worker_killed_in_commit_is_missed_and_comes_back() {
    survives("killed-in-commit");
}

#[test]
fn slow_a_worker_killed_in_reduce_is_stood_in_for_and_comes_back() {
    survives("killed-in-reduce");
}

#[test]
fn slow_a_worker_that_trains_forever_is_missed() {
    survives("silent-in-train");
}

#[test]
fn slow_a_worker_silent_in_the_ring_is_stood_in_for() {
    survives("silent-in-reduce");
}

#[test]
fn slow_a_frozen_worker_does_not_stop_the_others() {
    survives("frozen");
}

#[test]
fn slow_a_worker_killed_in_a_grid_is_stood_in_for_and_comes_back() {
    survives("killed-in-grid");
}

#[test]
fn slow_a_chunk_for_the_wrong_round_is_refused() {
    survives("wrong-round");
}

#[test]
fn slow_a_truncated_chunk_is_refused() {
    survives("truncated");
}

#[test]
fn slow_a_false_sum_is_found_and_its_maker_named() {
    survives("false-sum");
}

#[test]
fn slow_a_chunk_with_a_bad_tag_is_refused() {
    survives("bad-tag");
}

#[test]
fn slow_a_delta_with_a_nan_is_left_out() {
    survives("nan-delta");
}

#[test]
fn slow_a_state_that_differs_is_refused() {
    survives("other-state");
}

#[test]
fn slow_two_manifests_of_one_view_are_told_and_close_one_round() {
    survives("two-manifests");
}

#[test]
fn slow_a_close_of_a_view_that_has_passed_is_void() {
    survives("late-close");
}

#[test]
fn a_job_that_cannot_be_is_refused_and_the_next_one_taken() {
    survives("bad-job");
}

#[test]
fn a_port_and_a_home_in_use_are_told() {
    survives("place-taken");
}

#[test]
fn a_full_disk_is_told_and_nothing_is_lost() {
    survives("full-disk");
}

#[test]
fn every_scenario_is_a_test_here() {
    let source = include_str!("survive.rs");
    let on_loopback = testnet::scenario::ALL.iter().filter(|s| s.set == Set::Loopback);
    for scenario in on_loopback {
        assert!(
            source.contains(&format!("survives(\"{}\")", scenario.name)),
            "{} is not tested",
            scenario.name
        );
    }
}
