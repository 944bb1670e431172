//! Whatever a slot's predecessor sends, and when: the slot signs nothing that convicts it, and sends nothing that its
//! successor refuses.

use super::*;
use crate::ring::{Axis, Expected};

/// What comes to `slot` in a correct run, in its order.
fn inbound(stage: &Stage, slot: u32) -> Vec<Segment> {
    let layout = stage.scope.plan.layout;
    let mut machines = stage.machines();
    let (mut travelling, mut out, mut came) = (VecDeque::new(), Vec::new(), Vec::new());
    let carry = |from: u32, out: &mut Vec<Segment>, travelling: &mut VecDeque<(u32, Segment)>| {
        travelling.extend(out.drain(..).map(|s| (layout.next(from, s.phase.axis()), s)));
    };
    for (from, machine) in (0u32..).zip(&mut machines) {
        machine.start(&mut out);
        carry(from, &mut out, &mut travelling);
    }
    while let Some((to, segment)) = travelling.pop_front() {
        if to == slot {
            came.push(segment.clone());
        }
        machines[to as usize].receive(segment, &mut out).unwrap();
        carry(to, &mut out, &mut travelling);
    }
    came
}

/// One slot, and what should come to it and be signed by it.
struct Victim<'a> {
    stage: &'a Stage,
    expected: &'a Expected,
    slot: u32,
    came: Vec<Segment>,
}

impl Victim<'_> {
    /// Gives it these segments, refused ones too, and holds what it signs and sends to account.
    fn play(&self, segments: &[Segment], what: &str) {
        let mut machine = self.stage.machines().swap_remove(self.slot as usize);
        let mut sent = Vec::new();
        machine.start(&mut sent);
        for segment in segments {
            let _ = machine.receive(segment.clone(), &mut sent);
        }
        let (scope, keys) = (&self.stage.scope, Keys(peer(0)));
        let shown: Vec<(Place, Hop)> = machine.hops().iter().map(|(p, h)| (*p, *h)).collect();
        let verdict = judge(scope, self.expected, &shown, &self.stage.everyone(), &keys);
        let me = self.stage.server(self.slot);
        assert!(
            !matches!(&verdict, Verdict::Found(f) if f.member == me),
            "slot {} of {:?}, {what}: {verdict:?}",
            self.slot,
            scope.plan
        );
        let layout = scope.plan.layout;
        for axis in layout.axes() {
            self.successor_takes(*axis, layout.next(self.slot, *axis), &sent, what);
        }
    }

    /// The successor along a line, which has all that comes along its other line, refuses nothing.
    fn successor_takes(&self, axis: Axis, slot: u32, sent: &[Segment], what: &str) {
        let mut machine = self.stage.machines().swap_remove(slot as usize);
        let mut out = Vec::new();
        machine.start(&mut out);
        if axis == Axis::Column {
            let row = |s: &Segment| s.phase.axis() == Axis::Row;
            let before_columns = [Phase::ScaleReduce, Phase::ScatterReduce];
            for segment in inbound(self.stage, slot).into_iter().filter(row) {
                if before_columns.contains(&segment.phase) {
                    machine.receive(segment, &mut out).unwrap();
                }
            }
        }
        for segment in sent.iter().filter(|s| s.phase.axis() == axis) {
            let taken = machine.receive(segment.clone(), &mut out);
            assert!(
                taken.is_ok(),
                "slot {} of {:?}, {what}: its successor says {taken:?}",
                self.slot,
                self.stage.scope.plan
            );
        }
    }

    /// Every segment moved to every earlier place, and another one, or one that is refused for its value, put there.
    fn every_disorder(&self) {
        let n = self.came.len();
        for (i, j) in (0..n).flat_map(|j| (0..=j).map(move |i| (i, j))) {
            let late = &self.came[j];
            let what = |how: &str| {
                let (phase, step, g) = (late.phase, late.step, late.segment);
                format!("{phase:?} step {step} segment {g} at {i} of {j}: {how}")
            };
            let mut moved = self.came.clone();
            let segment = moved.remove(j);
            moved.insert(i, segment);
            self.play(&moved, &what("moved"));
            for (how, damage) in [("changed", change as Damage), ("impossible", spoil as Damage)] {
                self.play(&self.with(i, vec![self.damaged(late, damage)]), &what(how));
            }
            if late.segment == 0 && late.phase.gathers().is_some() {
                self.play(
                    &self.with(i, self.of_a_colluding_owner(late)),
                    &what("signed anew"),
                );
            }
        }
    }

    fn with(&self, at: usize, foreign: Vec<Segment>) -> Vec<Segment> {
        let mut all = self.came.clone();
        all.splice(at..at, foreign);
        all
    }

    fn place(&self, s: &Segment) -> Place {
        let before = self.stage.scope.plan.layout.before(self.slot, s.phase.axis());
        self.stage.scope.signed_at(s.phase, s.step, s.chunk, before)
    }

    /// A segment with another payload; a hop behind it stays as it is.
    fn damaged(&self, s: &Segment, damage: Damage) -> Segment {
        let (scope, place, mut s) = (&self.stage.scope, self.place(s), s.clone());
        let is_last = s.segment + 1 == scope.segments(place);
        let hop = s
            .payload
            .split_off(s.payload.len() - if is_last { HOP_BYTES } else { 0 });
        let place = Place {
            step: s.step,
            ..place
        };
        damage(scope, place, &mut s.payload);
        s.payload.extend(hop);
        s
    }

    /// A gathered chunk that is not what was summed, with its owner's good signature.
    fn of_a_colluding_owner(&self, first: &Segment) -> Vec<Segment> {
        let (scope, place) = (&self.stage.scope, self.place(first));
        let chunk = |s: &&Segment| (s.phase, s.step, s.chunk) == (first.phase, first.step, first.chunk);
        let mut all: Vec<Segment> = self
            .came
            .iter()
            .filter(chunk)
            .map(|s| self.damaged(s, change))
            .collect();
        let mut tally = Tally::new(scope.segments(place));
        let last = all.pop().unwrap();
        all.iter().for_each(|s| tally.add(s.segment, &s.payload));
        let (text, _) = last.payload.split_at(last.payload.len() - HOP_BYTES);
        tally.add(last.segment, text);
        let keys = Keys(self.stage.server(place.slot));
        let said = [Hash32([7; 32]), tally.hash().unwrap(), Hash32([8; 32])];
        let hop = Hop::sign(scope, place, said, &keys);
        let payload = [text, &hop.to_bytes()].concat();
        all.push(Segment { payload, ..last });
        all
    }
}

