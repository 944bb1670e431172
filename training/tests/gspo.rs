//! Advantages, loss, gradient and metrics against TRL's own (`fixtures/gspo`, `gspo_variants`, `accumulation`).
#![allow(clippy::unwrap_used, reason = "test helpers fail by panicking")]

mod common;

use common::{Reference, fixture};
use gym_protocol::job::spec::{ImportanceSampling, LossType, ScaleRewards};
use gym_training::gspo::{Denominators, Loss, LossConfig, LossMetrics, LossRow, advantages, loss};
use serde_json::Value;

fn cases(path: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(fixture(path)).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    value["cases"].as_array().unwrap().clone()
}

/// Log-probabilities of a case, only the unmasked tokens of each row.
struct Batch {
    width: usize,
    mask: Vec<i32>,
    new: Vec<Vec<f64>>,
    old: Vec<Vec<f64>>,
    reference: Vec<Vec<f64>>,
    advantages: Vec<Vec<f64>>,
}

fn unmasked(values: &[f32], mask: &[i32], width: usize) -> Vec<Vec<f64>> {
    let rows = values.chunks(width).zip(mask.chunks(width));
    let kept = |(v, m): (&[f32], &[i32])| {
        v.iter()
            .zip(m)
            .filter(|(_, m)| **m == 1)
            .map(|(v, _)| f64::from(*v))
            .collect()
    };
    rows.map(kept).collect()
}

impl Batch {
    fn read(file: &Reference, id: &str) -> Self {
        let name = |part: &str| format!("{id}.{part}");
        let width = file.shape(&name("new"))[1];
        let mask = file.i32(&name("mask"));
        let part = |part: &str| unmasked(&file.f32(&name(part)), &mask, width);
        let names = file.names();
        let has = |part: &str| names.contains(&name(part));
        let new = part("new");
        let advantages = if has("adv_tok") {
            part("adv_tok")
        } else {
            let rows = file.f32(&name("advantages"));
            new.iter()
                .zip(rows)
                .map(|(row, a)| vec![f64::from(a); row.len()])
                .collect()
        };
        let reference = if has("ref") { part("ref") } else { new.clone() };
        Self {
            width,
            old: part("old"),
            reference,
            advantages,
            new,
            mask,
        }
    }

    /// The one batch that all cases of a file share.
    fn shared(file: &Reference, old_given: bool) -> Self {
        let width = file.shape("new")[1];
        let mask = file.i32("mask");
        let part = |part: &str| unmasked(&file.f32(part), &mask, width);
        let new = part("new");
        let advantages = new.iter().zip(file.f32("advantages"));
        Self {
            width,
            old: part(if old_given { "old" } else { "new" }),
            reference: part("ref"),
            advantages: advantages.map(|(row, a)| vec![f64::from(a); row.len()]).collect(),
            new,
            mask,
        }
    }

    fn rows(&self, range: std::ops::Range<usize>) -> Vec<LossRow<'_>> {
        range
            .map(|i| LossRow {
                new: &self.new[i],
                old: &self.old[i],
                reference: Some(&self.reference[i]),
                advantages: &self.advantages[i],
            })
            .collect()
    }

    fn tokens(&self) -> usize {
        self.new.iter().map(Vec::len).sum()
    }

    fn denominators(&self, max_completion_length: usize) -> Denominators {
        Denominators {
            rows: self.new.len(),
            minibatch_tokens: self.tokens(),
            rollout_tokens: self.tokens(),
            max_completion_length,
        }
    }

    /// Scatters a gradient back to [rows, width] and compares.
    fn assert_gradient(&self, id: &str, got: &[Vec<f64>], want: &[f64], tolerance: f64) {
        for (row, (mask, want)) in self
            .mask
            .chunks(self.width)
            .zip(want.chunks(self.width))
            .enumerate()
        {
            let mut got = got[row].iter();
            for (m, want) in mask.iter().zip(want) {
                let got = if *m == 1 { *got.next().unwrap() } else { 0.0 };
                assert!((got - want).abs() < tolerance, "{id} row {row}: {got} {want}");
            }
        }
    }
}

fn near(what: &str, got: f64, want: &Value, tolerance: f64) {
    let want = want.as_f64().unwrap();
    assert!((got - want).abs() < tolerance, "{what}: {got} {want}");
}

fn config(case: &Value, level: ImportanceSampling, loss_type: LossType) -> LossConfig {
    LossConfig {
        level,
        loss_type,
        epsilon_low: case["eps_low"].as_f64().unwrap(),
        epsilon_high: case["eps_high"].as_f64().unwrap(),
        beta: case["beta"].as_f64().unwrap_or(0.0),
        kl_bias_correction: case["use_bias_correction_kl"].as_bool().unwrap_or(false),
    }
}

