//! Model state: its hash, and the outer step from one round's state to the next (PROTOCOL sections 4 and 5).

use crate::cbor::{self, CborError};
use crate::delta::format::{DType, hash_f32, tensor_head};
use crate::ids::{CidBytes, Hash32};
use crate::job::spec::{LoraSpec, OuterSpec};
use crate::tensor::TensorSet;
use serde::{Deserialize, Serialize};
use sha3::{Digest, Sha3_256};

/// What names a state besides its tensors.
#[derive(Clone, Copy, Debug)]
pub struct StateName<'a> {
    /// The network.
    pub genesis: &'a Hash32,
    /// The job's id.
    pub job: &'a CidBytes,
    /// Rounds closed: 0 for the adapter that the job seed gives.
    pub closed_rounds: u64,
    /// The base model's directory.
    pub base: &'a CidBytes,
    /// The adapter's kind.
    pub adapter: &'a AdapterKind,
}

/// Rank, scale numerator and target modules of the adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdapterKind {
    r: u32,
    alpha: f64,
    targets: Vec<String>,
}

impl AdapterKind {
    /// The kind a job asks for; `targets` are sorted bytewise.
    #[must_use]
    pub fn new(lora: &LoraSpec) -> Self {
        let mut targets = lora.target_modules.clone();
        targets.sort();
        Self {
            r: lora.rank,
            alpha: lora.alpha,
            targets,
        }
    }
}

/// SHA3-256 of `gym/state/v1` ‖ genesis ‖ job CID ‖ u64 closed rounds ‖ base CID ‖ u32 length + DAG-CBOR {r, alpha,
/// targets} ‖ adapter tensors ‖ u32 0 ‖ momentum tensors ‖ u32 0; CIDs after their u8 length, tensors in delta framing.
/// `momentum` is empty for the plain average; its terminator stands all the same.
///
/// # Errors
/// When the adapter's alpha is not finite.
pub fn state_hash(
    name: &StateName<'_>,
    adapter: &TensorSet,
    momentum: &TensorSet,
) -> Result<Hash32, CborError> {
    let kind = cbor::to_dag(name.adapter)?;
    let mut hasher = Sha3_256::new();
    hasher.update(b"gym/state/v1");
    hasher.update(name.genesis);
    hash_cid(&mut hasher, name.job);
    hasher.update(name.closed_rounds.to_le_bytes());
    hash_cid(&mut hasher, name.base);
    hasher.update((kind.len() as u32).to_le_bytes());
    hasher.update(&kind);
    hash_tensors(&mut hasher, adapter);
    hash_tensors(&mut hasher, momentum);
    Ok(Hash32(hasher.finalize().into()))
}

fn hash_cid(hasher: &mut Sha3_256, cid: &CidBytes) {
    hasher.update([cid.as_bytes().len() as u8]);
    hasher.update(cid.as_bytes());
}

fn hash_tensors(hasher: &mut Sha3_256, tensors: &TensorSet) {
    for (name, tensor) in &tensors.0 {
        hasher.update(tensor_head(name, DType::F32, &tensor.shape));
        hash_f32(hasher, &tensor.data);
    }
    hasher.update(0u32.to_le_bytes());
}

/// A state after the outer step, tentative until the round closes.
#[derive(Clone, Debug, PartialEq)]
pub struct Stepped {
    /// θ', flat, in name order.
    pub state: Vec<f32>,
    /// Momentum v', as long as the state; empty for the plain average.
    pub momentum: Vec<f32>,
}

/// Why the outer step cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OuterError {
    /// Vectors of different lengths.
    #[error("the {what} has {got} elements where the state has {want}")]
    Length {
        /// Which vector.
        what: &'static str,
        /// Its elements.
        got: usize,
        /// The state's.
        want: usize,
    },
    /// The step leaves the finite numbers: the mean diverged or the outer learning rate is too high.
    #[error("the outer step makes element {element} of the state NaN or infinite")]
    NotFinite {
        /// Index in the flat vector.
        element: usize,
    },
}

/// θ' = θ + outer step of the mean delta m. In scalar f32, each product and sum rounded, without fused multiply-add:
///
/// - average: θ' = θ + m;
/// - Nesterov (learning rate η, momentum μ, both rounded to f32): v' = (μ·v) + m, θ' = θ + (η·((μ·v') + m)).
///
/// An empty `momentum` stands for zeros.
///
/// # Errors
/// Lengths that differ, or a result that is not finite.
pub fn apply_outer(
    outer: OuterSpec,
    state: &[f32],
    momentum: &[f32],
    mean: &[f32],
) -> Result<Stepped, OuterError> {
    check_length("mean", mean, state)?;
    let stepped = match outer {
        OuterSpec::Average => {
            let state = state.iter().zip(mean).map(|(s, m)| s + m).collect();
            Stepped {
                state,
                momentum: Vec::new(),
            }
        }
        OuterSpec::Nesterov {
            learning_rate,
            momentum: factor,
        } => {
            let zeros = vec![0.0; if momentum.is_empty() { state.len() } else { 0 }];
            let v = if momentum.is_empty() { &zeros } else { momentum };
            check_length("momentum", v, state)?;
            nesterov(learning_rate as f32, factor as f32, state, v, mean)
        }
    };
    match stepped.state.iter().position(|s| !s.is_finite()) {
        Some(element) => Err(OuterError::NotFinite { element }),
        None => Ok(stepped),
    }
}

