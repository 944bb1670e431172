//! The clipped surrogate with its KL term, and its gradient.
//!
//! L = Σ_it w_i · [ −min(s_it A_it, clip(s_it, 1 − ε_low, 1 + ε_high) A_it) + β · k_it ], where
//! s_it = exp(1/|y_i| · Σ_t (log π − log π_old)) at sequence level and exp(log π_it − log π_old,it) at token level;
//! k_it = exp(d) − d − 1 with d = log π_ref − log π, times s_it with the bias correction; and w_i is the loss
//! type's: 1/(B·|y_i|), 1/Σ|y| over the minibatch or the rollout batch, or 1/(B·L_max).

use gym_protocol::job::spec::{GspoSpec, ImportanceSampling, LossType};

/// Log-ratios are clamped to ± this before exp.
const CLAMP: f64 = 20.0;

/// What the loss is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct LossConfig {
    /// Level of the ratio.
    pub level: ImportanceSampling,
    /// Aggregation.
    pub loss_type: LossType,
    /// ε_low.
    pub epsilon_low: f64,
    /// ε_high.
    pub epsilon_high: f64,
    /// Weight of the KL term.
    pub beta: f64,
    /// Whether the KL term is multiplied by the ratio.
    pub kl_bias_correction: bool,
}

impl From<&GspoSpec> for LossConfig {
    fn from(spec: &GspoSpec) -> Self {
        let (epsilon_low, epsilon_high) = spec.epsilons();
        Self {
            level: spec.importance_sampling_level,
            loss_type: spec.loss_type,
            epsilon_low,
            epsilon_high,
            beta: spec.beta,
            kl_bias_correction: spec.kl_bias_correction,
        }
    }
}

/// One completion. All slices have one entry a token; a wholly masked completion has none.
#[derive(Clone, Copy, Debug)]
pub struct LossRow<'a> {
    /// log π, of the model being trained.
    pub new: &'a [f64],
    /// log π_old, of the model that wrote the completion.
    pub old: &'a [f64],
    /// log π_ref, of the base; needed when β > 0.
    pub reference: Option<&'a [f64]>,
    /// A, the same at every token unless advantages differ by token.
    pub advantages: &'a [f64],
}

/// What sums are divided by. A gradient that is accumulated over micro-batches uses one for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denominators {
    /// Sequences of the minibatch, wholly masked ones included (B).
    pub rows: usize,
    /// Active tokens of the minibatch.
    pub minibatch_tokens: usize,
    /// Active tokens of the whole rollout batch.
    pub rollout_tokens: usize,
    /// Completions' longest length by configuration (L_max).
    pub max_completion_length: usize,
}

impl Denominators {
    /// Those of one of `parts` equal parts of a minibatch, whose losses are averaged as TRL averages micro-batches
    /// (`gradient_accumulation_steps`): `rows` and `minibatch_tokens` are the part's own, and the rollout batch's
    /// tokens stay what they are.
    #[must_use]
    pub fn accumulated(self, parts: usize) -> Self {
        Self {
            rows: self.rows * parts,
            minibatch_tokens: self.minibatch_tokens * parts,
            ..self
        }
    }
}

/// Loss, gradient and metrics of some rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// The rows' share of L.
    pub value: f64,
    /// ∂L/∂ log π, shaped as the rows' `new`.
    pub gradient: Vec<Vec<f64>>,
    /// s_i, one a row at sequence level and one a token at token level.
    pub ratios: Vec<f64>,
    /// Sums for the logged metrics.
    pub metrics: LossMetrics,
}

impl Loss {
    /// Value and gradient times `factor`.
    #[must_use]
    pub fn scaled(mut self, factor: f64) -> Self {
        self.value *= factor;
        self.gradient.iter_mut().flatten().for_each(|g| *g *= factor);
        self
    }
}

/// Sums that are added over micro-batches and divided when logged.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossMetrics {
    /// Σ mask · kl.
    pub kl_sum: f64,
    /// Σ mask.
    pub tokens: f64,
    /// Ratios below 1 − ε_low with a negative advantage.
    pub clipped_low: f64,
    /// Ratios above 1 + ε_high with a positive advantage.
    pub clipped_high: f64,
    /// Ratios taken: rows (masked ones too) or tokens.
    pub ratios: f64,
}

