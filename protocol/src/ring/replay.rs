//! The same sum in one place, from the committed deltas alone: what an auditor and the tests compare with.

use super::{Contribution, Layout, Machine, Plan, Schedule, Scope, Segment};
use crate::job::spec::Wire;
use crate::message::Manifest;
use std::collections::VecDeque;
use std::sync::Arc;

/// One contribution, in ring order.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Δ, flat.
    pub delta: Vec<f32>,
    /// Its weight.
    pub weight: u64,
}

/// The mean that a ring over `parts` must end in, to the bit. `None` when `parts` is empty or of uneven length.
#[must_use]
pub fn replay(parts: &[Part], wire: Wire, segment: usize) -> Option<Vec<f32>> {
    replay_in(
        Layout::flat(u32::try_from(parts.len()).ok()?),
        parts,
        wire,
        segment,
    )
}

/// The same for any layout. `None` also when it is not for as many parts.
#[must_use]
pub fn replay_in(layout: Layout, parts: &[Part], wire: Wire, segment: usize) -> Option<Vec<f32>> {
    let elements = parts.first()?.delta.len();
    let even = parts.iter().all(|p| p.delta.len() == elements);
    if !even || layout.entries() as usize != parts.len() {
        return None;
    }
    let plan = Plan {
        layout,
        wire,
        total_weight: parts.iter().fold(0, |sum, p| sum.saturating_add(p.weight)),
        elements,
        segment,
    };
    let mut machines: Vec<Machine> = (0..layout.slots())
        .map(|slot| {
            let part = layout.entry(slot).and_then(|e| parts.get(e as usize));
            let own = part.map_or_else(
                || Contribution::nothing(elements),
                |p| Contribution::new(p.delta.clone(), p.weight),
            );
            Machine::new(plan, slot, own)
        })
        .collect();
    run(layout, &mut machines)?;
    Some(machines.first()?.finish()?.mean)
}

/// The mean that a manifest's ring must end in: each chunk in the order of the manifest under which it was finished. `parts`
/// finds a manifest's contributions, in its order.
#[must_use]
pub fn replay_by_origin(
    scope: &Arc<Scope>,
    parts: &dyn Fn(&Manifest) -> Option<Vec<Part>>,
) -> Option<Vec<f32>> {
    let plan = scope.plan;
    let schedule = Schedule {
        slots: scope.chunks(),
        elements: plan.elements,
        segment: plan.segment,
    };
    let mut mean = vec![0.0; plan.elements];
    for (origin, chunks) in scope.by_origin(&(0..scope.chunks()).collect()) {
        let whole = replay_in(
            origin.plan.layout,
            &parts(&origin.manifest)?,
            plan.wire,
            plan.segment,
        )?;
        for range in chunks.into_iter().map(|c| schedule.chunk(c)) {
            mean.get_mut(range.clone())?.copy_from_slice(whole.get(range)?);
        }
    }
    Some(mean)
}

/// Delivers every segment until none is left.
fn run(layout: Layout, machines: &mut [Machine]) -> Option<()> {
    let mut queue: VecDeque<(u32, Segment)> = VecDeque::new();
    let mut out = Vec::new();
    let forward = |from: u32, out: &mut Vec<Segment>, queue: &mut VecDeque<(u32, Segment)>| {
        queue.extend(out.drain(..).map(|s| (layout.next(from, s.phase.axis()), s)));
    };
    for (slot, machine) in (0u32..).zip(machines.iter_mut()) {
        machine.start(&mut out);
        forward(slot, &mut out, &mut queue);
    }
    while let Some((to, segment)) = queue.pop_front() {
        machines.get_mut(to as usize)?.receive(segment, &mut out).ok()?;
        forward(to, &mut out, &mut queue);
    }
    Some(())
}