fn nesterov(rate: f32, factor: f32, state: &[f32], v: &[f32], mean: &[f32]) -> Stepped {
    let momentum: Vec<f32> = v.iter().zip(mean).map(|(v, m)| factor * v + m).collect();
    let step = |((s, v), m): ((&f32, &f32), &f32)| s + rate * (factor * v + m);
    let state = state.iter().zip(&momentum).zip(mean).map(step).collect();
    Stepped { state, momentum }
}

fn check_length(what: &'static str, got: &[f32], state: &[f32]) -> Result<(), OuterError> {
    if got.len() != state.len() {
        return Err(OuterError::Length {
            what,
            got: got.len(),
            want: state.len(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::F32Tensor;
    use std::collections::BTreeMap;

    fn tensors(values: &[f32]) -> TensorSet {
        let t = F32Tensor {
            shape: vec![values.len() as u64],
            data: values.to_vec(),
        };
        TensorSet(BTreeMap::from([("w".to_owned(), t)]))
    }

    fn hash(closed_rounds: u64, adapter: &TensorSet, momentum: &TensorSet) -> Hash32 {
        let kind = AdapterKind::new(&LoraSpec {
            rank: 8,
            alpha: 16.0,
            target_modules: vec!["v_proj".into(), "q_proj".into()],
        });
        let cid = CidBytes::new(vec![1, 0x71, 0x12, 0]).unwrap();
        let name = StateName {
            genesis: &Hash32([3; 32]),
            job: &cid,
            closed_rounds,
            base: &cid,
            adapter: &kind,
        };
        state_hash(&name, adapter, momentum).unwrap()
    }

    #[test]
    fn the_hash_is_over_the_bytes_the_page_names() {
        let mut bytes = b"gym/state/v1".to_vec();
        bytes.extend([3; 32]);
        bytes.extend([4, 1, 0x71, 0x12, 0]);
        bytes.extend(5u64.to_le_bytes());
        bytes.extend([4, 1, 0x71, 0x12, 0]);
        // {"r": 8, "alpha": 16.0, "targets": ["q_proj", "v_proj"]}
        let kind = hex::decode(
            "a3617208 65616c706861 fb4030000000000000 6774617267657473 82 66715f70726f6a 66765f70726f6a"
                .replace(' ', ""),
        )
        .unwrap();
        bytes.extend((kind.len() as u32).to_le_bytes());
        bytes.extend(kind);
        bytes.extend([1, 0, 0, 0, b'w', 0, 1, 2, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(1f32.to_le_bytes());
        bytes.extend((-2f32).to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend([0; 4]);
        assert_eq!(
            hash(5, &tensors(&[1., -2.]), &TensorSet::default()),
            cbor::sha3_256(&[&bytes])
        );
    }

    #[test]
    fn everything_counts() {
        let (a, none) = (tensors(&[1., 2.]), TensorSet::default());
        let base = hash(1, &a, &none);
        assert_ne!(base, hash(2, &a, &none));
        assert_ne!(base, hash(1, &tensors(&[1., 2.0000002]), &none));
        assert_ne!(base, hash(1, &a, &a));
        assert_ne!(hash(1, &none, &a), hash(1, &a, &none));
    }

    #[test]
    fn the_plain_average_adds() {
        let stepped = apply_outer(OuterSpec::Average, &[1., 2.], &[], &[0.5, -1.]).unwrap();
        assert_eq!(
            stepped,
            Stepped {
                state: vec![1.5, 1.],
                momentum: vec![]
            }
        );
    }

    #[test]
    fn nesterov_is_torch_sgd_on_the_negated_mean() {
        // torch.optim.SGD(lr=0.5, momentum=0.5, nesterov=True) with grad = −mean, two steps from 1.0.
        let outer = OuterSpec::Nesterov {
            learning_rate: 0.5,
            momentum: 0.5,
        };
        let first = apply_outer(outer, &[1.], &[], &[2.]).unwrap();
        assert_eq!(
            first,
            Stepped {
                state: vec![2.5],
                momentum: vec![2.]
            }
        );
        let second = apply_outer(outer, &first.state, &first.momentum, &[4.]).unwrap();
        assert_eq!(
            second,
            Stepped {
                state: vec![5.75],
                momentum: vec![5.]
            }
        );
    }

    #[test]
    fn products_and_sums_are_rounded_apart() {
        let (rate, factor) = (0.7f64, 0.9f64);
        let (s, v, m) = (0.1f32, 0.3f32, 0.2f32);
        let stepped = apply_outer(
            OuterSpec::Nesterov {
                learning_rate: rate,
                momentum: factor,
            },
            &[s],
            &[v],
            &[m],
        )
        .unwrap();
        let product = 0.9f32 * v;
        let v1 = product + m;
        let again = 0.9f32 * v1;
        let step = 0.7f32 * (again + m);
        assert_eq!(stepped.momentum[0].to_bits(), v1.to_bits());
        assert_eq!(stepped.state[0].to_bits(), (s + step).to_bits());
    }

    #[test]
    fn bad_steps_are_refused() {
        let error = apply_outer(OuterSpec::Average, &[1., 2.], &[], &[1.]).unwrap_err();
        assert_eq!(
            error,
            OuterError::Length {
                what: "mean",
                got: 1,
                want: 2
            }
        );
        let error = apply_outer(OuterSpec::Average, &[1., f32::MAX], &[], &[1., f32::MAX]).unwrap_err();
        assert_eq!(error, OuterError::NotFinite { element: 1 });
    }
}
