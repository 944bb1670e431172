//! Rotary position embedding (Su et al. 2021), in Hugging Face's half-split layout.

use super::config::RopeConfig;
use burn::tensor::{Device, Tensor, TensorData};

/// Inverse frequencies θ^(−2i/D), i < D/2.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    inverse: Vec<f32>,
}

/// cos and sin of every place's angles: [B or 1, T, 1, D/2].
#[derive(Clone, Debug)]
pub(crate) struct Rotation {
    cos: Tensor<4>,
    sin: Tensor<4>,
}

impl Rope {
    pub(crate) fn new(config: &RopeConfig, head_dim: usize) -> Self {
        let inverse = (0..head_dim / 2)
            .map(|i| (1.0 / config.theta.powf((2 * i) as f64 / head_dim as f64)) as f32)
            .collect();
        Self { inverse }
    }

    /// `positions`: rows × width of position ids, row-major.
    pub(crate) fn at(&self, positions: &[usize], rows: usize, device: &Device) -> Rotation {
        let half = self.inverse.len();
        let shape = [rows, positions.len() / rows.max(1), 1, half];
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

impl Rotation {
    /// Rotates pairs (x_i, x_{i+D/2}) of `x` [B, T, heads, D].
    pub(crate) fn apply(&self, x: Tensor<4>) -> Tensor<4> {
        let half = x.dims()[3] / 2;
        let (cos, sin) = (self.cos.clone(), self.sin.clone());
        let (a, b) = (x.clone().narrow(3, 0, half), x.narrow(3, half, half));
        let first = a.clone() * cos.clone() - b.clone() * sin.clone();
        let second = b * cos + a * sin;
        Tensor::cat(vec![first, second], 3)
    }
}
