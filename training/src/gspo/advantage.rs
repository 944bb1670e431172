//! Advantages from rewards.

use gym_protocol::job::spec::ScaleRewards;

/// Added to the standard deviation.
const EPSILON: f64 = 1e-4;

/// Advantages and what is logged about the rewards behind them.
#[derive(Clone, Debug, PartialEq)]
pub struct Advantages {
    /// A_i, one a sample.
    pub values: Vec<f64>,
    /// Mean over the samples that have a reward; 0 when none has.
    pub reward_mean: f64,
    /// Mean over groups of the group's sample standard deviation.
    pub reward_std: f64,
    /// Share of groups whose rewards are all equal, which train nothing.
    pub frac_zero_std: f64,
}

/// A_i = (r_i − mean) / (std + 1e-4), the mean over the group, the sample standard deviation over what `scale` says.
///
/// `rewards` are groups of `group_size` in a row. A missing reward leaves mean and deviation and has A = 0; a group
/// of equal rewards has exactly 0 throughout.
#[must_use]
pub fn advantages(rewards: &[Option<f64>], group_size: usize, scale: ScaleRewards) -> Advantages {
    let (batch_mean, batch_std) = mean_and_std(rewards);
    let mut values = Vec::with_capacity(rewards.len());
    let (mut std_sum, mut groups, mut equal) = (0.0, 0usize, 0usize);
    for group in rewards.chunks(group_size.max(1)) {
        let (mean, std) = mean_and_std(group);
        let flat = all_equal(group);
        let divisor = match scale {
            ScaleRewards::Group => std + EPSILON,
            ScaleRewards::Batch => batch_std + EPSILON,
            ScaleRewards::None => 1.0,
        };
        let advantage = |r: &Option<f64>| match r {
            Some(r) if !flat => (r - mean) / divisor,
            Some(_) | None => 0.0,
        };
        values.extend(group.iter().map(advantage));
        std_sum += std;
        groups += 1;
        equal += usize::from(flat);
    }
    let share = |n: f64| if groups == 0 { 0.0 } else { n / groups as f64 };
    Advantages {
        values,
        reward_mean: batch_mean,
        reward_std: share(std_sum),
        frac_zero_std: share(equal as f64),
    }
}

fn all_equal(group: &[Option<f64>]) -> bool {
    let mut known = group.iter().flatten();
    match known.next() {
        Some(first) => known.all(|r| r == first),
        None => true,
    }
}

/// Mean and sample standard deviation (divisor n − 1; 0 for fewer than two).
fn mean_and_std(rewards: &[Option<f64>]) -> (f64, f64) {
    let known: Vec<f64> = rewards.iter().copied().flatten().collect();
    if known.is_empty() {
        return (0.0, 0.0);
    }
    let mean = known.iter().sum::<f64>() / known.len() as f64;
    if known.len() < 2 {
        return (mean, 0.0);
    }
    let squares: f64 = known.iter().map(|r| (r - mean).powi(2)).sum();
    (mean, (squares / (known.len() - 1) as f64).sqrt())
}
