//! Fresh weights from a seed, the same on every machine.

use super::config::{HeadKind, ModelConfig};
use super::weights::{Weight, Weights};
use crate::sampling::{derive_key, units};
use burn::tensor::Device;

/// Every weight the configuration asks for: matrices normal with `initializer_range`, norms at one.
pub(super) fn weights(config: &ModelConfig, seed: u64, device: &Device) -> Weights {
    let mut weights = Weights::default();
    for (name, shape) in shapes(config) {
        let count = shape.iter().product();
        let data = if shape.len() == 1 {
            vec![1.0; count]
        } else {
            normal(seed, &name, count, config.initializer_range)
        };
        if let Some(weight) = Weight::from_host(&shape, data, device) {
            weights.0.insert(name, weight);
        }
    }
    weights
}

fn shapes(config: &ModelConfig) -> Vec<(String, Vec<usize>)> {
    let (hidden, mlp, dim) = (config.hidden_size, config.intermediate_size, config.head_dim);
    let (q, kv) = (config.num_attention_heads * dim, config.num_key_value_heads * dim);
    let mut all = vec![
        (
            "model.embed_tokens.weight".to_owned(),
            vec![config.vocab_size, hidden],
        ),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    if config.head == HeadKind::Untied {
        all.push(("lm_head.weight".to_owned(), vec![config.vocab_size, hidden]));
    }
    for layer in 0..config.num_hidden_layers {
        let block: [(&str, Vec<usize>); 11] = [
            ("input_layernorm", vec![hidden]),
            ("post_attention_layernorm", vec![hidden]),
            ("self_attn.q_norm", vec![dim]),
            ("self_attn.k_norm", vec![dim]),
            ("self_attn.q_proj", vec![q, hidden]),
            ("self_attn.k_proj", vec![kv, hidden]),
            ("self_attn.v_proj", vec![kv, hidden]),
            ("self_attn.o_proj", vec![hidden, q]),
            ("mlp.gate_proj", vec![mlp, hidden]),
            ("mlp.up_proj", vec![mlp, hidden]),
            ("mlp.down_proj", vec![hidden, mlp]),
        ];
        all.extend(block.map(|(part, shape)| (format!("model.layers.{layer}.{part}.weight"), shape)));
    }
    all
}

/// Box and Muller's pairs from the tensor's own stream of uniform numbers.
fn normal(seed: u64, name: &str, count: usize, deviation: f64) -> Vec<f32> {
    let key = derive_key(&[b"gym/init/v1", &seed.to_le_bytes(), name.as_bytes()]);
    let uniform: Vec<f64> = units(key, count.next_multiple_of(2)).collect();
    let pairs = uniform.as_chunks().0.iter().flat_map(|[u, v]: &[f64; 2]| {
        let radius = deviation * (-2.0 * u.ln()).sqrt();
        let (sin, cos) = (std::f64::consts::TAU * v).sin_cos();
        [(radius * cos) as f32, (radius * sin) as f32]
    });
    pairs.take(count).collect()
}
