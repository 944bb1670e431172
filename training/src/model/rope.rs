//! Frequencies and angles of the rotary position embedding.

use super::config::{RopeConfig, RopeScaling};
use crate::ops::Rotation;
use burn::tensor::{Device, Tensor, TensorData};

/// Inverse frequencies θ^(−2i/R), i < R/2, scaled as the configuration says.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    inverse: Vec<f32>,
}

impl Rope {
    pub(crate) fn new(config: &RopeConfig) -> Self {
        let one = |i| 1.0 / config.theta.powf((2 * i) as f64 / config.width as f64);
        let scaled = |i| scaled(one(i), config.scaling) as f32;
        Self {
            inverse: (0..config.width / 2).map(scaled).collect(),
        }
    }

    /// The angles of tokens at `positions`.
    pub(crate) fn at(&self, positions: &[usize], device: &Device) -> Rotation {
        let shape = [positions.len(), self.inverse.len()];
        // The angle is rounded to f32 before cos and sin, as Hugging Face's is.
        let angles = || {
            positions
                .iter()
                .flat_map(|p| self.inverse.iter().map(move |f| f64::from(*p as f32 * f)))
        };
        let table = |values: Vec<f32>| Tensor::from_data(TensorData::new(values, shape), device);
        Rotation {
            cos: table(angles().map(|a| a.cos() as f32).collect()),
            sin: table(angles().map(|a| a.sin() as f32).collect()),
        }
    }
}

fn scaled(frequency: f64, scaling: RopeScaling) -> f64 {
    match scaling {
        RopeScaling::None => frequency,
        RopeScaling::Linear { factor } => frequency / factor,
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        } => {
            let turns = original_max_position_embeddings as f64 * frequency / std::f64::consts::TAU;
            // 0 for low frequencies, 1 for high ones.
            let share = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
            (1.0 - share) * frequency / factor + share * frequency
        }
    }
}
