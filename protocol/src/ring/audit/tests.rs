//! Whoever lies at any hop is named, and nobody else.

mod disorder;

use super::{Lie, Panel, Verdict, expect, judge};
use crate::ids::{CidBytes, Hash32, PeerBytes, Round, View};
use crate::job::spec::Wire;
use crate::message::{Entry, Manifest, Phase};
use crate::pack;
use crate::quant::{Float, Form};
use crate::ring::chain::{Chained, Hop, Place, Scope, Tally};
use crate::ring::{Contribution, Grid, HOP_BYTES, Part, RingError, Segment, replay_in};
pub(in crate::ring) use crate::sim::StandInKeys as Keys;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

const SEGMENT: usize = 512;

pub(in crate::ring) fn peer(n: u32) -> PeerBytes {
    PeerBytes::new(n.to_le_bytes().to_vec()).unwrap()
}

struct Stage {
    scope: Arc<Scope>,
    parts: Vec<Part>,
}

impl Stage {
    fn new(wire: Wire, n: u32, grid: Option<(u32, u32)>, elements: usize, seed: u64) -> Self {
        Self::in_segments(SEGMENT, wire, n, grid, elements, seed)
    }

    fn in_segments(
        segment: usize,
        wire: Wire,
        n: u32,
        grid: Option<(u32, u32)>,
        elements: usize,
        seed: u64,
    ) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let parts: Vec<Part> = (0..n)
            .map(|_| Part {
                delta: (0..elements).map(|_| rng.random_range(-1.0f32..1.0)).collect(),
                weight: rng.random_range(1..100),
            })
            .collect();
        let entry = |i: u32| Entry {
            member: peer(i),
            cid: CidBytes::new(vec![i as u8 + 1; 36]).unwrap(),
            weight: parts[i as usize].weight,
            server: peer(i),
        };
        let manifest = Manifest {
            job: CidBytes::default(),
            round: Round(3),
            view: View(1),
            roster: Hash32::ZERO,
            parent: Hash32::ZERO,
            entries: (0..n).map(entry).collect(),
            grid: grid.map(|(rows, columns)| Grid { rows, columns }),
            kept: Vec::new(),
            left_out: Vec::new(),
        };
        let scope = Scope::new(Arc::new(manifest), Hash32([9; 32]), wire, elements, segment).unwrap();
        Self {
            scope: Arc::new(scope),
            parts,
        }
    }

    fn server(&self, slot: u32) -> PeerBytes {
        self.scope.seat(slot).unwrap().server.clone()
    }

    fn machines(&self) -> Vec<Chained> {
        let layout = self.scope.plan.layout;
        let machine = |slot: u32| {
            let part = layout.entry(slot).map(|e| &self.parts[e as usize]);
            let own = part.map_or_else(
                || Contribution::nothing(self.scope.plan.elements),
                |p| Contribution::new(p.delta.clone(), p.weight),
            );
            Chained::new(self.scope.clone(), Arc::new(Keys(self.server(slot))), slot, own)
        };
        (0..layout.slots()).map(machine).collect()
    }

    fn whole(&self) -> BTreeSet<u32> {
        (0..self.scope.chunks()).collect()
    }

    fn everyone(&self) -> BTreeSet<PeerBytes> {
        (0..self.scope.plan.layout.slots())
            .map(|s| self.server(s))
            .collect()
    }

    /// Runs the ring; at `lie` that hop's last segment and its signature are what `how` makes of them. Gives what every slot
    /// can show: what it made and took.
    fn run(&self, lie: Option<(Place, How)>) -> Vec<BTreeMap<Place, Hop>> {
        let mut machines = self.machines();
        let mut liar = Liar {
            stage: self,
            lie,
            tally: None,
            hop: None,
        };
        let (mut travelling, mut out) = (VecDeque::new(), Vec::new());
        for (slot, machine) in (0u32..).zip(&mut machines) {
            machine.start(&mut out);
            liar.carry(slot, &mut out, &mut travelling);
        }
        while let Some((to, segment)) = travelling.pop_front() {
            machines[to as usize].receive(segment, &mut out).unwrap();
            liar.carry(to, &mut out, &mut travelling);
        }
        let mut hops: Vec<BTreeMap<Place, Hop>> = machines.iter().map(|m| m.hops().clone()).collect();
        if lie.is_none() {
            let plan = self.scope.plan;
            let mean = replay_in(plan.layout, &self.parts, plan.wire, plan.segment).unwrap();
            for machine in &mut machines {
                assert!(same_bits(&machine.take_result().expect("finished").mean, &mean));
            }
        }
        if let (Some((place, how)), Some(hop)) = (lie, liar.hop)
            && how != How::TwoWords
        {
            hops[place.slot as usize].insert(place, hop);
        }
        hops
    }

    fn judge(&self, hops: &[BTreeMap<Place, Hop>], answered: &BTreeSet<PeerBytes>) -> Verdict {
        let shown: Vec<(Place, Hop)> = hops.iter().flatten().map(|(p, h)| (*p, *h)).collect();
        let expected = expect(&self.scope, &self.parts, &self.whole()).unwrap();
        judge(&self.scope, &expected, &shown, answered, &Keys(peer(0)))
    }

    fn places(&self) -> Vec<Place> {
        let expected = expect(&self.scope, &self.parts, &self.whole()).unwrap();
        expected.into_iter().map(|(place, _)| place).collect()
    }
}