type Damage = fn(&Scope, Place, &mut Vec<u8>);

/// A last value that no honest sum could hold: what comes before it in the segment may be added by then.
fn spoil(scope: &Scope, place: Place, payload: &mut Vec<u8>) {
    let last: &[u8] = match (place.phase, Form::of(scope.plan.wire)) {
        (Phase::ScatterReduce | Phase::ColumnScatterReduce, Form::Integers(_)) => &[0x80; 4],
        (_, Form::Floats(Float::Bf16)) => &[0xc0, 0x7f],
        // A value, a maximum, or the last scale of a mean.
        _ => &f32::NAN.to_le_bytes(),
    };
    payload.truncate(payload.len() - last.len());
    payload.extend_from_slice(last);
}

fn disorder(stage: &Stage, slots: &[u32]) {
    let expected = expect(&stage.scope, &stage.parts, &stage.whole()).unwrap();
    for slot in slots.iter().copied() {
        let came = inbound(stage, slot);
        Victim {
            stage,
            expected: &expected,
            slot,
            came,
        }
        .every_disorder();
    }
}

#[test]
fn no_order_of_a_rings_segments_convicts_who_takes_them() {
    for wire in Wire::ALL {
        disorder(&Stage::new(wire, 3, None, 3_200, 1), &[0, 1, 2]);
        disorder(&Stage::new(wire, 2, None, 2_000, 1), &[1]);
        // Segments of which a part is added before a value at their end is looked at.
        disorder(&Stage::in_segments(2_560, wire, 3, None, 9_000, 1), &[1]);
    }
}

#[test]
fn no_order_of_a_grids_segments_convicts_who_takes_them() {
    for wire in Wire::ALL {
        disorder(&Stage::new(wire, 4, Some((2, 2)), 2_700, 1), &[0, 3]);
        disorder(&Stage::new(wire, 6, Some((3, 2)), 2_700, 1), &[2]);
    }
}
