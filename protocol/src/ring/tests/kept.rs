//! A ring that is given up at every segment of one slot, and the next that keeps what was finished: in any order, with a
//! stand-in, at every precision.

use crate::ids::{CidBytes, Hash32, PeerBytes, Round, View};
use crate::job::spec::Wire;
use crate::message::{Entry, Kept, Manifest, Phase};
use crate::quant::Form;
use crate::ring::audit::tests::{Keys, peer, same_bits};
use crate::ring::{
    Carried, Chained, Contribution, Part, Reduced, RingError, Scope, ScopeError, Segment, replay_by_origin,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::{SEGMENT, parts};

/// A ring's machines, with who serves them.
struct Stage {
    scope: Arc<Scope>,
    machines: Vec<Chained>,
}

fn cid(member: u32) -> CidBytes {
    CidBytes::new(vec![member as u8 + 1; 36]).unwrap()
}

fn index(member: &PeerBytes) -> u32 {
    u32::from_le_bytes(member.as_bytes().try_into().unwrap())
}

fn manifest(parts: &[Part], order: &[u32], server: impl Fn(u32) -> u32, view: u32) -> Manifest {
    let entry = |member: &u32| Entry {
        member: peer(*member),
        cid: cid(*member),
        weight: parts[*member as usize].weight,
        server: peer(server(*member)),
    };
    Manifest {
        job: CidBytes::default(),
        round: Round(3),
        view: View(view),
        roster: Hash32::ZERO,
        parent: Hash32::ZERO,
        entries: order.iter().map(entry).collect(),
        grid: None,
        kept: Vec::new(),
        left_out: Vec::new(),
    }
}

fn in_order(m: &Manifest, parts: &[Part]) -> Vec<Part> {
    let entries = m.entries.iter();
    entries
        .map(|e| parts[index(&e.member) as usize].clone())
        .collect()
}

fn first(parts: &[Part], wire: Wire) -> Stage {
    let order: Vec<u32> = (0..parts.len() as u32).collect();
    let m = manifest(parts, &order, |m| m, 0);
    let scope = Scope::new(Arc::new(m), Hash32([1; 32]), wire, parts[0].delta.len(), SEGMENT).unwrap();
    let scope = Arc::new(scope);
    let machines = order.iter().map(|slot| {
        let part = &parts[*slot as usize];
        let own = Contribution::new(part.delta.clone(), part.weight);
        Chained::new(scope.clone(), Arc::new(Keys(peer(*slot))), *slot, own)
    });
    Stage {
        machines: machines.collect(),
        scope,
    }
}

/// Runs a ring until nothing is on its way; `dead` stops before it sends its segment of that number. Gives what was sent.
fn run(stage: &mut Stage, dead: Option<(u32, usize)>) -> Result<Vec<Segment>, RingError> {
    let (mut travelling, mut out, mut all) = (VecDeque::new(), Vec::new(), Vec::new());
    let mut sent = 0;
    let slots = stage.machines.len() as u32;
    let mut carry = |slot: u32, out: &mut Vec<Segment>, travelling: &mut VecDeque<(u32, Segment)>| {
        for segment in out.drain(..) {
            if let Some((dead, at)) = dead
                && slot == dead
            {
                if sent >= at {
                    continue;
                }
                sent += 1;
            }
            all.push(segment.clone());
            travelling.push_back(((slot + 1) % slots, segment));
        }
    };
    for slot in 0..slots {
        stage.machines[slot as usize].start(&mut out);
        carry(slot, &mut out, &mut travelling);
    }
    while let Some((to, segment)) = travelling.pop_front() {
        stage.machines[to as usize].receive(segment, &mut out)?;
        carry(to, &mut out, &mut travelling);
    }
    Ok(all)
}

/// The ring after one that `dead` left: a stand-in in its slot, and the slots in `order`.
fn next(before: &Stage, parts: &[Part], dead: u32, order: &[u32]) -> Stage {
    let n = parts.len() as u32;
    let stand_in = (dead + 1) % n;
    let server = |m: u32| if m == dead { stand_in } else { m };
    let mut m = manifest(parts, order, server, 1);
    for chunk in 0..n {
        let holds = |server: u32| before.machines[server as usize].holds(chunk);
        let holders: BTreeSet<u32> = (0..n)
            .filter(|slot| holds(index(&m.entries[*slot as usize].server)).is_some())
            .collect();
        if let Some(slot) = holders.first() {
            m.kept.push(Kept {
                chunk,
                origin: before.scope.hash,
                mean: holds(index(&m.entries[*slot as usize].server)).unwrap(),
                holders: Kept::bits(n, &holders),
            });
        }
    }
    let scope = keeping(&m, &before.scope).unwrap();
    let machines = (0..n).map(|slot| {
        let entry = &m.entries[slot as usize];
        let (member, server) = (index(&entry.member), index(&entry.server));
        let of_server = &before.machines[server as usize];
        let kept = scope.kept.iter().filter(|(_, kept)| kept.holders.contains(&slot));
        let left = scope.kept.keys().filter(|_| member == server);
        let carried = Carried {
            means: kept
                .map(|(chunk, _)| (*chunk, of_server.finished(*chunk, None).unwrap()))
                .collect(),
            left: left
                .filter_map(|chunk| Some((*chunk, of_server.left_of(*chunk)?.to_vec())))
                .collect(),
        };
        let part = &parts[member as usize];
        let own = Contribution::new(part.delta.clone(), part.weight);
        Chained::keeping(scope.clone(), Arc::new(Keys(peer(server))), slot, own, carried)
    });
    Stage {
        machines: machines.collect(),
        scope,
    }
}

fn keeping(m: &Manifest, before: &Arc<Scope>) -> Result<Arc<Scope>, ScopeError> {
    let origin = |hash| (hash == before.hash).then(|| before.clone());
    let plan = before.plan;
    let m = Arc::new(m.clone());
    Scope::keeping(
        m,
        Hash32([2; 32]),
        plan.wire,
        plan.elements,
        plan.segment,
        &origin,
    )
    .map(Arc::new)
}

/// What an undisturbed ring leaves of every member's own part.
fn residuals(parts: &[Part], wire: Wire) -> Vec<Vec<f32>> {
    let mut stage = first(parts, wire);
    run(&mut stage, None).unwrap();
    let results = stage.machines.iter_mut().map(|m| m.take_result().unwrap());
    results.map(|r| r.residual).collect()
}

#[test]
fn a_ring_that_keeps_ends_in_the_replay_by_origin_wherever_the_one_before_was_left() {
    for wire in Wire::ALL {
        for (n, elements) in [(2, 700), (3, 2), (3, 1_700), (4, 2_100), (5, 1_300), (6, 3)] {
            let p = parts(n, elements, 11 + n as u64);
            let left = residuals(&p, wire);
            let whole = run(&mut first(&p, wire), None).unwrap();
            for dead in 0..n as u32 {
                // As many as anybody sends, and more: then it dies when all is done.
                for at in 0..=whole.len() / n + 2 {
                    let mut before = first(&p, wire);
                    run(&mut before, Some((dead, at))).unwrap();
                    for order in orders(n as u32) {
                        ends_in_the_replay(&before, &p, dead, &order, &left, whole.len());
                    }
                }
            }
        }
    }
}

/// The same order, the reverse, and one between.
fn orders(n: u32) -> Vec<Vec<u32>> {
    let same: Vec<u32> = (0..n).collect();
    let mut between = same.clone();
    between.swap(0, n as usize / 2);
    vec![same.clone(), same.into_iter().rev().collect(), between]
}

fn ends_in_the_replay(
    before: &Stage,
    parts: &[Part],
    dead: u32,
    order: &[u32],
    left: &[Vec<f32>],
    whole: usize,
) {
    let mut after = next(before, parts, dead, order);
    let wire = before.scope.plan.wire;
    let sent = run(&mut after, None).unwrap();
    let kept: BTreeSet<u32> = after.scope.kept.keys().copied().collect();
    let seen = format!("{wire:?} {order:?} without {dead}, {kept:?} kept");
    assert!(
        sent.iter()
            .all(|s| s.phase == Phase::AllGather || !kept.contains(&s.chunk)),
        "{seen}: summed again"
    );
    assert!(kept.is_empty() || sent.len() < whole, "{seen}: nothing saved");
    let mean = replay_by_origin(&after.scope, &|m| Some(in_order(m, parts))).unwrap();
    let integers = matches!(Form::of(wire), Form::Integers(_));
    for (slot, machine) in after.machines.iter_mut().enumerate() {
        let Reduced { mean: got, residual } = machine.take_result().expect(&seen);
        assert!(same_bits(&got, &mean), "{seen}: slot {slot}");
        let entry = &after.scope.manifest.entries[slot];
        let own = &left[index(&entry.member) as usize];
        if integers && entry.member == entry.server {
            assert!(same_bits(&residual, own), "{seen}: residual of slot {slot}");
        }
    }
}

#[test]
fn what_cannot_be_kept_is_refused() {
    let p = parts(4, 2_000, 1);
    let mut before = first(&p, Wire::F32);
    run(&mut before, Some((2, 100))).unwrap();
    let after = next(&before, &p, 2, &[0, 1, 2, 3]);
    let good = (*after.scope.manifest).clone();
    assert_eq!(good.kept.len(), 4);
    let refused = |change: &dyn Fn(&mut Manifest)| {
        let mut m = good.clone();
        change(&mut m);
        keeping(&m, &before.scope).is_err()
    };
    assert!(!refused(&|_| {}));
    assert!(
        refused(&|m| m.kept[0].origin = Hash32([7; 32])),
        "an unknown manifest"
    );
    assert!(refused(&|m| m.entries[1].weight += 1), "another weight");
    assert!(refused(&|m| m.entries[1].cid = cid(9)), "another commit");
    assert!(refused(&|m| _ = m.entries.pop()), "one less");
    assert!(refused(&|m| m.view = View(0)), "not a later view");
    assert!(refused(&|m| m.round = Round(4)), "another round");
    assert!(refused(&|m| m.parent = Hash32([3; 32])), "another state");
    assert!(refused(&|m| m.kept.swap(0, 1)), "out of order");
    assert!(refused(&|m| m.kept[1].chunk = 0), "twice");
    assert!(refused(&|m| m.kept[3].chunk = 4), "no such chunk");
    assert!(
        refused(&|m| m.kept[0].holders = Kept::bits(4, &BTreeSet::new())),
        "nobody"
    );
    assert!(
        refused(&|m| m.kept[0].holders = Kept::bits(8, &BTreeSet::from([6]))),
        "no such slot"
    );
    assert!(refused(&|m| m.kept[0].holders.push(0)), "too long");
}

#[test]
fn another_mean_than_the_one_named_is_its_senders_fault() {
    let p = parts(4, 2_000, 1);
    for wire in Wire::ALL {
        let mut before = first(&p, wire);
        // Two chunks have passed the dead; before them the scales, where there are any.
        let scales = if matches!(Form::of(wire), Form::Integers(_)) {
            6
        } else {
            0
        };
        run(&mut before, Some((2, scales + 2))).unwrap();
        let after = next(&before, &p, 2, &[0, 1, 2, 3]);
        let kept = after.scope.kept.iter().next();
        let (chunk, origin) = kept.map(|(chunk, kept)| (*chunk, kept.clone())).unwrap();
        let holder = *origin.holders.first().unwrap();
        // A mean that its owner signed too, but not the one that the manifest names.
        let mut m = (*after.scope.manifest).clone();
        m.kept[0].mean = Hash32([66; 32]);
        let other = keeping(&m, &before.scope).unwrap();
        let to = (holder + 1..)
            .map(|s| s % 4)
            .find(|s| !origin.holders.contains(s))
            .unwrap();
        let own = Contribution::new(p[to as usize].delta.clone(), p[to as usize].weight);
        let mut machine = Chained::new(other, Arc::new(Keys(peer(to))), to, own);
        let mut holders = next(&before, &p, 2, &[0, 1, 2, 3]).machines;
        let mut out = Vec::new();
        holders[(to as usize + 3) % 4].start(&mut out);
        let coming = out
            .into_iter()
            .filter(|s| s.phase == Phase::AllGather && s.chunk == chunk);
        let results: Vec<_> = coming.map(|s| machine.receive(s, &mut Vec::new())).collect();
        assert!(
            matches!(results.last(), Some(Err(RingError::Hop { .. }))),
            "{wire:?}: {results:?}"
        );
    }
}

/// Two deaths one after the other: the third ring keeps chunks of both before it.
#[test]
fn chunks_are_kept_over_two_views() {
    let p = parts(5, 2_600, 3);
    for wire in Wire::ALL {
        let left = residuals(&p, wire);
        let both = (0..30).filter(|at| third_ring(&p, wire, *at, &left)).count();
        assert!(both > 0, "{wire:?}: no ring kept chunks of both before it");
    }
}

/// The ring after two that were given up; gives whether it kept chunks of both.
fn third_ring(p: &[Part], wire: Wire, at: usize, left: &[Vec<f32>]) -> bool {
    let mut before = first(p, wire);
    run(&mut before, Some((3, at))).unwrap();
    let mut second = next(&before, p, 3, &[0, 1, 2, 3, 4]);
    // All but one slot go on; that one stops early.
    run(&mut second, Some((1, at / 2))).unwrap();
    let mut m = (*second.scope.manifest).clone();
    m.view = View(2);
    m.kept.clear();
    for chunk in 0..5 {
        let mean = |slot: u32| second.machines[slot as usize].holds(chunk);
        let holders: BTreeSet<u32> = (0..5).filter(|s| mean(*s).is_some()).collect();
        if let Some(slot) = holders.first() {
            m.kept.push(Kept {
                chunk,
                origin: second.scope.origin(chunk).hash,
                mean: mean(*slot).unwrap(),
                holders: Kept::bits(5, &holders),
            });
        }
    }
    let origins = [&before, &second].map(|s| (s.scope.hash, s.scope.clone()));
    let origins: BTreeMap<Hash32, Arc<Scope>> = origins.into();
    let origin = |hash| origins.get(&hash).cloned();
    let scope = Scope::keeping(Arc::new(m), Hash32([3; 32]), wire, 2_600, SEGMENT, &origin).unwrap();
    let scope = Arc::new(scope);
    let machines = (0..5u32).map(|slot| {
        let entry = &scope.manifest.entries[slot as usize];
        let part = &p[index(&entry.member) as usize];
        let own = Contribution::new(part.delta.clone(), part.weight);
        let machine = &second.machines[slot as usize];
        let kept = scope.kept.iter().filter(|(_, kept)| kept.holders.contains(&slot));
        let left = scope.kept.keys();
        let carried = Carried {
            means: kept
                .map(|(c, _)| (*c, machine.finished(*c, None).unwrap()))
                .collect(),
            left: left
                .filter_map(|c| Some((*c, machine.left_of(*c)?.to_vec())))
                .collect(),
        };
        Chained::keeping(
            scope.clone(),
            Arc::new(Keys(entry.server.clone())),
            slot,
            own,
            carried,
        )
    });
    let machines = machines.collect();
    let mut stage = Stage {
        machines,
        scope: scope.clone(),
    };
    run(&mut stage, None).unwrap();
    let mean = replay_by_origin(&scope, &|m| Some(in_order(m, p))).unwrap();
    for (slot, machine) in stage.machines.iter_mut().enumerate() {
        let result = machine.take_result().expect("finished");
        assert!(same_bits(&result.mean, &mean), "{wire:?} {at} slot {slot}");
        if matches!(Form::of(wire), Form::Integers(_)) && slot != 3 {
            assert!(
                same_bits(&result.residual, &left[slot]),
                "{wire:?} {at} slot {slot}"
            );
        }
    }
    let of: BTreeSet<Hash32> = scope.manifest.kept.iter().map(|k| k.origin).collect();
    of.len() == 2
}

#[test]
fn a_ring_whose_chunks_are_all_kept_and_held_is_finished_at_once() {
    let p = parts(3, 900, 2);
    let mut before = first(&p, Wire::Q8);
    run(&mut before, Some((0, 1_000))).unwrap();
    let mut after = next(&before, &p, 0, &[2, 1, 0]);
    assert_eq!(after.scope.kept.len(), 3);
    assert!(after.machines.iter().all(|m| m.missing() == 0));
    assert_eq!(run(&mut after, None), Ok(Vec::new()));
}