/// How a hop lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// Another sum.
    Sum,
    /// Another "came", the sum being right.
    In,
    /// Another "came" and another sum.
    InAndSum,
    /// Another sum to its successor, the right one to those who ask later.
    TwoWords,
}

struct Liar<'a> {
    stage: &'a Stage,
    lie: Option<(Place, How)>,
    tally: Option<Tally>,
    hop: Option<Hop>,
}

impl Liar<'_> {
    fn carry(&mut self, slot: u32, out: &mut Vec<Segment>, travelling: &mut VecDeque<(u32, Segment)>) {
        let scope = &self.stage.scope;
        for mut segment in out.drain(..) {
            let place = scope.signed_at(segment.phase, segment.step, segment.chunk, slot);
            if let Some((at, how)) = self.lie
                && at == place
                && slot == place.slot
            {
                let segments = scope.segments(place);
                let tally = self.tally.get_or_insert_with(|| Tally::new(segments));
                if segment.segment + 1 == segments {
                    self.hop = Some(forge(scope, place, how, tally, &mut segment));
                } else {
                    tally.add(segment.segment, &segment.payload);
                }
            }
            let next = scope.plan.layout.next(slot, segment.phase.axis());
            travelling.push_back((next, segment));
        }
    }
}

/// Changes a chunk's last segment, and signs it.
fn forge(scope: &Scope, place: Place, how: How, tally: &mut Tally, s: &mut Segment) -> Hop {
    let hop = Hop::from_bytes(s.payload.last_chunk::<HOP_BYTES>().unwrap());
    s.payload.truncate(s.payload.len() - HOP_BYTES);
    if how != How::In {
        change(scope, place, &mut s.payload);
    }
    tally.add(s.segment, &s.payload);
    let came = match how {
        How::In | How::InAndSum => Hash32([77; 32]),
        How::Sum | How::TwoWords => hop.came,
    };
    let keys = Keys(scope.seat(place.slot).unwrap().server.clone());
    let hop = Hop::sign(scope, place, [came, tally.hash().unwrap(), hop.previous], &keys);
    s.payload.extend_from_slice(&hop.to_bytes());
    hop
}

/// Another value that an honest sum could hold.
fn change(scope: &Scope, place: Place, payload: &mut Vec<u8>) {
    match (place.phase, Form::of(scope.plan.wire)) {
        (Phase::ScatterReduce | Phase::ColumnScatterReduce, Form::Integers(levels)) => {
            let columns = scope.plan.layout.grid().map_or(1, |g| g.columns);
            let in_row = place.phase == Phase::ScatterReduce;
            let contributions = (place.step + 1) * if in_row { 1 } else { columns };
            // Bits left over in the last byte are read as a sum of zero.
            let width = pack::width(levels, contributions);
            let units = payload.len() * 8 / width as usize;
            let mut sums = pack::unpack(payload, levels, contributions, units).unwrap();
            sums[0] += if sums[0] > 0 { -1 } else { 1 };
            *payload = pack::pack(&sums, levels, contributions);
        }
        (Phase::AllGather | Phase::ColumnAllGather, Form::Integers(_)) => {
            let first = payload[0] as i8;
            payload[0] = (if first > 0 { first - 1 } else { first + 1 }) as u8;
        }
        (_, Form::Floats(Float::Bf16)) => payload[0] ^= 0x40,
        // The largest bit of a float's fraction; a maximum stays one.
        _ => payload[2] ^= 0x40,
    }
}

pub(in crate::ring) fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.to_bits() == y.to_bits())
}

fn stages() -> Vec<Stage> {
    let shapes = [
        (2, None, 1_100),
        (3, None, 2),
        (5, None, 2_603),
        (4, Some((2, 2)), 2_000),
        (11, Some((3, 4)), 5_000),
        (6, Some((2, 3)), 5),
    ];
    let both = [Wire::F32, Wire::Q8].into_iter();
    let all = both.flat_map(|wire| shapes.into_iter().map(move |shape| (wire, shape)));
    let others = [Wire::Bf16, Wire::Q4].into_iter();
    let all = all.chain(others.flat_map(|wire| [shapes[2], shapes[3]].map(|shape| (wire, shape))));
    all.map(|(wire, (n, grid, elements))| Stage::new(wire, n, grid, elements, u64::from(n)))
        .collect()
}

