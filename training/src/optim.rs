//! AdamW (Loshchilov and Hutter 2019) with clipping by the global norm, in scalar f32 over flat vectors.

use gym_protocol::job::spec::{GspoSpec, LrScheduler};

/// Hyperparameters of AdamW.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWConfig {
    /// β₁.
    pub beta1: f64,
    /// β₂.
    pub beta2: f64,
    /// ε.
    pub epsilon: f64,
    /// Decoupled weight decay λ.
    pub weight_decay: f64,
    /// Gradients of a larger global norm are scaled down to it.
    pub max_grad_norm: f64,
}

impl Default for AdamWConfig {
    fn default() -> Self {
        Self {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: 1.0,
        }
    }
}

impl From<&GspoSpec> for AdamWConfig {
    fn from(spec: &GspoSpec) -> Self {
        Self {
            beta1: spec.adam_beta1,
            beta2: spec.adam_beta2,
            epsilon: spec.adam_epsilon,
            weight_decay: spec.weight_decay,
            max_grad_norm: spec.max_grad_norm,
        }
    }
}

/// m, v and the number of updates: what a resumed run needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Moments {
    /// First moments, one a parameter.
    pub m: Vec<f32>,
    /// Second moments, one a parameter.
    pub v: Vec<f32>,
    /// Updates taken.
    pub updates: u64,
}

impl Moments {
    /// Zeros for `len` parameters.
    #[must_use]
    pub fn zeros(len: usize) -> Self {
        Self {
            m: vec![0.0; len],
            v: vec![0.0; len],
            updates: 0,
        }
    }
}

/// The optimizer of one flat parameter vector.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    config: AdamWConfig,
    moments: Moments,
}

/// Why an update was not taken; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// The gradient is NaN or infinite somewhere, or its norm overflows.
    #[error("the gradient is not finite; the update is skipped")]
    NonFinite,
    /// The vectors' lengths differ.
    #[error("{parameters} parameters, {gradients} gradients and {moments} moments; all three must be equal")]
    Length {
        /// Parameters given.
        parameters: usize,
        /// Gradients given.
        gradients: usize,
        /// Moments held.
        moments: usize,
    },
}

impl AdamW {
    /// For `len` parameters, with zero moments.
    #[must_use]
    pub fn new(config: AdamWConfig, len: usize) -> Self {
        Self {
            config,
            moments: Moments::zeros(len),
        }
    }

    /// The state.
    #[must_use]
    pub fn moments(&self) -> &Moments {
        &self.moments
    }

    /// Continues from another state.
    pub fn set_moments(&mut self, moments: Moments) {
        self.moments = moments;
    }

    /// One update of `parameters` with learning rate `rate`:
    /// g ← g·min(1, max/(‖g‖ + 1e-6)); m ← β₁m + (1 − β₁)g; v ← β₂v + (1 − β₂)g²;
    /// θ ← θ(1 − ηλ) − η/(1 − β₁ᵗ) · m / (√v/√(1 − β₂ᵗ) + ε). Returns ‖g‖ before clipping.
    ///
    /// # Errors
    /// When the gradient is not finite or lengths differ; parameters and moments are then unchanged.
    pub fn update(
        &mut self,
        parameters: &mut [f32],
        gradients: &[f32],
        rate: f64,
    ) -> Result<f64, UpdateError> {
        if parameters.len() != gradients.len() || parameters.len() != self.moments.m.len() {
            return Err(UpdateError::Length {
                parameters: parameters.len(),
                gradients: gradients.len(),
                moments: self.moments.m.len(),
            });
        }
        let norm = global_norm(gradients);
        if !norm.is_finite() {
            return Err(UpdateError::NonFinite);
        }
        let clip = (self.config.max_grad_norm / (norm + 1e-6)).min(1.0) as f32;
        self.moments.updates += 1;
        let t = self.moments.updates.min(i32::MAX as u64) as i32;
        let (b1, b2) = (self.config.beta1, self.config.beta2);
        let step = (rate / (1.0 - b1.powi(t))) as f32;
        let root = (1.0 - b2.powi(t)).sqrt() as f32;
        let decay = (1.0 - rate * self.config.weight_decay) as f32;
        let (keep1, take1) = (b1 as f32, (1.0 - b1) as f32);
        let (keep2, take2) = (b2 as f32, (1.0 - b2) as f32);
        let epsilon = self.config.epsilon as f32;
        let state = self.moments.m.iter_mut().zip(&mut self.moments.v);
        for ((p, g), (m, v)) in parameters.iter_mut().zip(gradients).zip(state) {
            let g = g * clip;
            *m = keep1 * *m + take1 * g;
            *v = keep2 * *v + take2 * g * g;
            *p = *p * decay - step * *m / (v.sqrt() / root + epsilon);
        }
        Ok(norm)
    }
}

/// ‖g‖ over all values, summed in f64 in order.
#[must_use]
pub fn global_norm(gradients: &[f32]) -> f64 {
    gradients
        .iter()
        .map(|g| f64::from(*g).powi(2))
        .sum::<f64>()
        .sqrt()
}

/// How the learning rate moves: a linear warm-up, then what the scheduler says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The rate after the warm-up, η.
    pub rate: f64,
    /// What it does then.
    pub scheduler: LrScheduler,
    /// Updates of the warm-up.
    pub warmup: u32,
    /// Updates of the whole job; needed by a rate that falls.
    pub total: Option<u64>,
}

impl Schedule {
    /// The rate of an update, both counts from 0: `own` since the optimizer's moments were zero, `job` since the job
    /// began. A joiner warms up anew, and falls with the others.
    ///
    /// Warm-up: η(own + 1)/warmup. After it, with p = (job − warmup)/(total − warmup) in 0..1: η, η(1 − p) or
    /// η(1 + cos πp)/2. Without `total` the rate stays.
    #[must_use]
    pub fn at(&self, own: u64, job: u64) -> f64 {
        let warmup = u64::from(self.warmup);
        let rise = if own < warmup {
            (own + 1) as f64 / warmup as f64
        } else {
            1.0
        };
        self.rate * rise * self.fall(job.saturating_sub(warmup))
    }

    fn fall(&self, after_warmup: u64) -> f64 {
        let Some(total) = self.total else { return 1.0 };
        let falling = total.saturating_sub(u64::from(self.warmup)).max(1);
        let p = (after_warmup as f64 / falling as f64).min(1.0);
        match self.scheduler {
            LrScheduler::ConstantWithWarmup => 1.0,
            LrScheduler::Linear => 1.0 - p,
            LrScheduler::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * p).cos()),
        }
    }
}
