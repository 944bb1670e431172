//! Temperature, repetition penalty, top-k, top-p and min-p, in Hugging Face's order.

use gym_protocol::job::spec::RolloutSpec;

/// How logits become the scores that noise is added to.
#[derive(Clone, Debug, PartialEq)]
pub struct Filters {
    /// Softmax temperature T.
    pub temperature: f64,
    /// Keep the k likeliest; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set of likeliest tokens with this mass; 1 keeps all.
    pub top_p: f64,
    /// Drop tokens below this share of the likeliest one's probability; 0 drops none.
    pub min_p: f64,
    /// Divide positive (multiply negative) logits of tokens already present; 1 is off.
    pub repetition_penalty: f64,
}

impl Default for Filters {
    fn default() -> Self {
        Self::from(&RolloutSpec::default())
    }
}

impl From<&RolloutSpec> for Filters {
    fn from(spec: &RolloutSpec) -> Self {
        Self {
            temperature: spec.temperature,
            top_k: spec.top_k as usize,
            top_p: spec.top_p,
            min_p: spec.min_p,
            repetition_penalty: spec.repetition_penalty,
        }
    }
}

impl Filters {
    /// Scores of a row of logits: penalised by the tokens in `seen`, divided by T, −∞ where filtered.
    #[must_use]
    pub fn scores(&self, logits: &[f32], seen: &[u32]) -> Vec<f64> {
        let mut scores: Vec<f64> = logits.iter().map(|l| f64::from(*l)).collect();
        self.penalise(&mut scores, seen);
        for score in &mut scores {
            *score /= self.temperature;
        }
        self.keep_top_k(&mut scores);
        self.keep_top_p(&mut scores);
        self.keep_min_p(&mut scores);
        scores
    }

    fn penalise(&self, scores: &mut [f64], seen: &[u32]) {
        if self.repetition_penalty == 1.0 {
            return;
        }
        let mut tokens: Vec<u32> = seen.to_vec();
        tokens.sort_unstable();
        tokens.dedup();
        for token in tokens {
            if let Some(score) = scores.get_mut(token as usize) {
                if *score > 0.0 {
                    *score /= self.repetition_penalty;
                } else {
                    *score *= self.repetition_penalty;
                }
            }
        }
    }

    /// Ties with the k-th are kept, as in Hugging Face.
    fn keep_top_k(&self, scores: &mut [f64]) {
        if self.top_k == 0 || self.top_k >= scores.len() {
            return;
        }
        let mut sorted = scores.to_vec();
        let (_, kth, _) = sorted.select_nth_unstable_by(self.top_k - 1, |a, b| b.total_cmp(a));
        let floor = *kth;
        drop_where(scores, |s| s < floor);
    }

    fn keep_top_p(&self, scores: &mut [f64]) {
        if self.top_p >= 1.0 {
            return;
        }
        let probabilities = softmax(scores);
        let mut order: Vec<usize> = (0..scores.len()).collect();
        // Likeliest first; among equals the lower token first.
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
        let mut mass = 0.0;
        for token in order {
            // The token that carries the mass over top_p is still kept.
            if mass >= self.top_p {
                scores[token] = f64::NEG_INFINITY;
            }
            mass += probabilities[token];
        }
    }

    fn keep_min_p(&self, scores: &mut [f64]) {
        if self.min_p <= 0.0 {
            return;
        }
        let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let floor = best + self.min_p.ln();
        drop_where(scores, |s| s < floor);
    }
}

fn drop_where(scores: &mut [f64], drop: impl Fn(f64) -> bool) {
    for score in scores {
        if drop(*score) {
            *score = f64::NEG_INFINITY;
        }
    }
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = scores.iter().map(|s| (s - best).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.iter().map(|e| e / sum).collect()
}

/// log softmax(logits/T) of one row, without filters: what training calls log-probability.
#[derive(Clone, Copy, Debug)]
pub struct LogSoftmax<'a> {
    logits: &'a [f32],
    temperature: f64,
    best: f64,
    /// ln Σ exp of the scaled logits less the best.
    log_sum: f64,
    entropy: f64,
}

impl<'a> LogSoftmax<'a> {
    /// Normalises a row.
    #[must_use]
    pub fn of(logits: &'a [f32], temperature: f64) -> Self {
        let best = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let (mut sum, mut weighted) = (0.0, 0.0);
        for logit in logits {
            let scaled = (f64::from(*logit) - best) / temperature;
            let e = scaled.exp();
            sum += e;
            // A logit of −∞ has no mass; 0·∞ must not make the entropy NaN.
            weighted += if e > 0.0 { e * scaled } else { 0.0 };
        }
        let log_sum = f64::ln(sum);
        Self {
            logits,
            temperature,
            best,
            log_sum,
            entropy: log_sum - weighted / sum,
        }
    }

    /// The log-probability of `token`; −∞ outside the vocabulary.
    #[must_use]
    pub fn at(&self, token: u32) -> f64 {
        let logit = self.logits.get(token as usize);
        logit.map_or(f64::NEG_INFINITY, |l| {
            (f64::from(*l) - self.best) / self.temperature - self.log_sum
        })
    }

    /// −Σ p ln p, in nats.
    #[must_use]
    pub fn entropy(&self) -> f64 {
        self.entropy
    }
}

/// The likeliest token; the lowest index on a tie. `None` for an empty row or one that holds a NaN throughout.
#[must_use]
pub fn greedy(scores: &[f64]) -> Option<u32> {
    let mut winner: Option<(usize, f64)> = None;
    for (token, score) in scores.iter().enumerate() {
        if !score.is_nan() && winner.is_none_or(|(_, top)| *score > top) {
            winner = Some((token, *score));
        }
    }
    winner.map(|(token, _)| token as u32)
}
