//! The ring's machines against their replay.

mod grid;
mod kept;

use super::*;
use crate::job::spec::Wire;
use crate::message::Phase;
use crate::pack;
use crate::quant::{BLOCK, Levels};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::collections::VecDeque;

const SEGMENT: usize = 512;

fn parts(n: usize, l: usize, seed: u64) -> Vec<Part> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..n)
        .map(|_| Part {
            delta: (0..l).map(|_| rng.random_range(-1.0f32..1.0)).collect(),
            weight: rng.random_range(1..100),
        })
        .collect()
}

fn rings(parts: &[Part], wire: Wire) -> Vec<Ring> {
    let schedule = Schedule {
        slots: parts.len() as u32,
        elements: parts[0].delta.len(),
        segment: SEGMENT,
    };
    let total_weight = parts.iter().fold(0u64, |sum, p| sum.saturating_add(p.weight));
    parts
        .iter()
        .enumerate()
        .map(|(i, p)| {
            let config = Config {
                schedule,
                slot: i as u32,
                wire,
                total_weight,
            };
            Ring::new(config, Contribution::new(p.delta.clone(), p.weight))
        })
        .collect()
}

/// Runs a ring with links that are FIFO each but served in random order; returns results and bytes sent by slot.
fn run(rings: &mut [Ring], seed: u64) -> (Vec<Reduced>, Vec<usize>) {
    let n = rings.len();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut links: Vec<VecDeque<Segment>> = vec![VecDeque::new(); n];
    let mut bytes = vec![0; n];
    let mut out = Vec::new();
    for i in 0..n {
        rings[i].start(&mut out);
        bytes[i] += out.iter().map(|s| s.payload.len()).sum::<usize>();
        links[i].extend(out.drain(..));
    }
    loop {
        let mut busy: Vec<usize> = (0..n).filter(|i| !links[*i].is_empty()).collect();
        busy.shuffle(&mut rng);
        let Some(from) = busy.first().copied() else { break };
        let to = (from + 1) % n;
        let segment = links[from].pop_front().unwrap();
        rings[to].receive(segment, &mut out).unwrap();
        bytes[to] += out.iter().map(|s| s.payload.len()).sum::<usize>();
        links[to].extend(out.drain(..));
    }
    (
        rings.iter().map(|r| r.finish().expect("finished")).collect(),
        bytes,
    )
}

#[test]
fn every_slot_ends_with_the_replayed_bits() {
    for wire in Wire::ALL {
        for (n, l) in [
            (1, 10),
            (2, 1),
            (2, 5000),
            (3, 2),
            (4, 7001),
            (7, 10_000),
            (13, 4_099),
        ] {
            let p = parts(n, l, 7 + n as u64);
            let (results, _) = run(&mut rings(&p, wire), 3);
            let expected = replay(&p, wire, SEGMENT).unwrap();
            for (i, r) in results.iter().enumerate() {
                let same = r
                    .mean
                    .iter()
                    .zip(&expected)
                    .all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same && r.mean.len() == l, "{wire:?} n={n} l={l} slot {i}");
            }
        }
    }
}

#[test]
fn f32_sum_is_the_stated_order() {
    has_the_stated_order(Wire::F32, |v| v);
}

#[test]
fn bf16_sum_is_rounded_at_every_hop_and_the_mean_once() {
    has_the_stated_order(Wire::Bf16, |v| half::bf16::from_f32(v).to_f32());
}

fn has_the_stated_order(wire: Wire, travels: impl Fn(f32) -> f32) {
    let p = parts(4, 1000, 1);
    let (results, _) = run(&mut rings(&p, wire), 1);
    let schedule = Schedule {
        slots: 4,
        elements: 1000,
        segment: SEGMENT,
    };
    let total: u64 = p.iter().map(|x| x.weight).sum();
    for c in 0..4u32 {
        for e in schedule.chunk(c) {
            let mut sum = p[c as usize].delta[e] * p[c as usize].weight as f32;
            for k in 1..4 {
                let m = &p[(c as usize + k) % 4];
                sum = travels(sum) + m.delta[e] * m.weight as f32;
            }
            for r in &results {
                assert_eq!(r.mean[e].to_bits(), travels(sum / total as f32).to_bits());
            }
        }
    }
}

#[test]
fn integers_are_near_the_exact_mean_and_the_residual_says_how_near() {
    near_the_exact_mean(Wire::Q8, 127.0);
    near_the_exact_mean(Wire::Q4, 7.0);
}

