//! Grids: the same bits at every slot and in a replay, the stated order, the ring's bytes, refusals.

use super::{SEGMENT, parts};
use crate::job::spec::Wire;
use crate::message::Phase;
use crate::quant::{self, Form, Levels, Q8};
use crate::ring::{
    Axis, Contribution, Grid, Layout, Machine, Part, Plan, Reduced, RingError, Schedule, Segment, replay_in,
};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::VecDeque;

fn layout(n: u32, rows: u32, columns: u32) -> Layout {
    Layout::new(n, Some(Grid { rows, columns })).unwrap()
}

fn machines(layout: Layout, parts: &[Part], wire: Wire) -> Vec<Machine> {
    let elements = parts[0].delta.len();
    let plan = Plan {
        layout,
        wire,
        total_weight: parts.iter().map(|p| p.weight).sum(),
        elements,
        segment: SEGMENT,
    };
    (0..layout.slots())
        .map(|slot| {
            let own = match layout.entry(slot) {
                Some(e) => Contribution::new(parts[e as usize].delta.clone(), parts[e as usize].weight),
                None => Contribution::nothing(elements),
            };
            Machine::new(plan, slot, own)
        })
        .collect()
}

/// Runs a grid with links that are FIFO each but served in random order; gives results and bytes sent by slot.
fn run(layout: Layout, machines: &mut [Machine], seed: u64) -> (Vec<Reduced>, Vec<usize>) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut links = vec![VecDeque::new(); 2 * machines.len()];
    let mut bytes = vec![0; machines.len()];
    let mut busy = Vec::new();
    let mut out = Vec::new();
    let mut carry =
        |from: usize, out: &mut Vec<Segment>, links: &mut Vec<VecDeque<Segment>>, busy: &mut Vec<usize>| {
            for s in out.drain(..) {
                bytes[from] += s.payload.len();
                let link = 2 * from + usize::from(s.phase.axis() == Axis::Column);
                links[link].push_back(s);
                busy.push(link);
            }
        };
    for (i, machine) in machines.iter_mut().enumerate() {
        machine.start(&mut out);
        carry(i, &mut out, &mut links, &mut busy);
    }
    while !busy.is_empty() {
        let link = busy.swap_remove(rng.random_range(0..busy.len()));
        let segment = links[link].pop_front().unwrap();
        let to = layout.next(link as u32 / 2, segment.phase.axis()) as usize;
        machines[to].receive(segment, &mut out).unwrap();
        carry(to, &mut out, &mut links, &mut busy);
    }
    let results = machines.iter().map(|m| m.finish().expect("finished")).collect();
    (results, bytes)
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.to_bits() == y.to_bits())
}

#[test]
fn every_slot_ends_with_the_replayed_bits() {
    for wire in Wire::ALL {
        for (n, rows, columns, l) in [
            (4, 2, 2, 1),
            (4, 2, 2, 5_000),
            (6, 2, 3, 3),
            (9, 3, 3, 20_011),
            (10, 3, 4, 9_000),
            (11, 4, 3, 4_099),
            (3, 2, 2, 700),
            (20, 4, 5, 0),
        ] {
            let layout = layout(n, rows, columns);
            let p = parts(n as usize, l, 7 + u64::from(n));
            let (results, _) = run(layout, &mut machines(layout, &p, wire), 3);
            let expected = replay_in(layout, &p, wire, SEGMENT).unwrap();
            for (slot, r) in results.iter().enumerate() {
                assert!(
                    same_bits(&r.mean, &expected),
                    "{wire:?} {rows} × {columns} l={l} slot {slot}"
                );
            }
        }
    }
}

#[test]
fn the_f32_sum_has_the_stated_order() {
    has_the_stated_order(Wire::F32, |v| v);
}

#[test]
fn the_bf16_sum_is_rounded_where_it_travels() {
    has_the_stated_order(Wire::Bf16, |v| half::bf16::from_f32(v).to_f32());
}

