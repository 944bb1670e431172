//! What a round must come to: the exact mean, and the bytes.

use super::Payload;
use super::host::Deltas;
use crate::ids::Rank;
use crate::job::spec::Wire;
use crate::message::{Entry, Manifest};
use crate::quant::{Form, ring_payload_bytes};
use crate::ring::{Part, Scope, replay_by_origin};
use std::sync::Arc;

/// The mean of a manifest's committed deltas. At f32 they are integers and so are their sums: it is computed here in whole
/// numbers, by no code of the ring. Otherwise, and where deltas are no integers, it is the replay, each chunk in the order of
/// the manifest that finished it.
pub(super) fn mean(scope: &Arc<Scope>, deltas: &Deltas, payload: Payload) -> Option<Vec<f32>> {
    match (scope.plan.wire, payload) {
        (Wire::F32, Payload::Integers) => integer_mean(&scope.manifest, deltas),
        (Wire::F32 | Wire::Bf16 | Wire::Q8 | Wire::Q4, _) => replay_by_origin(scope, &|m| parts(m, deltas)),
    }
}

/// A manifest's contributions, in its order.
pub(super) fn parts(m: &Manifest, deltas: &Deltas) -> Option<Vec<Part>> {
    let part = |e: &Entry| {
        deltas.get(&e.cid).map(|d| Part {
            delta: d.3.clone(),
            weight: e.weight,
        })
    };
    m.entries.iter().map(part).collect()
}

fn integer_mean(m: &Manifest, deltas: &Deltas) -> Option<Vec<f32>> {
    let elements = deltas.get(&m.entries.first()?.cid)?.3.len();
    let mut sum = vec![0i64; elements];
    for e in &m.entries {
        let delta = &deltas.get(&e.cid)?.3;
        let weight = i64::try_from(e.weight).ok()?;
        sum.iter_mut()
            .zip(delta)
            .for_each(|(s, d)| *s += *d as i64 * weight);
    }
    let total: u64 = m.entries.iter().map(|e| e.weight).sum();
    Some(sum.into_iter().map(|s| s as f32 / total as f32).collect())
}

/// The payload of the contributor that is farthest from theory, over theory: 2(N−1)/N·L·4 at f32 (bf16: ·2), the
/// exact sum of the packed hops at q8 and q4 in a ring. `None` where there is none to compare with (one member; integers
/// in a grid).
pub(super) fn bytes_ratio(m: &Manifest, wire: Wire, elements: usize, sent: &[u64]) -> Option<f64> {
    let n = u32::try_from(m.entries.len()).ok()?;
    let want = |rank: u32| match (Form::of(wire), m.grid) {
        (Form::Floats(float), _) => {
            Some(2.0 * f64::from(n - 1) / f64::from(n) * (elements * float.bytes()) as f64)
        }
        (Form::Integers(_), None) => Some(ring_payload_bytes(wire, n, elements, Rank(rank)) as f64),
        (Form::Integers(_), Some(_)) => None,
    };
    (0u32..)
        .zip(&m.entries)
        .filter_map(|(rank, e)| {
            let sent = *sent.get(super::index_of(&e.member)? as usize)? as f64;
            Some(sent / want(rank).filter(|w| *w > 0.0)?)
        })
        .max_by(|a, b| (a - 1.0).abs().total_cmp(&(b - 1.0).abs()))
}
