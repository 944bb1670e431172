//! Segments of the ring: those of an honest run, altered as the bytes say, and others made of the bytes.

use gym_protocol::job::spec::Wire;
use gym_protocol::message::Phase;
use gym_protocol::ring::{Contribution, Grid, Layout, Machine, Plan, Segment};
use std::collections::VecDeque;

const ELEMENTS: usize = 700;

/// Feeds slot 0 of a ring.
pub fn run(data: &[u8]) {
    let mut bytes = data.iter().copied();
    let mut next = || bytes.next();
    let (Some(shape), Some(wire)) = (next(), next()) else {
        return;
    };
    let entries = 1 + u32::from(shape % 7);
    let grid = if wire & 2 == 0 { None } else { Grid::of(entries) };
    let Some(layout) = Layout::new(entries, grid) else {
        return;
    };
    let plan = Plan {
        layout,
        wire: match wire & 5 {
            0 => Wire::F32,
            1 => Wire::Q8,
            4 => Wire::Bf16,
            _ => Wire::Q4,
        },
        total_weight: 3 * u64::from(entries),
        elements: ELEMENTS - usize::from(shape / 7),
        segment: 256,
    };
    let mut honest: VecDeque<Segment> = to_slot_0(plan).into();
    let mut ring = slot(plan, 0);
    let mut out = Vec::new();
    ring.start(&mut out);
    while let Some(act) = next() {
        let mut segment = match act % 4 {
            0 | 1 => honest.pop_front(),
            2 => honest.front().cloned(),
            _ => honest.pop_back(),
        }
        .unwrap_or(Segment {
            phase: Phase::AllGather,
            step: 0,
            chunk: 0,
            segment: 0,
            payload: Vec::new(),
        });
        alter(&mut segment, act / 4, &mut next);
        // The ring is over with the first wrong segment; going on must still be safe.
        let _ = ring.receive(segment, &mut out);
        out.clear();
    }
    let _ = ring.finish();
    let _ = ring.missing();
}

fn alter(segment: &mut Segment, how: u8, next: &mut impl FnMut() -> Option<u8>) {
    let mut number = || next().unwrap_or(0);
    match how % 8 {
        0..3 => {}
        3 => {
            let at = usize::from(number()) * 256 + usize::from(number());
            let length = segment.payload.len().max(1);
            if let Some(byte) = segment.payload.get_mut(at % length) {
                *byte = number();
            }
        }
        4 => segment.payload.truncate(usize::from(number())),
        5 => segment.payload.push(number()),
        6 => segment.step = u32::from(number()).wrapping_mul(0x0101_0101),
        _ => {
            segment.phase = Phase::from_number(number() % 8).expect("eight phases");
            segment.chunk = u32::from(number()).wrapping_mul(0x0101_0101);
            segment.segment = u32::from(number());
        }
    }
}

fn slot(plan: Plan, slot: u32) -> Machine {
    let value = |i: usize| ((i * 31 + slot as usize * 7) % 19) as f32 * 0.125 - 1.0;
    let own = match plan.layout.entry(slot) {
        Some(_) => Contribution::new((0..plan.elements).map(value).collect(), 3),
        None => Contribution::nothing(plan.elements),
    };
    Machine::new(plan, slot, own)
}

/// What slot 0 receives when all are honest.
fn to_slot_0(plan: Plan) -> Vec<Segment> {
    let mut rings: Vec<Machine> = (0..plan.layout.slots()).map(|i| slot(plan, i)).collect();
    let mut travelling = VecDeque::new();
    let mut received = Vec::new();
    let mut out = Vec::new();
    for (i, ring) in (0..).zip(&mut rings) {
        ring.start(&mut out);
        travelling.extend(out.drain(..).map(|segment| (i, segment)));
    }
    while let Some((from, segment)) = travelling.pop_front() {
        let to = plan.layout.next(from, segment.phase.axis());
        if to == 0 {
            received.push(segment.clone());
        }
        let machine = &mut rings[to as usize];
        machine
            .receive(segment, &mut out)
            .expect("an honest segment is taken");
        travelling.extend(out.drain(..).map(|segment| (to, segment)));
    }
    received
}