fn has_the_stated_order(wire: Wire, travels: impl Fn(f32) -> f32) {
    let (rows, columns, l) = (3u32, 4u32, 9_001);
    let layout = layout(11, rows, columns);
    let p = parts(11, l, 5);
    let (results, _) = run(layout, &mut machines(layout, &p, wire), 1);
    let schedule = Schedule {
        slots: columns,
        elements: l,
        segment: SEGMENT,
    };
    let total = quant::weight_f32(p.iter().map(|x| x.weight).sum());
    let value = |row: u32, column: u32, e: usize| {
        layout
            .entry(row * columns + column)
            .map_or(0.0, |at| p[at as usize].delta[e] * p[at as usize].weight as f32)
    };
    for c in 0..columns {
        let chunk = schedule.chunk(c);
        let blocks = quant::blocks(chunk.len());
        for k in 0..rows {
            let piece = quant::chunk_range(crate::ids::ChunkIndex(k), rows, blocks);
            for e in (chunk.start + piece.start * 256)..(chunk.start + piece.end * 256).min(chunk.end) {
                let row_sum = |row: u32| {
                    (1..columns).fold(value(row, c, e), |sum, i| {
                        travels(sum) + value(row, (c + i) % columns, e)
                    })
                };
                let sum = (1..rows).fold(row_sum(k), |sum, i| travels(sum) + row_sum((k + i) % rows));
                assert_eq!(
                    results[0].mean[e].to_bits(),
                    travels(sum / total).to_bits(),
                    "chunk {c} piece {k} element {e}"
                );
            }
        }
    }
}

#[test]
fn the_integers_are_those_of_the_flat_ring_with_as_many_chunks() {
    integers_are_those_of_the_flat_ring(Wire::Q8, Levels::Q8);
    integers_are_those_of_the_flat_ring(Wire::Q4, Levels::Q4);
}

/// Scales are shared by block of a row chunk and sums are exact: the mean follows from the parts alone.
fn integers_are_those_of_the_flat_ring(wire: Wire, levels: Levels) {
    let (rows, columns, l) = (2u32, 3u32, 6_000);
    let layout = layout(6, rows, columns);
    let p = parts(6, l, 9);
    let (results, _) = run(layout, &mut machines(layout, &p, wire), 1);
    let schedule = Schedule {
        slots: columns,
        elements: l,
        segment: SEGMENT,
    };
    let total = quant::weight_f32(p.iter().map(|x| x.weight).sum());
    for c in 0..columns {
        let chunk = schedule.chunk(c);
        let mut max = vec![0.0; quant::blocks(chunk.len())];
        for x in &p {
            quant::max_in_place(
                &mut max,
                &quant::block_absmax(&x.delta[chunk.clone()], x.weight as f32),
            );
        }
        let scales = quant::scales(&max, levels);
        let mut sum = vec![0; chunk.len()];
        for x in &p {
            quant::add_integers(
                &mut sum,
                &quant::quantise(&x.delta[chunk.clone()], x.weight as f32, &scales, levels),
            );
        }
        let mean = Q8::encode(&quant::mean(&sum, &scales, total)).decode();
        assert!(same_bits(&results[3].mean[chunk], &mean), "chunk {c}");
    }
}

#[test]
fn a_grid_sends_the_rings_bytes() {
    // 2(N−1)/N·L·4 (bf16: ·2) for every member, to within a block of the pieces and an element of the chunks.
    let shapes = [(2, 2), (4, 8), (8, 8), (5, 20)].map(|shape| (Wire::F32, 4, shape));
    for (wire, size, (rows, columns)) in shapes.into_iter().chain([(Wire::Bf16, 2, (4, 8))]) {
        let n = rows * columns;
        let l = 200_000;
        let layout = layout(n, rows, columns);
        let p = parts(n as usize, l, 4);
        let (_, bytes) = run(layout, &mut machines(layout, &p, wire), 5);
        let theory = 2.0 * f64::from(n - 1) / f64::from(n) * l as f64 * size as f64;
        assert_eq!(
            bytes.iter().sum::<usize>(),
            2 * (n as usize - 1) * l * size,
            "all members"
        );
        for sent in bytes {
            assert!(
                (sent as f64 / theory - 1.0).abs() < 0.02,
                "{rows} × {columns}: {sent} of {theory}"
            );
        }
    }
}

