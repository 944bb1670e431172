//! Round 0's tensors.

use super::layout::Layout;
use crate::sampling::{derive_key, units};
use gym_protocol::tensor::{F32Tensor, TensorSet};

/// A uniform in ±1/√in, B zero, on the host. Each A has its own stream, named by its tensor.
pub(super) fn tensors(layout: &Layout, seed: u64) -> TensorSet {
    let one = |name: &str, [rows, columns]: [usize; 2]| {
        let data = if name.ends_with(".lora_A.weight") {
            let bound = 1.0 / (columns as f64).sqrt();
            let key = derive_key(&[b"gym/lora/v1", &seed.to_le_bytes(), name.as_bytes()]);
            let uniform = units(key, rows * columns).map(|u| ((2.0 * u - 1.0) * bound) as f32);
            uniform.collect()
        } else {
            vec![0.0; rows * columns]
        };
        F32Tensor {
            shape: vec![rows as u64, columns as u64],
            data,
        }
    };
    let slots = layout.slots.iter();
    TensorSet(slots.map(|s| (s.name.clone(), one(&s.name, s.shape))).collect())
}
