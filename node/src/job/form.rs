//! What a committed delta is held against: the adapter's layout, its worker's earlier sequence numbers, the clock
//! (PROTOCOL section 3).

use super::state::Names;
use gym_protocol::ids::{Hash32, PeerBytes, Round};
use gym_protocol::tensor::TensorSet;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Workers whose numbers are remembered: every roster that a job may have, and as many that left.
const MAX_WORKERS: usize = 8_192;
/// Rounds whose numbers are remembered for one worker.
const MAX_ROUNDS: usize = 16;

/// Names and shapes of an adapter's tensors.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Layout(Arc<BTreeMap<String, Vec<u64>>>);

impl Layout {
    pub(crate) fn of(adapter: &TensorSet) -> Self {
        let tensors = adapter.0.iter();
        Self(Arc::new(
            tensors.map(|(name, t)| (name.clone(), t.shape.clone())).collect(),
        ))
    }

    /// Elements of all tensors.
    pub(crate) fn elements(&self) -> usize {
        let elements = |shape: &Vec<u64>| shape.iter().product::<u64>();
        usize::try_from(self.0.values().map(elements).sum::<u64>()).unwrap_or(usize::MAX)
    }

    /// Whether a delta's tensors are those of the adapter; what differs first.
    pub(crate) fn fits(&self, delta: &TensorSet) -> Result<(), String> {
        for (name, shape) in &*self.0 {
            match delta.0.get(name) {
                None => return Err(format!("the adapter's tensor {name:?} is missing")),
                Some(t) if t.shape != *shape => {
                    return Err(format!(
                        "the tensor {name:?} has shape {:?} where the adapter's has {shape:?}",
                        t.shape
                    ));
                }
                Some(_) => {}
            }
        }
        match delta.0.keys().find(|name| !self.0.contains_key(*name)) {
            Some(name) => Err(format!("the adapter has no tensor {name:?}")),
            None => Ok(()),
        }
    }
}

/// The highest sequence number of each worker's deltas, by round; clones share them. One delta is checked several times,
/// later rounds' before it too: it has to rise above those of the rounds before its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sequences(Arc<Mutex<BTreeMap<PeerBytes, BTreeMap<Round, u64>>>>);

impl Sequences {
    /// The highest number in the rounds before `round`.
    pub(crate) fn before(&self, worker: &PeerBytes, round: Round) -> Option<u64> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(worker)?.range(..round).map(|(_, n)| *n).max()
    }

    /// Remembers a verified delta's.
    pub(crate) fn remember(&self, worker: &PeerBytes, round: Round, sequence: u64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_WORKERS && !all.contains_key(worker) {
            return;
        }
        let rounds = all.entry(worker.clone()).or_default();
        let highest = rounds.entry(round).or_insert(sequence);
        *highest = (*highest).max(sequence);
        while rounds.len() > MAX_ROUNDS {
            rounds.pop_first();
        }
    }
}

/// Which delta is awaited.
#[derive(Clone, Debug)]
pub(crate) struct Awaited {
    pub(crate) names: Names,
    pub(crate) member: PeerBytes,
    pub(crate) round: Round,
    pub(crate) parent: Hash32,
    /// Of the adapter that it changes.
    pub(crate) layout: Layout,
    pub(crate) sequences: Sequences,
    /// How far ahead of this clock it may be made: genesis `clock_skew_seconds`.
    pub(crate) clock_skew: u64,
}

impl Awaited {
    /// Bytes that its file may have: values that LZ4 makes an eighth longer at most, and room for names and signatures.
    pub(crate) fn max_bytes(&self) -> u64 {
        let values = (self.layout.elements() as u64).saturating_mul(4);
        values.saturating_add(values / 8).saturating_add(4 << 20)
    }
}