fn near_the_exact_mean(wire: Wire, most: f32) {
    let p = parts(5, 3000, 2);
    let (results, _) = run(&mut rings(&p, wire), 2);
    let total: u64 = p.iter().map(|x| x.weight).sum();
    for e in 0..3000 {
        let exact: f64 = p
            .iter()
            .map(|x| f64::from(x.delta[e]) * x.weight as f64)
            .sum::<f64>()
            / total as f64;
        // Each of 5 contributions is off by at most half a scale (weights below 100, |Δ| below 1), the mean by half of its own.
        let bound = 0.5 * 5.0 * 100.0 / f64::from(most) / total as f64 + 0.5 / 127.0;
        assert!(
            (f64::from(results[0].mean[e]) - exact).abs() < bound,
            "element {e}"
        );
    }
    for (r, part) in results.iter().zip(&p) {
        assert!(r.residual.iter().any(|v| *v != 0.0));
        let bound = 0.5 * (100.0 / most) / part.weight as f32 + 1e-6;
        assert!(r.residual.iter().all(|v| v.abs() <= bound));
    }
}

#[test]
fn bytes_are_the_theorys() {
    let l = 9_973;
    for n in [2, 3, 4, 9] {
        let p = parts(n, l, 4);
        let (_, bytes) = run(&mut rings(&p, Wire::F32), 5);
        let schedule = Schedule {
            slots: n as u32,
            elements: l,
            segment: SEGMENT,
        };
        let total: usize = bytes.iter().sum();
        assert_eq!(total, 2 * (n - 1) * l * 4, "f32 over all slots");
        let (_, bytes) = run(&mut rings(&p, Wire::Bf16), 5);
        let total: usize = bytes.iter().sum();
        assert_eq!(total, 2 * (n - 1) * l * 2, "bf16 over all slots");
        integer_bytes(&p, schedule, Wire::Q8, Levels::Q8);
        integer_bytes(&p, schedule, Wire::Q4, Levels::Q4);
    }
}

fn integer_bytes(p: &[Part], schedule: Schedule, wire: Wire, levels: Levels) {
    let n = p.len();
    let (_, bytes) = run(&mut rings(p, wire), 5);
    for (i, sent) in bytes.iter().enumerate() {
        let mut want = 0;
        for step in 0..n as u32 - 1 {
            let next = (i as u32 + 1) % n as u32;
            for phase in [
                Phase::ScaleReduce,
                Phase::ScaleGather,
                Phase::ScatterReduce,
                Phase::AllGather,
            ] {
                let c = schedule.received(phase, next, step);
                for g in 0..schedule.segments(phase, c) {
                    let units = schedule.segment_range(phase, c, g).len();
                    want += match phase {
                        Phase::ScaleReduce | Phase::ScaleGather => units * 4,
                        Phase::ScatterReduce => (units * pack::width(levels, step + 1) as usize).div_ceil(8),
                        Phase::AllGather => units + units.div_ceil(BLOCK) * 4,
                        Phase::ColumnScaleReduce
                        | Phase::ColumnScaleGather
                        | Phase::ColumnScatterReduce
                        | Phase::ColumnAllGather => panic!("a ring has no columns"),
                    };
                }
            }
        }
        assert_eq!(*sent, want, "{wire:?} n={n} slot {i}");
    }
}

