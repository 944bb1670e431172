//! Finished chunks that a new view keeps, over the simulated network: a member dies at every segment it would send, and
//! liars among the rest. Deltas are fractions, so that a sum's bits tell the order it was made in.
#![cfg(feature = "sim")]

use gym_protocol::sim::{Broken, ClosedRound, Fault, Outcome, Payload, Scenario, run};
use std::collections::BTreeMap;

const WIRES: [&str; 4] = ["f32", "bf16", "q8", "q4"];
/// Of 256 elements: a chunk has several.
const SEGMENTS: u32 = 2;

fn scenario(wire: &str, members: u32, faults: &[(u32, Vec<Fault>)]) -> Scenario {
    let job = format!(
        "name = \"sim\"\nmodel = \"m\"\ntrain = \"t\"\nheldout = \"h\"\nwire = \"{wire}\"\n\
         rewards = [{{ name = \"numeric\" }}]\n[schedule]\nrounds = 2\nmin_workers = 2\nmax_workers = 64\n\
         redundancy = 2\naggregate_interval = 1\n[schedule.deadlines]\nrecruit_ms = 2000\ntrain_ms = 60000\n\
         commit_ms = 20000\n"
    );
    Scenario {
        members,
        job,
        elements: members as usize * 300,
        segment: 256,
        payload: Payload::Fractions,
        faults: faults.iter().cloned().collect::<BTreeMap<_, _>>(),
        ..Scenario::default()
    }
}

/// Whatever went wrong: both rounds close with the mean that the replay by origin gives, and all the living hold it.
fn check(s: &Scenario) -> Outcome {
    let o = run(s).expect("the job parses");
    assert_eq!(o.broken, Broken::default(), "{:?}", s.faults);
    assert_eq!(o.closed, 2, "{:?}: {o:#?}", s.faults);
    // Who lied about a sum is not called again, and stays where it was.
    let honest = (0u32..).zip(&o.states).filter(|(m, _)| !o.named.contains_key(m));
    let last: Vec<_> = honest.filter_map(|(_, state)| state.as_ref()).collect();
    assert!(
        last.iter().all(|state| *state == last[0]),
        "one state: {:?}",
        s.faults
    );
    o
}

fn first(o: &Outcome) -> &ClosedRound {
    &o.closes[0]
}

/// Ring segments that a member sends in a round without faults.
fn sent(wire: &str, members: u32) -> u32 {
    let chunks = members - 1;
    let scales = if wire.starts_with('q') { 2 * chunks } else { 0 };
    2 * chunks * SEGMENTS + scales
}

#[test]
fn a_member_may_die_at_every_segment_it_would_send() {
    for wire in WIRES {
        for members in 4..=6 {
            for dead in 0..members {
                for at in 0..sent(wire, members) {
                    dies_unseen(wire, members, dead, at);
                    dies_seen(wire, members, dead, at);
                }
            }
        }
    }
}

/// The ring runs until it stalls: what the dead had sent in full is finished, and its own chunk once it had sent its mean.
fn dies_unseen(wire: &str, members: u32, dead: u32, at: u32) {
    let fault = vec![Fault::DieAtSegment(0, at), Fault::NoticedAfter(30_000)];
    let o = check(&scenario(wire, members, &[(dead, fault)]));
    let close = first(&o);
    let seen = format!("{wire}, {dead} of {members} at {at}: {close:?}");
    assert_eq!((close.view, close.summed.len()), (1, members as usize), "{seen}");
    if !wire.starts_with('q') {
        assert_eq!(close.kept, (at / SEGMENTS).min(members) as usize, "{seen}");
    } else if at >= sent(wire, members) - SEGMENTS {
        assert_eq!(close.kept, members as usize, "{seen}");
    }
}

/// Its connections are found dead at once, while the rest of the ring runs on.
fn dies_seen(wire: &str, members: u32, dead: u32, at: u32) {
    let o = check(&scenario(
        wire,
        members,
        &[(dead, vec![Fault::DieAtSegment(0, at)])],
    ));
    let close = first(&o);
    assert_eq!(
        (close.view, close.summed.len()),
        (1, members as usize),
        "{wire}, {dead} of {members} at {at}: {close:?}"
    );
}