fn assert_metrics(id: &str, got: &Loss, case: &Value) {
    near(id, got.metrics.clip_region(), &case["clip_ratio"], 1e-6);
    near(id, got.metrics.clip_low(), &case["clip_low"], 1e-6);
    near(id, got.metrics.clip_high(), &case["clip_high"], 1e-6);
    if !case["kl"].is_null() {
        near(id, got.metrics.kl(), &case["kl"], 1e-6);
    }
}

#[test]
fn all_53_sequence_level_cases_equal_trl() {
    let file = Reference::open("gspo/gspo.safetensors");
    let cases = cases("gspo/cases.json");
    assert_eq!(cases.len(), 53);
    for case in &cases {
        let id = case["id"].as_str().unwrap();
        let batch = Batch::read(&file, id);
        let config = config(case, ImportanceSampling::Sequence, LossType::Grpo);
        let got = loss(
            &config,
            &batch.denominators(batch.width),
            &batch.rows(0..batch.new.len()),
        );
        near(id, got.value, &case["loss"], 1e-6);
        near(id, got.value, &case["loss_f64"], 1e-7);
        batch.assert_gradient(id, &got.gradient, &file.f64(&format!("{id}.grad_new_f64")), 1e-7);
        for (i, ratio) in got.ratios.iter().enumerate() {
            near(id, *ratio, &case["ratio"][i], 1e-6);
        }
        assert_metrics(id, &got, case);
    }
}

#[test]
fn advantages_equal_trl() {
    let file = Reference::open("gspo/gspo.safetensors");
    for case in cases("gspo/cases.json") {
        let id = case["id"].as_str().unwrap();
        let rewards = file.f32(&format!("{id}.rewards"));
        let rewards: Vec<Option<f64>> = rewards
            .iter()
            .map(|r| (!r.is_nan()).then_some(f64::from(*r)))
            .collect();
        let scale: ScaleRewards = serde_json::from_value(case["scale_rewards"].clone()).unwrap();
        let group = case["num_generations"].as_u64().unwrap() as usize;
        let got = advantages(&rewards, group, scale);
        for (i, a) in got.values.iter().enumerate() {
            near(id, *a, &case["advantages"][i], 1e-6);
        }
        let equal = match case["rewards"].as_str().unwrap() {
            "all_equal" => 1.0,
            "one_group_equal" => 0.5,
            _ => 0.0,
        };
        assert_eq!(got.frac_zero_std, equal, "{id}");
        if equal == 1.0 {
            assert!(got.values.iter().all(|a| *a == 0.0), "{id}");
        }
    }
}

#[test]
fn gspo_token_equals_autograd_of_the_paper() {
    let file = Reference::open("gspo/gspo_token.safetensors");
    for case in cases("gspo/gspo_token.json") {
        let id = case["id"].as_str().unwrap();
        let batch = Batch::read(&file, id);
        let config = config(&case, ImportanceSampling::SequenceToken, LossType::Grpo);
        let got = loss(
            &config,
            &batch.denominators(batch.width),
            &batch.rows(0..batch.new.len()),
        );
        near(id, got.value, &case["loss"], 1e-6);
        let want: Vec<f64> = file
            .f32(&format!("{id}.grad_new"))
            .iter()
            .map(|g| f64::from(*g))
            .collect();
        batch.assert_gradient(id, &got.gradient, &want, 1e-7);
    }
}

#[test]
fn all_levels_and_loss_types_equal_trl() {
    let file = Reference::open("gspo_variants/gspo_variants.safetensors");
    let cases = cases("gspo_variants/cases.json");
    assert_eq!(cases.len(), 61);
    for case in &cases {
        let id = case["id"].as_str().unwrap();
        let batch = Batch::read(&file, id);
        let number = |key: &str| case[key].as_u64().unwrap() as usize;
        let (level, loss_type) = kinds(case);
        let config = config(case, level, loss_type);
        let accumulation = number("gradient_accumulation_steps") as f64;
        let share = accumulation / number("steps_per_generation") as f64;
        // What the denominators leave to the caller: TRL's 1/ga, and for dapo N/P · ga/spg.
        let (factor, rollout_tokens) = match loss_type {
            LossType::Dapo => (
                number("num_processes") as f64 / share,
                number("num_items_in_batch"),
            ),
            LossType::Grpo | LossType::Bnpo | LossType::DrGrpo => (1.0 / accumulation, batch.tokens()),
        };
        let denominators = Denominators {
            rollout_tokens,
            ..batch.denominators(number("max_completion_length"))
        };
        let got = loss(&config, &denominators, &batch.rows(0..batch.new.len()));
        near(id, got.value * factor, &case["loss"], 5e-7);
        let scaled: Vec<Vec<f64>> = got
            .gradient
            .iter()
            .map(|row| row.iter().map(|g| g * factor).collect())
            .collect();
        batch.assert_gradient(id, &scaled, &file.f64(&format!("{id}.grad_new_f64")), 1e-7);
        assert_metrics(id, &got, case);
    }
}

