//! A slot's machine with its hop signatures (PROTOCOL section 6): who sent what of each chunk, so that a false sum can be
//! traced to the hop that made it.
//!
//! The hop of a chunk stands behind its last segment, 160 bytes. In the reduce phases every slot signs what it sends; in
//! the gathers the owner's word is passed on with the chunk. A slot takes a chunk for good only with a hop that fits what
//! came; its own sums may be under way by then, but their last segment waits.

mod hop;
mod kept;
mod scope;
mod tally;

pub use hop::{HOP_BYTES, HOP_DOMAIN, Hop, HopKeys, PLACED_BYTES, Place, placed_from_bytes, placed_to_bytes};
pub use kept::{Origin, ScopeError};
pub use scope::{Scope, Seat};
pub(in crate::ring) use tally::{Tally, digest, together};

use super::{Axis, Carried, Contribution, Finished, Machine, Reduced, RingError, Segment};
use crate::ids::Hash32;
use crate::message::Phase;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Phase, step and chunk, as one slot sees them.
type Turn = (Phase, u32, u32);

/// The machine of a slot that signs and checks hops.
#[derive(Debug)]
pub struct Chained {
    machine: Machine,
    slot: u32,
    scope: Arc<Scope>,
    keys: Arc<dyn HopKeys>,
    /// Chunks that are coming in, with their hops once the last segment is here.
    coming: BTreeMap<Turn, (Tally, Option<Hop>)>,
    going: BTreeMap<Turn, Tally>,
    /// Last segments that wait for the rest of their chunk, or for a hop they build on.
    waiting: Vec<Segment>,
    /// Hops that were checked, or made here.
    known: BTreeMap<Place, Hop>,
    state: State,
}

/// Whether its sums can still be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Sound,
    /// The machine refused a value, perhaps after part of the segment was added: another segment in its place would make a
    /// false sum. Nothing more is taken or signed; a new view starts over.
    Spoiled,
}

impl Chained {
    /// The machine of `slot` with its contribution.
    #[must_use]
    pub fn new(scope: Arc<Scope>, keys: Arc<dyn HopKeys>, slot: u32, own: Contribution) -> Self {
        Self::keeping(scope, keys, slot, own, Carried::default())
    }

    /// The same with what the slot brings of the chunks that the scope's manifest keeps. Whoever carried it has checked it.
    #[must_use]
    pub fn keeping(
        scope: Arc<Scope>,
        keys: Arc<dyn HopKeys>,
        slot: u32,
        own: Contribution,
        carried: Carried,
    ) -> Self {
        let means = carried.means.iter();
        let known = means
            .map(|(chunk, mean)| (scope.mean_of(*chunk), mean.hop))
            .collect();
        Self {
            machine: Machine::keeping(scope.plan, slot, own, scope.kept_chunks(), carried),
            slot,
            scope,
            keys,
            coming: BTreeMap::new(),
            going: BTreeMap::new(),
            waiting: Vec::new(),
            known,
            state: State::Sound,
        }
    }

    /// Sends what needs nothing from others.
    pub fn start(&mut self, out: &mut Vec<Segment>) {
        let mut made = Vec::new();
        self.machine.start(&mut made);
        self.send(made, out);
    }

    /// Takes a predecessor's segment, with its hop if it is the chunk's last.
    ///
    /// # Errors
    /// What is wrong with it: as [`Machine::receive`], or a hop that is missing, wrongly signed or not of what came. After a
    /// wrong value nothing more is taken.
    pub fn receive(&mut self, mut segment: Segment, out: &mut Vec<Segment>) -> Result<(), RingError> {
        if self.state == State::Spoiled {
            return Ok(());
        }
        let before = self.scope.plan.layout.before(self.slot, segment.phase.axis());
        let place = self
            .scope
            .signed_at(segment.phase, segment.step, segment.chunk, before);
        let segments = self.scope.segments(place);
        let hop = (segment.segment.checked_add(1) == Some(segments))
            .then(|| take_hop(&mut segment))
            .transpose()?;
        self.machine.check(&segment)?;
        let turn = turn(&segment);
        let (tally, last) = self
            .coming
            .entry(turn)
            .or_insert_with(|| (Tally::new(segments), None));
        tally.add(segment.segment, &segment.payload);
        *last = hop.or(*last);
        self.know_when_complete(turn, place)?;
        let mut made = Vec::new();
        if let Err(bad) = self.machine.receive(segment, &mut made) {
            self.state = State::Spoiled;
            return Err(bad);
        }
        self.send(made, out);
        Ok(())
    }

    /// A chunk is whole: its hop must be signed by whom it names and say what came.
    fn know_when_complete(&mut self, turn: Turn, place: Place) -> Result<(), RingError> {
        let Some((tally, Some(hop))) = self.coming.get(&turn) else {
            return Ok(());
        };
        let Some(came) = tally.hash() else { return Ok(()) };
        let hop = *hop;
        let (phase, step, chunk) = turn;
        let kept = self.scope.kept.get(&chunk);
        // A kept mean is the one that its manifest names, by the word of whoever finished it.
        let is_it = hop.went == came && kept.is_none_or(|origin| origin.mean == came);
        if !is_it || !hop.is_signed(self.scope.origin(chunk), place, self.keys.as_ref()) {
            return Err(RingError::Hop { phase, step, chunk });
        }
        self.coming.remove(&turn);
        self.known.insert(place, hop);
        Ok(())
    }