#[test]
fn an_honest_ring_is_sound_and_ends_in_the_replayed_mean() {
    for stage in stages() {
        let hops = stage.run(None);
        assert_eq!(stage.judge(&hops, &stage.everyone()), Verdict::Sound);
        assert_eq!(
            hops.iter().flat_map(BTreeMap::keys).collect::<BTreeSet<_>>(),
            stage.places().iter().collect::<BTreeSet<_>>(),
            "every place is signed, and no other"
        );
    }
}

#[test]
fn a_lie_at_any_hop_names_that_hop() {
    for stage in stages() {
        for place in stage.places() {
            named(&stage, place, How::Sum, Lie::Sum);
            named(&stage, place, How::TwoWords, Lie::TwoWords);
            named(&stage, place, How::In, Lie::In);
            named(&stage, place, How::InAndSum, Lie::In);
        }
    }
}

fn named(stage: &Stage, place: Place, how: How, lie: Lie) {
    let hops = stage.run(Some((place, how)));
    let verdict = stage.judge(&hops, &stage.everyone());
    let Verdict::Found(finding) = &verdict else {
        panic!("{how:?} at {place:?} of {:?}: {verdict:?}", stage.scope.plan);
    };
    assert_eq!(
        (finding.place, finding.lie, &finding.member),
        (place, lie, &stage.server(place.slot)),
        "{how:?} of {:?}",
        stage.scope.plan
    );
    // The evidence is enough for others, who ask nobody.
    let chunks = BTreeSet::from([stage.scope.row_chunk(place)]);
    let expected = expect(&stage.scope, &stage.parts, &chunks).unwrap();
    let asked = BTreeSet::from([finding.member.clone()]);
    let again = judge(&stage.scope, &expected, &finding.evidence, &asked, &Keys(peer(1)));
    assert_eq!(again, verdict);
    if finding.lie.stands_alone() {
        let nobody = BTreeSet::new();
        let again = judge(
            &stage.scope,
            &expected,
            &finding.evidence,
            &nobody,
            &Keys(peer(1)),
        );
        assert_eq!(again, verdict);
    }
}

#[test]
fn who_shows_nothing_is_named_only_if_it_was_asked() {
    let stage = Stage::new(Wire::F32, 5, None, 3_000, 1);
    let place = |step, slot| Place {
        phase: Phase::ScatterReduce,
        step,
        chunk: 1,
        slot,
    };
    let (accomplice, liar) = (place(1, 2), place(2, 3));
    let mut hops = stage.run(Some((liar, How::Sum)));
    for of in [2, 3] {
        hops[of].remove(&accomplice);
    }
    let verdict = stage.judge(&hops, &stage.everyone());
    assert!(
        matches!(&verdict, Verdict::Found(f) if f.lie == Lie::Withheld && f.member == peer(3)),
        "{verdict:?}"
    );
    let silent = stage.everyone().into_iter().filter(|p| *p != peer(3)).collect();
    let verdict = stage.judge(&hops, &silent);
    assert!(
        matches!(&verdict, Verdict::Found(f) if f.lie == Lie::Withheld && f.member == peer(2)),
        "{verdict:?}"
    );
    assert!(matches!(
        stage.judge(&hops, &BTreeSet::new()),
        Verdict::Unproven(_)
    ));
    // An honest hop that is gone: its predecessor shows others another word than it was given.
    let mut hops = stage.run(Some((accomplice, How::TwoWords)));
    hops[3].clear();
    let there = stage.everyone().into_iter().filter(|p| *p != peer(3)).collect();
    assert!(matches!(stage.judge(&hops, &there), Verdict::Unproven(p) if p == liar));
}