impl LossMetrics {
    /// Adds another micro-batch's sums.
    pub fn add(&mut self, other: &Self) {
        self.kl_sum += other.kl_sum;
        self.tokens += other.tokens;
        self.clipped_low += other.clipped_low;
        self.clipped_high += other.clipped_high;
        self.ratios += other.ratios;
    }

    /// `kl`: mean over active tokens.
    #[must_use]
    pub fn kl(&self) -> f64 {
        self.kl_sum / self.tokens.max(1.0)
    }

    /// `clip_ratio/low_mean`.
    #[must_use]
    pub fn clip_low(&self) -> f64 {
        self.clipped_low / self.ratios.max(1.0)
    }

    /// `clip_ratio/high_mean`.
    #[must_use]
    pub fn clip_high(&self) -> f64 {
        self.clipped_high / self.ratios.max(1.0)
    }

    /// `clip_ratio/region_mean`.
    #[must_use]
    pub fn clip_region(&self) -> f64 {
        (self.clipped_low + self.clipped_high) / self.ratios.max(1.0)
    }
}

/// Loss and gradient of `rows`.
#[must_use]
pub fn loss(config: &LossConfig, denominators: &Denominators, rows: &[LossRow<'_>]) -> Loss {
    let mut out = Loss {
        value: 0.0,
        gradient: Vec::with_capacity(rows.len()),
        ratios: Vec::new(),
        metrics: LossMetrics::default(),
    };
    for row in rows {
        let weight = weight(config.loss_type, denominators, row.new.len());
        let ratio = Ratio::of(config.level, row);
        let terms = Terms::of(config, row, &ratio);
        out.value += weight * terms.values.iter().sum::<f64>();
        let gradient = ratio.chain(&terms);
        out.gradient
            .push(gradient.into_iter().map(|g| weight * g).collect());
        count(&mut out.metrics, config, row, &ratio);
        out.metrics.kl_sum += terms.kl_sum;
        out.metrics.tokens += row.new.len() as f64;
        out.ratios.extend(ratio.distinct());
    }
    out
}

fn weight(loss_type: LossType, d: &Denominators, length: usize) -> f64 {
    let denominator = match loss_type {
        LossType::Grpo => d.rows.max(1) * length.max(1),
        LossType::Bnpo => d.minibatch_tokens.max(1),
        LossType::Dapo => d.rollout_tokens.max(1),
        LossType::DrGrpo => d.rows.max(1) * d.max_completion_length.max(1),
    };
    1.0 / denominator as f64
}

/// s at every token, and how it moves with log π.
struct Ratio {
    values: Vec<f64>,
    kind: RatioKind,
}

enum RatioKind {
    /// ∂s_it/∂log π_it = the ratio, or 0 where the log-ratio was clamped; other tokens have no part.
    Token(Vec<f64>),
    /// ∂s_i/∂log π_it = s_i/|y_i| for every t, or 0 when clamped.
    Sequence(f64),
}

impl Ratio {
    fn of(level: ImportanceSampling, row: &LossRow<'_>) -> Self {
        let length = row.new.len();
        let differences = || row.new.iter().zip(row.old).map(|(n, o)| n - o);
        let mean = differences().sum::<f64>() / length.max(1) as f64;
        let (sequence, slope) = exp_clamped(mean);
        match level {
            ImportanceSampling::Sequence => Self {
                values: vec![sequence; length],
                kind: RatioKind::Sequence(slope / length.max(1) as f64),
            },
            // sg[s_i]·π/sg[π]: the value is s_i at every token, and so is the slope.
            ImportanceSampling::SequenceToken => Self {
                values: vec![sequence; length],
                kind: RatioKind::Token(vec![sequence; length]),
            },
            ImportanceSampling::Token => {
                let (values, slopes) = differences().map(exp_clamped).unzip();
                Self {
                    values,
                    kind: RatioKind::Token(slopes),
                }
            }
        }
    }

    /// ∂/∂log π of Σ_t term_t, from the terms' slopes in s and, s held, in log π.
    fn chain(&self, terms: &Terms) -> Vec<f64> {
        match &self.kind {
            RatioKind::Token(slopes) => {
                let each = terms.by_ratio.iter().zip(&terms.by_log_prob).zip(slopes);
                each.map(|((by_s, by_p), slope)| by_s * slope + by_p).collect()
            }
            RatioKind::Sequence(slope) => {
                let shared = terms.by_ratio.iter().sum::<f64>() * slope;
                terms.by_log_prob.iter().map(|by_p| shared + by_p).collect()
            }
        }
    }

    fn distinct(&self) -> Vec<f64> {
        match self.kind {
            RatioKind::Token(_) => self.values.clone(),
            // A wholly masked row has a ratio of one.
            RatioKind::Sequence(_) => vec![self.values.first().copied().unwrap_or(1.0)],
        }
    }
}

/// exp of the clamped argument, and its slope.
fn exp_clamped(x: f64) -> (f64, f64) {
    let value = x.clamp(-CLAMP, CLAMP).exp();
    (value, if x.abs() > CLAMP { 0.0 } else { value })
}

/// The bracket of L at every token, with its slopes.
struct Terms {
    values: Vec<f64>,
    by_ratio: Vec<f64>,
    by_log_prob: Vec<f64>,
    kl_sum: f64,
}

impl Terms {
    fn of(config: &LossConfig, row: &LossRow<'_>, ratio: &Ratio) -> Self {
        let length = row.new.len();
        let mut terms = Self {
            values: Vec::with_capacity(length),
            by_ratio: Vec::with_capacity(length),
            by_log_prob: vec![0.0; length],
            kl_sum: 0.0,
        };
        for (s, a) in ratio.values.iter().zip(row.advantages) {
            let clipped = s.clamp(1.0 - config.epsilon_low, 1.0 + config.epsilon_high);
            let is_clipped = clipped * a < s * a;
            terms.values.push(-if is_clipped { clipped * a } else { s * a });
            terms.by_ratio.push(if is_clipped { 0.0 } else { -a });
        }
        if let Some(reference) = row.reference.filter(|_| config.beta != 0.0) {
            terms.add_kl(config, row.new, reference, &ratio.values);
        }
        terms
    }

    fn add_kl(&mut self, config: &LossConfig, new: &[f64], reference: &[f64], ratios: &[f64]) {
        for (t, ((new, reference), s)) in new.iter().zip(reference).zip(ratios).enumerate() {
            let d = (reference - new).clamp(-CLAMP, CLAMP);
            let k = d.exp() - d - 1.0;
            let slope = if (reference - new).abs() > CLAMP {
                0.0
            } else {
                1.0 - d.exp()
            };
            let factor = if config.kl_bias_correction { *s } else { 1.0 };
            self.kl_sum += k * factor;
            self.values[t] += config.beta * k * factor;
            self.by_log_prob[t] += config.beta * slope * factor;
            if config.kl_bias_correction {
                self.by_ratio[t] += config.beta * k;
            }
        }
    }
}

fn count(metrics: &mut LossMetrics, config: &LossConfig, row: &LossRow<'_>, ratio: &Ratio) {
    let mut one = |s: f64, a: f64| {
        metrics.ratios += 1.0;
        metrics.clipped_low += f64::from(s < 1.0 - config.epsilon_low && a < 0.0);
        metrics.clipped_high += f64::from(s > 1.0 + config.epsilon_high && a > 0.0);
    };
    match config.level {
        ImportanceSampling::Sequence => {
            let first = |values: &[f64], empty| values.first().copied().unwrap_or(empty);
            one(first(&ratio.values, 1.0), first(row.advantages, 0.0));
        }
        ImportanceSampling::Token | ImportanceSampling::SequenceToken => {
            for (s, a) in ratio.values.iter().zip(row.advantages) {
                one(*s, *a);
            }
        }
    }
}
