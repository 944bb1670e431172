//! The first message of every phase, at every precision, as it stands on a sealed link before it is sealed: the header's
//! bytes and the payload (`tests/vectors/ring.json`). `scripts/delta-check` computes the same payloads from the deltas in
//! the file. A change is a change of the wire; `GYM_WRITE_VECTORS=1 cargo test --test ring_vectors` writes it anew.

#![allow(clippy::unwrap_used, reason = "a test")]

#[allow(dead_code, reason = "other tests use the rest")]
mod messages;

use gym_protocol::cbor::to_wire;
use gym_protocol::job::spec::Wire;
use gym_protocol::message::{LinkHeader, Phase};
use gym_protocol::ring::{Config, Contribution, Ring, Schedule, Segment};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};

const SLOTS: u32 = 3;
const ELEMENTS: usize = 1000;
const WEIGHTS: [u64; 3] = [5, 3, 8];
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/ring.json");

/// Deltas whose rounding shows: thirds and sevenths, a block of zeros.
fn delta(slot: u32) -> Vec<f32> {
    let value = |i: usize| {
        if i / 256 == 1 {
            return 0.0;
        }
        let numerator = ((i * 37 + slot as usize * 101) % 211) as f32 - 105.0;
        numerator / (3.0 + slot as f32 * 4.0) * 1e-3
    };
    (0..ELEMENTS).map(value).collect()
}

/// The first segment of each phase that any slot sends, and who sends it.
fn first_of_each_phase(wire: Wire) -> BTreeMap<Phase, (u32, Segment)> {
    let schedule = Schedule {
        slots: SLOTS,
        elements: ELEMENTS,
        segment: 262_144,
    };
    let config = |slot| Config {
        schedule,
        slot,
        wire,
        total_weight: WEIGHTS.iter().sum(),
    };
    let mut rings: Vec<Ring> = (0..SLOTS)
        .map(|slot| {
            Ring::new(
                config(slot),
                Contribution::new(delta(slot), WEIGHTS[slot as usize]),
            )
        })
        .collect();
    let (mut travelling, mut out, mut first) = (VecDeque::new(), Vec::new(), BTreeMap::new());
    for (slot, ring) in (0..).zip(&mut rings) {
        ring.start(&mut out);
        travelling.extend(out.drain(..).map(|segment| (slot, segment)));
    }
    while let Some((from, segment)) = travelling.pop_front() {
        first
            .entry(segment.phase)
            .or_insert_with(|| (from, segment.clone()));
        let to = (from + 1) % SLOTS;
        rings[to as usize].receive(segment, &mut out).unwrap();
        travelling.extend(out.drain(..).map(|segment| (to, segment)));
    }
    first
}

fn message(from: u32, segment: &Segment) -> Value {
    let header = LinkHeader {
        phase: segment.phase.number(),
        step: segment.step,
        chunk: segment.chunk,
        segment: segment.segment,
        slot: from,
        ..messages::header()
    };
    json!({
        "header": hex::encode(to_wire(&header).unwrap()),
        "payload": hex::encode(&segment.payload),
    })
}

fn current() -> Value {
    let messages = |wire| {
        let first = first_of_each_phase(wire);
        let messages = first.values().map(|(from, segment)| message(*from, segment));
        messages.collect::<Vec<_>>()
    };
    let bytes = |delta: Vec<f32>| hex::encode(delta.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
    json!({
        "deltas": (0..SLOTS).map(|slot| bytes(delta(slot))).collect::<Vec<_>>(),
        "weights": WEIGHTS,
        "f32": messages(Wire::F32),
        "bf16": messages(Wire::Bf16),
        "q8": messages(Wire::Q8),
        "q4": messages(Wire::Q4),
    })
}

#[test]
fn the_messages_keep_their_bytes() {
    let current = current();
    if std::env::var_os("GYM_WRITE_VECTORS").is_some() {
        std::fs::write(FILE, serde_json::to_string_pretty(&current).unwrap() + "\n").unwrap();
    }
    let frozen: Value = serde_json::from_str(&std::fs::read_to_string(FILE).unwrap()).unwrap();
    for (wire, phases) in [("f32", 2), ("bf16", 2), ("q8", 4), ("q4", 4)] {
        assert_eq!(frozen[wire].as_array().unwrap().len(), phases);
    }
    assert!(current == frozen, "the ring's messages have changed");
}
