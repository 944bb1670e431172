//! Segments of the ring: those of an honest run, altered as the bytes say, and others made of the bytes.

use gym_protocol::job::spec::Wire;
use gym_protocol::message::Phase;
use gym_protocol::ring::{Config, Contribution, Ring, Schedule, Segment};
use std::collections::VecDeque;

const ELEMENTS: usize = 700;

/// Feeds slot 0 of a ring.
pub fn run(data: &[u8]) {
    let mut bytes = data.iter().copied();
    let mut next = || bytes.next();
    let (Some(shape), Some(wire)) = (next(), next()) else { return };
    let schedule = Schedule {
        slots: 1 + u32::from(shape % 5),
        elements: ELEMENTS - usize::from(shape / 5),
        segment: 256,
    };
    let wire = if wire % 2 == 0 { Wire::F32 } else { Wire::Q8 };
    let mut honest: VecDeque<Segment> = to_slot_0(schedule, wire).into();
    let mut ring = slot(schedule, wire, 0);
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
            segment.phase = Phase::from_number(number() % 4).expect("four phases");
            segment.chunk = u32::from(number()).wrapping_mul(0x0101_0101);
            segment.segment = u32::from(number());
        }
    }
}

fn slot(schedule: Schedule, wire: Wire, slot: u32) -> Ring {
    let value = |i: usize| ((i * 31 + slot as usize * 7) % 19) as f32 * 0.125 - 1.0;
    let delta = (0..schedule.elements).map(value).collect();
    let config = Config {
        schedule,
        slot,
        wire,
        total_weight: 3 * u64::from(schedule.slots),
    };
    Ring::new(config, Contribution::new(delta, 3))
}

/// What slot 0 receives when all are honest.
fn to_slot_0(schedule: Schedule, wire: Wire) -> Vec<Segment> {
    let n = schedule.slots as usize;
    let mut rings: Vec<Ring> = (0..schedule.slots).map(|i| slot(schedule, wire, i)).collect();
    let mut inboxes = vec![VecDeque::new(); n];
    let mut received = Vec::new();
    for (i, ring) in rings.iter_mut().enumerate() {
        let mut out = Vec::new();
        ring.start(&mut out);
        inboxes[(i + 1) % n].extend(out);
    }
    while let Some(i) = inboxes.iter().position(|inbox| !inbox.is_empty()) {
        let Some(segment) = inboxes[i].pop_front() else { continue };
        if i == 0 {
            received.push(segment.clone());
        }
        let mut out = Vec::new();
        rings[i].receive(segment, &mut out).expect("an honest segment is taken");
        inboxes[(i + 1) % n].extend(out);
    }
    received
}