fn kinds(case: &Value) -> (ImportanceSampling, LossType) {
    (
        serde_json::from_value(case["importance_sampling_level"].clone()).unwrap(),
        serde_json::from_value(case["loss_type"].clone()).unwrap(),
    )
}

#[test]
fn micro_batches_with_shared_denominators_are_the_whole_batch() {
    let file = Reference::open("gspo_variants/gspo_variants.safetensors");
    for case in cases("gspo_variants/cases.json") {
        let batch = Batch::read(&file, case["id"].as_str().unwrap());
        let (level, loss_type) = kinds(&case);
        let config = config(&case, level, loss_type);
        let denominators = batch.denominators(12);
        let whole = loss(&config, &denominators, &batch.rows(0..batch.new.len()));
        let (mut value, mut gradient, mut metrics) = (0.0, Vec::new(), LossMetrics::default());
        for start in (0..batch.new.len()).step_by(3) {
            let end = (start + 3).min(batch.new.len());
            let part = loss(&config, &denominators, &batch.rows(start..end));
            value += part.value;
            gradient.extend(part.gradient);
            metrics.add(&part.metrics);
        }
        assert!((value - whole.value).abs() < 1e-12);
        assert_eq!(gradient, whole.gradient);
        assert!((metrics.kl() - whole.metrics.kl()).abs() < 1e-12);
        assert_eq!(metrics.clip_region(), whole.metrics.clip_region());
    }
}

/// Micro-batches as `gradient_accumulation_steps` makes them, their losses and gradients added up.
#[test]
fn accumulation_equals_trl() {
    let file = Reference::open("accumulation/accumulation.safetensors");
    let cases = cases("accumulation/cases.json");
    assert_eq!(cases.len(), 58);
    let mut worst = 0f64;
    for case in &cases {
        let id = case["id"].as_str().unwrap();
        let number = |key: &str| case[key].as_u64().unwrap() as usize;
        let batch = Batch::shared(&file, case["old_logps_given"].as_bool().unwrap());
        let (level, loss_type) = kinds(case);
        let config = config(case, level, loss_type);
        let parts = number("current_gradient_accumulation_steps");
        let updates = number("steps_per_generation") as f64 / parts as f64;
        let factor = if loss_type == LossType::Dapo { updates } else { 1.0 };
        let (mut start, mut value, mut gradient) = (0, 0.0, Vec::new());
        for lengths in case["row_lengths_per_micro_batch"].as_array().unwrap() {
            let rows = start..start + lengths.as_array().unwrap().len();
            start = rows.end;
            let denominators = Denominators {
                rows: rows.len(),
                minibatch_tokens: batch.new[rows.clone()].iter().map(Vec::len).sum(),
                rollout_tokens: number("num_items_in_batch"),
                max_completion_length: number("max_completion_length"),
            };
            let part = loss(&config, &denominators.accumulated(parts), &batch.rows(rows)).scaled(factor);
            value += part.value;
            gradient.extend(part.gradient);
        }
        near(id, value, &case["loss_sum"], 1e-7);
        worst = worst.max((value - case["loss_sum"].as_f64().unwrap()).abs());
        batch.assert_gradient(id, &gradient, &file.f64(&format!("{id}.grad_total_f64")), 1e-7);
        if id.contains("grpo_onpolicy") {
            assert!(
                value.abs() < 1e-6 && gradient.iter().flatten().any(|g| *g != 0.0),
                "{id}"
            );
        }
    }
    println!("58 cases, largest difference of a loss {worst:e}");
}

#[test]
fn a_runaway_ratio_is_clamped_and_finite() {
    let rows = [LossRow {
        new: &[0.0],
        old: &[-500.0],
        reference: Some(&[-900.0]),
        advantages: &[-1.0],
    }];
    let config = LossConfig {
        level: ImportanceSampling::Token,
        loss_type: LossType::Grpo,
        epsilon_low: 0.2,
        epsilon_high: 0.2,
        beta: 0.1,
        kl_bias_correction: true,
    };
    let denominators = Denominators {
        rows: 1,
        minibatch_tokens: 1,
        rollout_tokens: 1,
        max_completion_length: 1,
    };
    let got = loss(&config, &denominators, &rows);
    assert!(got.value.is_finite() && got.gradient[0][0].is_finite());
    assert!((got.ratios[0] - 20f64.exp()).abs() < 1.0);
}
