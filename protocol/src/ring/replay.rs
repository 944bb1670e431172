//! The same sum in one place, from the committed deltas alone: what an auditor and the tests compare with.

use super::{Config, Contribution, Ring, Schedule, Segment};
use crate::job::spec::Wire;
use std::collections::VecDeque;

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
    let slots = u32::try_from(parts.len()).ok()?;
    let elements = parts.first()?.delta.len();
    if parts.iter().any(|p| p.delta.len() != elements) {
        return None;
    }
    let schedule = Schedule {
        slots,
        elements,
        segment,
    };
    let total_weight = parts.iter().map(|p| p.weight).sum();
    let mut rings: Vec<Ring> = (0..slots)
        .zip(parts)
        .map(|(slot, p)| {
            Ring::new(
                Config {
                    schedule,
                    slot,
                    wire,
                    total_weight,
                },
                Contribution::new(p.delta.clone(), p.weight),
            )
        })
        .collect();
    run(&mut rings)?;
    Some(rings.first()?.finish()?.mean)
}

/// Delivers every segment until none is left.
fn run(rings: &mut [Ring]) -> Option<()> {
    let n = rings.len();
    let mut queue: VecDeque<(usize, Segment)> = VecDeque::new();
    let mut out = Vec::new();
    for (i, ring) in rings.iter_mut().enumerate() {
        ring.start(&mut out);
        queue.extend(out.drain(..).map(|s| ((i + 1) % n, s)));
    }
    while let Some((to, segment)) = queue.pop_front() {
        rings.get_mut(to)?.receive(segment, &mut out).ok()?;
        queue.extend(out.drain(..).map(|s| ((to + 1) % n, s)));
    }
    Some(())
}