#[test]
fn what_the_schedule_does_not_expect_is_refused() {
    let p = parts(3, 3000, 6);
    let mut all = rings(&p, Wire::F32);
    let mut out = Vec::new();
    all[0].start(&mut out);
    let good = out[0].clone();
    let ring = &mut all[1];
    let mut sink = Vec::new();
    let wrong_chunk = Segment {
        chunk: (good.chunk + 1) % 3,
        ..good.clone()
    };
    assert!(matches!(
        ring.receive(wrong_chunk, &mut sink),
        Err(RingError::Unexpected { .. })
    ));
    let wrong_phase = Segment {
        phase: Phase::ScaleReduce,
        ..good.clone()
    };
    assert!(matches!(
        ring.receive(wrong_phase, &mut sink),
        Err(RingError::Unexpected { .. })
    ));
    let short = Segment {
        payload: good.payload[..8].to_vec(),
        ..good.clone()
    };
    assert!(matches!(
        ring.receive(short, &mut sink),
        Err(RingError::Length { .. })
    ));
    let mut nan = good.clone();
    nan.payload[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
    assert!(matches!(
        ring.receive(nan, &mut sink),
        Err(RingError::Value { element: 1, .. })
    ));
    assert!(ring.receive(good.clone(), &mut sink).is_ok());
    assert!(matches!(
        ring.receive(good, &mut sink),
        Err(RingError::Twice { .. })
    ));
}

#[test]
fn impossible_values_are_refused_at_every_precision() {
    let (sum, maximum) = (Phase::ScatterReduce, Phase::ScaleReduce);
    for (wire, phase, at, bytes) in [
        (Wire::F32, sum, 8, &f32::INFINITY.to_le_bytes()[..]),
        (Wire::F32, sum, 8, &3e38f32.to_le_bytes()),
        (Wire::Bf16, sum, 4, &[0xc0, 0x7f]),
        (Wire::Bf16, sum, 4, &[0x7f, 0x7f]),
        (Wire::Q8, sum, 2, &[0x80]),
        (Wire::Q4, sum, 1, &[0x08]),
        (Wire::Q8, maximum, 8, &f32::INFINITY.to_le_bytes()),
        (Wire::Q8, maximum, 8, &3e38f32.to_le_bytes()),
        (Wire::Q4, maximum, 8, &(-1f32).to_le_bytes()),
    ] {
        let p = parts(3, 3000, 6);
        let mut all = rings(&p, wire);
        let (mut travelling, mut out) = (VecDeque::new(), Vec::new());
        for (i, ring) in all.iter_mut().enumerate() {
            ring.start(&mut out);
            travelling.extend(out.drain(..).map(|s| ((i + 1) % 3, s)));
        }
        let refused = loop {
            let (to, mut segment): (usize, Segment) = travelling.pop_front().expect("refused by now");
            if (segment.phase, segment.step) == (phase, 0) {
                segment.payload[at..at + bytes.len()].copy_from_slice(bytes);
            }
            match all[to].receive(segment, &mut out) {
                Ok(()) => travelling.extend(out.drain(..).map(|s| ((to + 1) % 3, s))),
                Err(e) => break e,
            }
        };
        assert!(
            matches!(refused, RingError::Value { element: 2, .. }),
            "{wire:?} {phase:?}: {refused:?}"
        );
    }
}

#[test]
fn the_largest_deltas_and_weights_are_summed() {
    for wire in Wire::ALL {
        let part = |sign: f32| Part {
            delta: vec![sign * crate::quant::MAX_DELTA; 2_000],
            weight: u64::MAX,
        };
        for p in [vec![part(1.0); 5], [1.0, -1.0, 1.0, 1.0].map(part).to_vec()] {
            let (results, _) = run(&mut rings(&p, wire), 1);
            assert!(
                results.iter().all(|r| r.mean.iter().all(|v| v.is_finite())),
                "{wire:?}"
            );
            let grid = Layout::for_members(p.len() as u32, 3);
            let mean = replay_in(grid, &p, wire, SEGMENT).expect("nothing is refused");
            assert!(mean.iter().all(|v| v.is_finite()), "{wire:?}");
        }
    }
}

#[test]
fn what_rounding_left_over_comes_with_the_next_rounds() {
    // A small direction beside a large one, which alone would be rounded away for ever.
    let l = 512;
    let truth: Vec<f32> = (0..l).map(|i| if i % 256 == 0 { 1.0 } else { 0.01 }).collect();
    for (wire, lost) in [(Wire::Q4, true), (Wire::Q8, false)] {
        let mut left = vec![vec![0.0; l]; 3];
        let (mut with, mut without) = (vec![0.0f64; l], vec![0.0f64; l]);
        for _ in 0..50 {
            let fed = left.iter().map(|left| Part {
                delta: truth.iter().zip(left).map(|(d, r)| d + r).collect(),
                weight: 4,
            });
            let fed: Vec<Part> = fed.collect();
            let (results, _) = run(&mut rings(&fed, wire), 1);
            let plain = vec![
                Part {
                    delta: truth.clone(),
                    weight: 4,
                };
                3
            ];
            let plain = replay(&plain, wire, SEGMENT).unwrap();
            for e in 0..l {
                with[e] += f64::from(results[0].mean[e]);
                without[e] += f64::from(plain[e]);
            }
            left = results.into_iter().map(|r| r.residual).collect();
        }
        // What is still owed is at most half a scale; the mean's own rounding adds to it.
        assert!(
            (with[1] - 0.5).abs() < 0.5 / 7.0 + 50.0 * 0.5 / 127.0,
            "{wire:?}: {}",
            with[1]
        );
        assert_eq!(without[1] == 0.0, lost, "{wire:?}: {}", without[1]);
        assert!(with[1] > 0.25, "{wire:?}: {}", with[1]);
    }
}
