//! Frequencies and angles of the rotary position embedding.

use super::config::RopeConfig;
use crate::ops::Rotation;
use burn::tensor::{Device, Tensor, TensorData};

/// Inverse frequencies θ^(−2i/D), i < D/2.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    inverse: Vec<f32>,
}

impl Rope {
    pub(crate) fn new(config: &RopeConfig, head_dim: usize) -> Self {
        let inverse = (0..head_dim / 2)
            .map(|i| (1.0 / config.theta.powf((2 * i) as f64 / head_dim as f64)) as f32)
            .collect();
        Self { inverse }
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
