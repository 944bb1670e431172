//! A step's metrics, under TRL's names.

use super::rollout::{Rollout, Rollouts};
use super::update::{Update, Updates};
use crate::gspo::Advantages;
use crate::reward::Rewards;
use std::collections::BTreeMap;
use std::time::Duration;

/// Numbers by name, for a JSONL line or TensorBoard.
pub type Metrics = BTreeMap<String, f64>;

/// Where a step's time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTime {
    /// Generation.
    pub rollout: Duration,
    /// Reward functions.
    pub reward: Duration,
    /// Forward and backward passes and the optimizer.
    pub train: Duration,
}

pub(super) fn of_rollouts(
    metrics: &mut Metrics,
    rollouts: &Rollouts,
    rewards: &Rewards,
    advantages: &Advantages,
) {
    let mut put = |name: &str, value: f64| metrics.insert(name.to_owned(), value);
    put("reward", advantages.reward_mean);
    put("reward_std", advantages.reward_std);
    put("frac_reward_zero_std", advantages.frac_zero_std);
    put("entropy", rollouts.entropy);
    put("sampling/near_ties", rollouts.near_ties as f64);
    for (i, name) in rewards.names().enumerate() {
        let known = rollouts.scores.iter().filter_map(|s| s.parts.get(i)?.ok());
        if let Some(mean) = mean(known) {
            put(&format!("rewards/{name}/mean"), mean);
        }
    }
    for reason in rollouts.scores.iter().filter_map(|s| s.total.err()) {
        *metrics.entry(format!("rewards/unscored/{reason}")).or_insert(0.0) += 1.0;
    }
    of_completions(metrics, &rollouts.all);
}

fn of_completions(metrics: &mut Metrics, all: &[Rollout]) {
    let lengths = || all.iter().map(|r| r.tokens.len() as f64);
    let cut = all.iter().map(|r| f64::from(u8::from(r.truncated)));
    let mut put = |name: &str, value: Option<f64>| value.map(|v| metrics.insert(name.to_owned(), v));
    put("completions/mean_length", mean(lengths()));
    put("completions/min_length", lengths().reduce(f64::min));
    put("completions/max_length", lengths().reduce(f64::max));
    put("completions/clipped_ratio", mean(cut));
    put("num_tokens", Some(lengths().sum()));
}

pub(super) fn of_updates(metrics: &mut Metrics, updates: &Updates, beta: f64) {
    let mut put = |name: &str, value: f64| metrics.insert(name.to_owned(), value);
    let over = |of: fn(&Update) -> f64| mean(updates.each.iter().map(of)).unwrap_or(0.0);
    put("loss", over(|u| u.loss));
    put("grad_norm", over(|u| u.grad_norm));
    put(
        "learning_rate",
        updates.each.last().map_or(0.0, |u| u.learning_rate),
    );
    put("clip_ratio/low_mean", updates.metrics.clip_low());
    put("clip_ratio/high_mean", updates.metrics.clip_high());
    put("clip_ratio/region_mean", updates.metrics.clip_region());
    if beta > 0.0 {
        put("kl", updates.metrics.kl());
    }
    if updates.ratio_tokens > 0 {
        let ratio = updates.ratio_sum / updates.ratio_tokens as f64;
        put("sampling/importance_sampling_ratio/mean", ratio);
    }
}

pub(super) fn of_time(metrics: &mut Metrics, time: &StepTime) {
    for (name, part) in [
        ("rollout", time.rollout),
        ("reward", time.reward),
        ("train", time.train),
    ] {
        metrics.insert(format!("time/{name}"), part.as_secs_f64());
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, count), v| (sum + v, count + 1));
    (count > 0).then(|| sum / count as f64)
}
