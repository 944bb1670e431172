//! Fresh weights from a seed, the same on every machine.

use super::LoadError;
use super::config::{ModelConfig, NormKind};
use super::layout::{Role, TensorSpec};
use super::precision::Loading;
use super::weights::{Weight, Weights};
use crate::sampling::{Key, derive_key, units};
use burn::tensor::Device;

/// Every weight the configuration asks for: matrices normal with `initializer_range`, norms at one, biases at zero.
pub(super) fn weights(
    config: &ModelConfig,
    seed: u64,
    device: &Device,
    loading: Loading,
) -> Result<Weights, LoadError> {
    let mut weights = Weights::default();
    for spec in config.tensors() {
        let data = values(config, &spec, seed);
        if let Some(weight) = Weight::held(&spec, data, device, loading)? {
            weights.0.insert(spec.name, weight);
        }
    }
    Ok(weights)
}

fn values(config: &ModelConfig, spec: &TensorSpec, seed: u64) -> Vec<f32> {
    let count = spec.elements();
    match spec.role {
        // The norm of a delta-net's output scales by w even where the others scale by 1 + w.
        Role::Norm
            if config.parts.norm == NormKind::ZeroCentred
                && !spec.name.ends_with("linear_attn.norm.weight") =>
        {
            vec![0.0; count]
        }
        Role::Norm => vec![1.0; count],
        Role::Bias => vec![0.0; count],
        Role::Decay if spec.name.ends_with("dt_bias") => vec![1.0; count],
        // log of a rate uniform in 0..16, as Hugging Face draws it.
        Role::Decay => units(stream(seed, &spec.name), count)
            .map(|u| (16.0 * u.max(1e-3)).ln() as f32)
            .collect(),
        Role::Embedding | Role::Head | Role::Router | Role::Linear | Role::Expert | Role::Convolution => {
            normal(seed, &spec.name, count, config.initializer_range)
        }
    }
}

fn stream(seed: u64, name: &str) -> Key {
    derive_key(&[b"gym/init/v1", &seed.to_le_bytes(), name.as_bytes()])
}

/// Box and Muller's pairs from the tensor's own stream of uniform numbers.
fn normal(seed: u64, name: &str, count: usize, deviation: f64) -> Vec<f32> {
    let uniform: Vec<f64> = units(stream(seed, name), count.next_multiple_of(2)).collect();
    let pairs = uniform.as_chunks().0.iter().flat_map(|[u, v]: &[f64; 2]| {
        let radius = deviation * (-2.0 * u.ln()).sqrt();
        let (sin, cos) = (std::f64::consts::TAU * v).sin_cos();
        [(radius * cos) as f32, (radius * sin) as f32]
    });
    pairs.take(count).collect()
}