/// Whoever closes a chunk sends on another mean; a second member says with it that it was the right one.
#[test]
fn two_that_collude_are_not_enough_to_hide_what_travelled() {
    for n in [3, 5, 12] {
        let stage = Stage::new(Wire::F32, n, None, 9_000, 1);
        let mean = stage.scope.mean_of(1);
        let mut hops = stage.run(Some((mean, How::TwoWords)));
        let accomplice = (mean.slot + 2) % n;
        let right = hops[mean.slot as usize][&mean];
        let what_travelled = hops[accomplice as usize].insert(mean, right);
        assert_ne!(what_travelled, Some(right));
        let judged = |asked: &[PeerBytes]| {
            let shown: Vec<_> = (0..n)
                .filter(|slot| asked.contains(&peer(*slot)))
                .map(|slot| hops[slot as usize].clone())
                .collect();
            let answered = asked.iter().cloned().collect();
            (stage.judge(&shown, &answered), answered)
        };
        let (both, answered) = judged(&[peer(mean.slot), peer(accomplice)]);
        assert_eq!(both, Verdict::Sound, "what they show is right");
        for seed in 0..20 {
            let panel = Panel::draw(&stage.scope.manifest, Hash32([seed; 32]));
            assert!(!panel.is_settled(&both, &answered));
            // The two answer first, and of the others as few as may be.
            let mut asked = vec![peer(mean.slot), peer(accomplice)];
            for member in [panel.first(), panel.rest()].concat() {
                let (verdict, answered) = judged(&asked);
                if panel.is_settled(&verdict, &answered) || asked.len() == n as usize {
                    break;
                }
                if !asked.contains(&member) {
                    asked.push(member);
                }
            }
            let (verdict, _) = judged(&asked);
            assert!(
                matches!(&verdict, Verdict::Found(f) if f.lie == Lie::TwoWords && f.member == peer(mean.slot)),
                "{verdict:?}"
            );
        }
    }
}

#[test]
fn a_foreign_signature_is_not_shown() {
    let stage = Stage::new(Wire::F32, 3, None, 600, 1);
    let mut hops = stage.run(None);
    let victim = Place {
        phase: Phase::ScatterReduce,
        step: 0,
        chunk: 1,
        slot: 1,
    };
    let good = hops[1][&victim];
    let forged = Hop::sign(
        &stage.scope,
        victim,
        [good.came, Hash32([5; 32]), good.previous],
        &Keys(peer(2)),
    );
    hops[2].insert(victim, forged);
    assert_eq!(stage.judge(&hops, &stage.everyone()), Verdict::Sound);
}

#[test]
fn a_bad_or_missing_hop_is_the_senders_fault() {
    let stage = Stage::new(Wire::Q8, 3, None, 3_000, 1);
    let first = |damage: &dyn Fn(&mut Segment)| {
        let mut machines = stage.machines();
        let mut out = Vec::new();
        machines[0].start(&mut out);
        let mut last = out.pop().unwrap();
        for segment in out.drain(..) {
            machines[1].receive(segment, &mut Vec::new()).unwrap();
        }
        damage(&mut last);
        machines[1].receive(last, &mut Vec::new())
    };
    assert!(first(&|_| {}).is_ok());
    for at in [0, 32, 64, 96, 159] {
        let flip = |s: &mut Segment| {
            let start = s.payload.len() - HOP_BYTES;
            s.payload[start + at] ^= 1;
        };
        assert!(matches!(first(&flip), Err(RingError::Hop { .. })), "byte {at}");
    }
    let value = |s: &mut Segment| s.payload[0] ^= 1;
    assert!(matches!(first(&value), Err(RingError::Hop { .. })));
    let missing = |s: &mut Segment| s.payload.truncate(s.payload.len() - HOP_BYTES);
    assert!(matches!(first(&missing), Err(RingError::Length { .. })));
    let nothing = |s: &mut Segment| s.payload.clear();
    assert!(matches!(first(&nothing), Err(RingError::Length { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn one_liar_anywhere_is_named(
        n in 2u32..14,
        in_grid: bool,
        wire in prop::sample::select(Wire::ALL.to_vec()),
        elements in 1usize..9_000,
        seed: u64,
        at: prop::sample::Index,
        how in prop::sample::select(vec![How::Sum, How::In, How::InAndSum, How::TwoWords]),
    ) {
        let grid = Grid::of(n).filter(|_| in_grid).map(|g| (g.rows, g.columns));
        let stage = Stage::new(wire, n, grid, elements, seed);
        let places = stage.places();
        let place = *at.get(&places);
        let lie = match how {
            How::Sum => Lie::Sum,
            How::In | How::InAndSum => Lie::In,
            How::TwoWords => Lie::TwoWords,
        };
        named(&stage, place, how, lie);
    }

    #[test]
    fn foreign_segments_never_panic(
        wire in prop::sample::select(Wire::ALL.to_vec()),
        grid: bool,
        phase in 0u8..8,
        numbers in prop::array::uniform3(prop_oneof![0u32..6, any::<u32>()]),
        payload in prop::collection::vec(any::<u8>(), 0..3_000),
    ) {
        let stage = Stage::new(wire, 6, grid.then_some((2, 3)), 2_000, 1);
        let mut machine = stage.machines().swap_remove(1);
        let mut out = Vec::new();
        machine.start(&mut out);
        let [step, chunk, segment] = numbers;
        let phase = Phase::from_number(phase).unwrap();
        let _ = machine.receive(Segment { phase, step, chunk, segment, payload }, &mut out);
    }
}
