//! What every hop should have sent, from the committed deltas alone.

use crate::ids::Hash32;
use crate::ring::chain::{Place, Scope, Tally};
use crate::ring::{Contribution, Machine, Part, Segment};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The hash of what goes out at each place, in an order in which every hop comes after those it builds on.
pub type Expected = Vec<(Place, Hash32)>;

/// Replays the chunks named (of the ring, or of a grid's rows) over `parts`, the contributions in manifest order. `None` when
/// there is not one part an entry, or they are of uneven length.
#[must_use]
pub fn expect(scope: &Scope, parts: &[Part], chunks: &BTreeSet<u32>) -> Option<Expected> {
    let (plan, layout) = (scope.plan, scope.plan.layout);
    let fits = |p: &Part| p.delta.len() == plan.elements;
    if parts.len() != layout.entries() as usize || !parts.iter().all(fits) {
        return None;
    }
    let machine = |slot: u32| {
        let part = layout.entry(slot).and_then(|e| parts.get(e as usize));
        let own = part.map_or_else(
            || Contribution::nothing(plan.elements),
            |p| Contribution::new(p.delta.clone(), p.weight),
        );
        Machine::new(plan, slot, own)
    };
    let mut replay = Replay {
        scope,
        chunks,
        travelling: VecDeque::new(),
        tallies: BTreeMap::new(),
        expected: Vec::new(),
    };
    let mut machines: Vec<Machine> = (0..layout.slots()).map(machine).collect();
    let mut out = Vec::new();
    for (slot, machine) in (0u32..).zip(&mut machines) {
        machine.start(&mut out);
        replay.sent(slot, &mut out);
    }
    while let Some((to, segment)) = replay.travelling.pop_front() {
        machines.get_mut(to as usize)?.receive(segment, &mut out).ok()?;
        replay.sent(to, &mut out);
    }
    Some(replay.expected)
}

struct Replay<'a> {
    scope: &'a Scope,
    chunks: &'a BTreeSet<u32>,
    travelling: VecDeque<(u32, Segment)>,
    tallies: BTreeMap<Place, Tally>,
    expected: Expected,
}

impl Replay<'_> {
    fn sent(&mut self, slot: u32, out: &mut Vec<Segment>) {
        for segment in out.drain(..) {
            let place = self
                .scope
                .signed_at(segment.phase, segment.step, segment.chunk, slot);
            if !self.chunks.contains(&self.scope.row_chunk(place)) {
                continue;
            }
            // Others pass on what its owner has sent.
            if place.slot == slot {
                self.hash(place, &segment);
            }
            let next = self.scope.plan.layout.next(slot, segment.phase.axis());
            self.travelling.push_back((next, segment));
        }
    }

    fn hash(&mut self, place: Place, segment: &Segment) {
        let segments = self.scope.segments(place);
        let tally = self.tallies.entry(place).or_insert_with(|| Tally::new(segments));
        tally.add(segment.segment, &segment.payload);
        if let Some(hash) = tally.hash() {
            self.tallies.remove(&place);
            self.expected.push((place, hash));
        }
    }
}