#[test]
fn a_second_death_in_the_view_that_keeps_is_met_with_what_both_views_have_finished() {
    let mut kept = 0;
    for wire in WIRES {
        for (second, seen) in [(3, 0), (4, 30_000), (6, 30_000)] {
            for at in (2..24).step_by(3) {
                for again in (0..sent(wire, 7)).step_by(5) {
                    let die = |at| vec![Fault::DieAtSegment(0, at), Fault::NoticedAfter(seen)];
                    let o = check(&scenario(wire, 7, &[(1, die(at)), (second, die(at + again))]));
                    assert_eq!(first(&o).summed.len(), 7, "{wire} {at} {again}");
                    kept += first(&o).kept;
                }
            }
        }
    }
    assert!(kept > 0);
}

#[test]
fn a_liar_is_named_though_its_sums_were_finished_in_an_earlier_view() {
    for wire in WIRES {
        for (liar, dead) in [(0, 2), (3, 2), (1, 6)] {
            for at in (0..sent(wire, 7)).step_by(3) {
                let dies = vec![Fault::DieAtSegment(0, at), Fault::NoticedAfter(30_000)];
                let o = check(&scenario(
                    wire,
                    7,
                    &[(liar, vec![Fault::FalseSum(0)]), (dead, dies)],
                ));
                let seen = format!("{wire}, {liar} lies, {dead} dies at {at}: {o:#?}");
                let named = o.named.get(&liar).unwrap_or_else(|| panic!("{seen}"));
                let honest = (0..7).filter(|m| *m != liar && *m != dead);
                assert!(honest.clone().all(|m| named.contains(&m)), "{seen}");
                assert_eq!(o.named.len(), 1, "{seen}");
                assert_eq!(first(&o).summed.len(), 7, "{seen}");
                assert!(!o.closes[1].summed.contains(&liar), "{seen}");
            }
        }
    }
}

/// Its own word does not convict the dead less: those after it have its hops.
#[test]
fn a_liar_that_dies_is_named() {
    for wire in WIRES {
        for at in (SEGMENTS..sent(wire, 5)).step_by(3) {
            let lies = vec![
                Fault::FalseSum(0),
                Fault::DieAtSegment(0, at),
                Fault::NoticedAfter(30_000),
            ];
            let o = check(&scenario(wire, 5, &[(2, lies)]));
            let kept_some = !wire.starts_with('q') || at + SEGMENTS >= sent(wire, 5);
            if kept_some {
                assert_eq!(o.named.get(&2).map(|by| by.len()), Some(4), "{wire} {at}: {o:#?}");
            }
            assert!(o.named.keys().all(|named| *named == 2));
        }
    }
}

#[test]
fn who_says_to_hold_what_it_has_not_costs_a_view() {
    for wire in WIRES {
        for (liar, dead) in [(0, 2), (1, 2), (3, 2), (4, 2)] {
            for at in (0..sent(wire, 5)).step_by(3) {
                for seen in [0, 30_000] {
                    let dies = vec![Fault::DieAtSegment(0, at), Fault::NoticedAfter(seen)];
                    let faults = [(liar, vec![Fault::SaysAll(0)]), (dead, dies)];
                    let o = check(&scenario(wire, 5, &faults));
                    let close = first(&o);
                    assert_eq!(close.summed.len(), 5, "{wire} {liar} {at}: {o:#?}");
                    assert!(close.view <= 3, "{wire} {liar} {at}: {close:?}");
                }
            }
        }
    }
}

#[test]
fn a_member_that_was_silent_is_reordered_and_nothing_is_lost() {
    for wire in WIRES {
        for mute in 0..5 {
            let o = check(&scenario(wire, 5, &[(mute, vec![Fault::MuteInReduce(0)])]));
            assert_eq!(first(&o).summed.len(), 5);
        }
    }
}
