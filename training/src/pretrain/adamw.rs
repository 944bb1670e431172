//! AdamW (Loshchilov and Hutter 2019) on host values.

use super::checkpoint::Checkpoint;
use super::config::OptimizerConfig;
use gym_protocol::tensor::TensorSet;

/// m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², θ ← θ − η(m̂/(√v̂ + ε) + λθ); λ for matrices only.
#[derive(Debug)]
pub(super) struct AdamW {
    config: OptimizerConfig,
}

impl AdamW {
    pub(super) fn new(config: &OptimizerConfig) -> Self {
        Self {
            config: config.clone(),
        }
    }

    /// One update of the checkpoint's weights and moments; the gradient's norm before clipping.
    pub(super) fn step(&self, state: &mut Checkpoint, gradients: TensorSet, learning_rate: f64) -> f64 {
        let c = &self.config;
        let norm = norm(&gradients);
        let clip = (c.max_grad_norm / (norm + 1e-6)).min(1.0);
        let time = i32::try_from(state.step + 1).unwrap_or(i32::MAX);
        let (bias1, bias2) = (1.0 - c.beta1.powi(time), 1.0 - c.beta2.powi(time));
        for (name, gradient) in &gradients.0 {
            let (Some(weight), Some(first), Some(second)) = (
                state.weights.0.get_mut(name),
                state.first.0.get_mut(name),
                state.second.0.get_mut(name),
            ) else {
                continue;
            };
            let decay = if gradient.shape.len() > 1 {
                c.weight_decay
            } else {
                0.0
            };
            let values = weight.data.iter_mut().zip(&mut first.data).zip(&mut second.data);
            for (((w, m), v), g) in values.zip(&gradient.data) {
                let g = f64::from(*g) * clip;
                let m_new = c.beta1 * f64::from(*m) + (1.0 - c.beta1) * g;
                let v_new = c.beta2 * f64::from(*v) + (1.0 - c.beta2) * g * g;
                (*m, *v) = (m_new as f32, v_new as f32);
                let step = (m_new / bias1) / ((v_new / bias2).sqrt() + c.epsilon) + decay * f64::from(*w);
                *w = (f64::from(*w) - learning_rate * step) as f32;
            }
        }
        norm
    }
}

/// √Σ g², in f64.
fn norm(gradients: &TensorSet) -> f64 {
    let values = gradients.0.values().flat_map(|tensor| &tensor.data);
    values.map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt()
}

/// `sum` += `more`, tensor by tensor.
pub(super) fn add(sum: &mut TensorSet, more: &TensorSet) {
    for (name, tensor) in &mut sum.0 {
        for (a, b) in tensor
            .data
            .iter_mut()
            .zip(more.0.get(name).map_or(&[][..], |t| &t.data))
        {
            *a += b;
        }
    }
}
