//! The corners of the loss: nothing to learn, much too much, and lengths that differ.

use gym_protocol::job::spec::{ImportanceSampling, LossType, ScaleRewards};
use gym_training::gspo::{Denominators, LossConfig, LossRow, advantages, loss};

fn config(level: ImportanceSampling, loss_type: LossType, beta: f64) -> LossConfig {
    LossConfig {
        level,
        loss_type,
        epsilon_low: 3e-4,
        epsilon_high: 4e-4,
        beta,
        kl_bias_correction: true,
    }
}

fn denominators(rows: &[LossRow<'_>]) -> Denominators {
    let tokens = rows.iter().map(|r| r.new.len()).sum();
    Denominators {
        rows: rows.len(),
        minibatch_tokens: tokens,
        rollout_tokens: tokens,
        max_completion_length: 16,
    }
}

const LEVELS: [ImportanceSampling; 3] = [
    ImportanceSampling::Sequence,
    ImportanceSampling::Token,
    ImportanceSampling::SequenceToken,
];
const TYPES: [LossType; 4] = [LossType::Grpo, LossType::Bnpo, LossType::Dapo, LossType::DrGrpo];

#[test]
fn equal_rewards_give_a_policy_term_of_exactly_zero() {
    // 0.1 has no exact mean in floating point.
    let rewards = [Some(0.1); 6];
    for scale in [ScaleRewards::Group, ScaleRewards::Batch, ScaleRewards::None] {
        let a = advantages(&rewards, 3, scale);
        assert_eq!((a.values.as_slice(), a.frac_zero_std), (&[0.0; 6][..], 1.0));
        let flat = [a.values[0]; 3];
        let row = LossRow {
            new: &[-0.5, -1.0, -3.0],
            old: &[-0.7, -1.5, -0.1],
            reference: None,
            advantages: &flat,
        };
        for (level, loss_type) in LEVELS.iter().flat_map(|l| TYPES.map(|t| (*l, t))) {
            let got = loss(&config(level, loss_type, 0.0), &denominators(&[row]), &[row]);
            assert_eq!(got.value, 0.0);
            assert!(got.gradient.iter().flatten().all(|g| *g == 0.0));
        }
    }
}

#[test]
fn a_reward_that_could_not_be_had_leaves_the_group() {
    let a = advantages(&[Some(1.0), None, Some(0.0), Some(1.0)], 4, ScaleRewards::Group);
    let std = (1.0f64 / 3.0).sqrt() + 1e-4;
    let want = [1.0 / 3.0 / std, 0.0, -2.0 / 3.0 / std, 1.0 / 3.0 / std];
    for (got, want) in a.values.iter().zip(want) {
        assert!((got - want).abs() < 1e-12, "{got} {want}");
    }
    assert!((a.reward_mean - 2.0 / 3.0).abs() < 1e-12);
    // One reward left of two: nothing to compare.
    assert_eq!(
        advantages(&[Some(1.0), None], 2, ScaleRewards::Group).values,
        [0.0, 0.0]
    );
    assert_eq!(
        advantages(&[None, None], 2, ScaleRewards::Batch).values,
        [0.0, 0.0]
    );
}

#[test]
fn lengths_one_and_nine_under_accumulation_equal_the_whole_batch() {
    let (short, long) = ([-0.3], [-0.4, -0.2, -1.0, -0.1, -2.0, -0.6, -0.3, -0.9, -0.5]);
    let old = [-0.4; 9];
    let reference = [-0.7; 9];
    let up = [0.8; 9];
    let down = [-1.1; 9];
    let rows = [
        LossRow {
            new: &short,
            old: &old[..1],
            reference: Some(&reference[..1]),
            advantages: &up[..1],
        },
        LossRow {
            new: &long,
            old: &old,
            reference: Some(&reference),
            advantages: &down,
        },
    ];
    for (level, loss_type) in LEVELS.iter().flat_map(|l| TYPES.map(|t| (*l, t))) {
        let config = config(level, loss_type, 0.1);
        let whole = loss(&config, &denominators(&rows), &rows);
        let parts = rows.map(|row| {
            let own = Denominators {
                rollout_tokens: 10,
                ..denominators(&[row])
            };
            loss(&config, &own.accumulated(2), &[row])
        });
        let value = parts[0].value + parts[1].value;
        let gradient = [parts[0].gradient[0].clone(), parts[1].gradient[0].clone()].concat();
        let apart = gradient.iter().zip(whole.gradient.iter().flatten());
        let apart = apart
            .map(|(a, b)| (a - b).abs())
            .fold((value - whole.value).abs(), f64::max);
        if loss_type == LossType::Bnpo {
            // As TRL's: a part divides by its own tokens.
            assert!(apart > 1e-3, "{apart}");
        } else {
            assert!(apart < 1e-12, "{level:?} {loss_type:?}: {apart}");
        }
    }
}

#[test]
fn a_log_ratio_of_200_stays_finite_and_a_masked_one_has_no_part() {
    fn row<'a>(new: &'a [f64], advantages: &'a [f64]) -> LossRow<'a> {
        LossRow {
            new,
            old: &[-0.5, -0.5],
            reference: Some(&[-0.5, -300.0]),
            advantages,
        }
    }
    let masked = LossRow {
        new: &[],
        old: &[],
        reference: Some(&[]),
        advantages: &[],
    };
    for (level, loss_type) in LEVELS.iter().flat_map(|l| TYPES.map(|t| (*l, t))) {
        let config = config(level, loss_type, 0.1);
        for advantage in [[1.0; 2], [-1.0; 2]] {
            let wild = [row(&[199.5, 199.5], &advantage), row(&[-200.5, -0.5], &advantage)];
            let got = loss(&config, &denominators(&wild), &wild);
            assert!(got.value.is_finite(), "{level:?} {loss_type:?}");
            assert!(got.gradient.iter().flatten().all(|g| g.is_finite()));
        }
        // The masked row counts in the mean over rows, and nowhere else.
        let rows = [row(&[-0.5, -0.6], &[1.0; 2]), masked];
        let with = loss(&config, &denominators(&rows), &rows);
        let alone = loss(&config, &denominators(&rows[..1]), &rows[..1]);
        let share = match loss_type {
            LossType::Grpo | LossType::DrGrpo => 0.5,
            LossType::Bnpo | LossType::Dapo => 1.0,
        };
        assert!((with.value - alone.value * share).abs() < 1e-12);
        assert!(with.gradient[1].is_empty());
    }
}

#[test]
fn on_policy_the_loss_is_nothing_and_the_gradient_is_not() {
    let rewards = [Some(1.0), Some(0.0), Some(0.5), Some(0.0)];
    let a = advantages(&rewards, 4, ScaleRewards::Group);
    let log_probs: Vec<Vec<f64>> = (1..5)
        .map(|n| vec![-0.25 * f64::from(n); n as usize * 2])
        .collect();
    let per_token: Vec<Vec<f64>> = log_probs
        .iter()
        .zip(&a.values)
        .map(|(p, a)| vec![*a; p.len()])
        .collect();
    let rows: Vec<LossRow<'_>> = log_probs
        .iter()
        .zip(&per_token)
        .map(|(p, advantages)| LossRow {
            new: p,
            old: p,
            reference: None,
            advantages,
        })
        .collect();
    for level in LEVELS {
        let got = loss(&config(level, LossType::Grpo, 0.0), &denominators(&rows), &rows);
        assert!(got.value.abs() < 1e-6, "{}", got.value);
        let norm: f64 = got.gradient.iter().flatten().map(|g| g * g).sum();
        assert!(norm > 0.0);
        assert_eq!(got.metrics.clip_region(), 0.0);
    }
}