#[test]
fn what_the_schedule_does_not_expect_is_refused() {
    let layout = layout(4, 2, 2);
    let p = parts(4, 3_000, 6);
    let mut all = machines(layout, &p, Wire::F32);
    let mut out = Vec::new();
    all[0].start(&mut out);
    let good = out[0].clone();
    let mut sink = Vec::new();
    let ring = &mut all[1];
    let mut refuse = |s: Segment| ring.receive(s, &mut sink).expect_err("refused");
    assert!(matches!(
        refuse(Segment {
            chunk: 1,
            ..good.clone()
        }),
        RingError::Unexpected { .. }
    ));
    assert!(matches!(
        refuse(Segment {
            step: 1,
            ..good.clone()
        }),
        RingError::Unexpected { .. }
    ));
    assert!(matches!(
        refuse(Segment {
            segment: 99,
            ..good.clone()
        }),
        RingError::Unexpected { .. }
    ));
    let scales = Segment {
        phase: Phase::ColumnScaleReduce,
        ..good.clone()
    };
    assert!(
        matches!(refuse(scales), RingError::Unexpected { .. }),
        "f32 has no scales"
    );
    let short = Segment {
        payload: good.payload[4..].to_vec(),
        ..good.clone()
    };
    assert!(matches!(refuse(short), RingError::Length { .. }));
    let column = Segment {
        phase: Phase::ColumnAllGather,
        step: 0,
        chunk: 1,
        ..good.clone()
    };
    assert!(matches!(
        refuse(column),
        RingError::Unexpected { .. } | RingError::Length { .. }
    ));
    assert!(ring_takes(&mut all[1], good.clone()));
    assert!(matches!(
        all[1].receive(good.clone(), &mut Vec::new()),
        Err(RingError::Twice { .. })
    ));
    let mut nan = good;
    nan.segment = 1;
    nan.payload[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    assert!(matches!(
        all[1].receive(nan, &mut Vec::new()),
        Err(RingError::Value { element: 0, .. })
    ));
}

fn level(wire: Wire) -> i32 {
    match Form::of(wire) {
        Form::Integers(levels) => levels.max(),
        Form::Floats(_) => 0,
    }
}

fn ring_takes(machine: &mut Machine, s: Segment) -> bool {
    machine.receive(s, &mut Vec::new()).is_ok()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_grid_is_its_replay(n in 4u32..40, l in 0usize..4_000, seed in 0u64..1_000, wire in proptest::sample::select(Wire::ALL.to_vec())) {
        let layout = Layout::for_members(n, 3);
        let p = parts(n as usize, l, seed);
        let (results, _) = run(layout, &mut machines(layout, &p, wire), seed);
        let expected = replay_in(layout, &p, wire, SEGMENT).unwrap();
        for r in &results {
            prop_assert!(same_bits(&r.mean, &expected));
        }
        // Near the exact mean: floats within the rounding of each hop, integers within half a scale of each contribution and
        // of the mean.
        let total: f64 = p.iter().map(|x| x.weight as f64).sum();
        let bound = match wire {
            Wire::F32 => 1e-5,
            Wire::Bf16 => f64::from(n) / 256.0,
            Wire::Q8 | Wire::Q4 => 100.0 / f64::from(level(wire)) * f64::from(n) / total + 0.01,
        };
        for (e, mean) in expected.iter().enumerate() {
            let exact: f64 = p.iter().map(|x| f64::from(x.delta[e]) * x.weight as f64).sum::<f64>() / total;
            prop_assert!((f64::from(*mean) - exact).abs() <= bound, "element {} {} {}", e, mean, exact);
        }
    }
}