    /// Sends on what the machine made; a chunk's last segment once its hop can be signed.
    fn send(&mut self, made: Vec<Segment>, out: &mut Vec<Segment>) {
        for segment in made {
            let place = self.place_of(&segment);
            let segments = self.scope.segments(place);
            // What is passed on was hashed as it came.
            if place.slot == self.slot {
                let tally = self
                    .going
                    .entry(turn(&segment))
                    .or_insert_with(|| Tally::new(segments));
                tally.add(segment.segment, &segment.payload);
            }
            if segment.segment + 1 == segments {
                self.waiting.push(segment);
            } else {
                out.push(segment);
            }
            self.release(out);
        }
        self.release(out);
    }

    fn release(&mut self, out: &mut Vec<Segment>) {
        let mut at = 0;
        while let Some(segment) = self.waiting.get(at) {
            let (turn, place) = (turn(segment), self.place_of(segment));
            let Some(hop) = self.hop_for(turn, place) else {
                at += 1;
                continue;
            };
            let mut segment = self.waiting.remove(at);
            self.going.remove(&turn);
            segment.payload.extend_from_slice(&hop.to_bytes());
            out.push(segment);
            // What waited may build on it.
            at = 0;
        }
    }

    /// The hop that goes with a chunk: the owner's, known once all of it came, or one's own. `None` while the chunk or what
    /// it builds on is not whole.
    fn hop_for(&mut self, turn: Turn, place: Place) -> Option<Hop> {
        if place.slot != self.slot {
            return self.known.get(&place).copied();
        }
        let went = self.going.get(&turn)?.hash()?;
        if let Some(known) = self.known.get(&place) {
            return Some(*known);
        }
        let on = self.scope.builds_on(place);
        let on: Vec<&Hop> = on.iter().map(|p| self.known.get(p)).collect::<Option<_>>()?;
        let [came, previous] = built_on(&on);
        let hop = Hop::sign(&self.scope, place, [came, went, previous], self.keys.as_ref());
        self.known.insert(place, hop);
        Some(hop)
    }

    fn place_of(&self, s: &Segment) -> Place {
        self.scope.signed_at(s.phase, s.step, s.chunk, self.slot)
    }

    /// The result, once every segment has come, without copying what is large: the machine is of no use afterwards.
    pub fn take_result(&mut self) -> Option<Reduced> {
        self.machine.take_result()
    }

    /// The line whose segments it waits for.
    #[must_use]
    pub fn waits_along(&self) -> Axis {
        self.machine.waits_along()
    }

    /// Segments still to come.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.machine.missing()
    }

    /// The hops it checked or made, by place: its part of the chains. Those of kept chunks are of the ring that finished them.
    #[must_use]
    pub fn hops(&self) -> &BTreeMap<Place, Hop> {
        &self.known
    }

    /// Hash of a chunk's mean, if it is here, whole and signed.
    #[must_use]
    pub fn holds(&self, chunk: u32) -> Option<Hash32> {
        let signed = self.known.get(&self.scope.mean_of(chunk))?;
        self.machine.is_finished_chunk(chunk).then_some(signed.went)
    }

    /// A chunk's mean for the next view, from the ring's result where that was taken.
    #[must_use]
    pub fn finished(&self, chunk: u32, result: Option<&[f32]>) -> Option<Finished> {
        let hop = *self.known.get(&self.scope.mean_of(chunk))?;
        let segments = self.machine.segments_of(chunk, result)?;
        Some(Finished { hop, segments })
    }

    /// What rounding left over of this slot's own part of a chunk, while the ring's result was not taken (integers only).
    #[must_use]
    pub fn left_of(&self, chunk: u32) -> Option<&[f32]> {
        self.machine.left_of(chunk)
    }
}

/// `came` and `previous` of a hop that builds on others.
pub(in crate::ring) fn built_on(on: &[&Hop]) -> [Hash32; 2] {
    let came: Vec<Hash32> = on.iter().map(|hop| hop.went).collect();
    let previous = if on.is_empty() {
        Hash32::ZERO
    } else {
        digest(on.iter().map(|hop| &hop.signature[..]))
    };
    [together(&came), previous]
}

fn turn(s: &Segment) -> Turn {
    (s.phase, s.step, s.chunk)
}

/// Takes the hop from behind a chunk's last segment.
fn take_hop(s: &mut Segment) -> Result<Hop, RingError> {
    let got = s.payload.len();
    let Some(hop) = s.payload.last_chunk::<HOP_BYTES>().map(Hop::from_bytes) else {
        return Err(RingError::Length {
            phase: s.phase,
            step: s.step,
            segment: s.segment,
            got,
            want: HOP_BYTES,
        });
    };
    s.payload.truncate(got - HOP_BYTES);
    Ok(hop)
}
