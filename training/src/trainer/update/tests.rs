//! Four updates of a tiny Qwen3 with its adapter against TRL and PyTorch (`fixtures/gspo_step`).

use super::{Role, TrainRow};
use crate::adapter::Adapter;
use crate::gspo::advantages;
use crate::model::Decoder;
use crate::trainer::learner::Learner;
use crate::trainer::{Limits, Plan, Quantisation};
use burn::tensor::Device;
use gym_protocol::job::spec::{GspoSpec, RolloutSpec, ScaleRewards};
use safetensors::SafeTensors;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(path)
}

struct Step {
    name: &'static str,
    case: Value,
    bytes: Vec<u8>,
}

impl Step {
    fn read(name: &'static str) -> Self {
        let text = std::fs::read_to_string(fixture("gspo_step/step.json")).unwrap();
        let all: Value = serde_json::from_str(&text).unwrap();
        Self {
            name,
            case: all[name].clone(),
            bytes: std::fs::read(fixture("gspo_step/step.safetensors")).unwrap(),
        }
    }

    fn words<T>(&self, part: &str, from: fn([u8; 4]) -> T) -> (usize, Vec<T>) {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let view = file.tensor(&format!("{}.{part}", self.name)).unwrap();
        let width = *view.shape().last().unwrap();
        (
            width,
            view.data().as_chunks().0.iter().map(|b| from(*b)).collect(),
        )
    }

    /// The unmasked tokens of each row.
    fn rows(&self, part: &str) -> Vec<Vec<u32>> {
        let (width, ids) = self.words(&format!("{part}_ids"), u32::from_le_bytes);
        let (_, mask) = self.words(&format!("{part}_mask"), u32::from_le_bytes);
        let row = |(ids, mask): (&[u32], &[u32])| {
            ids.iter()
                .zip(mask)
                .filter(|(_, m)| **m == 1)
                .map(|(id, _)| *id)
                .collect()
        };
        ids.chunks(width).zip(mask.chunks(width)).map(row).collect()
    }

    fn number(&self, key: &str) -> f64 {
        self.case[key].as_f64().unwrap()
    }

    fn learner(&self, updates: u32) -> Learner {
        let adapter = Adapter::load(&fixture("models/qwen3/adapter")).unwrap();
        let decoder = Decoder::load(&fixture("models/qwen3"), &Device::flex()).unwrap();
        let plan = Plan {
            seed: 0,
            quantisation: Quantisation::None,
            rewards: Vec::new(),
            programs: crate::reward::Programs::Refused,
            gspo: GspoSpec {
                beta: self.number("beta"),
                kl_bias_correction: self.case["use_bias_correction_kl"].as_bool().unwrap(),
                epsilon_low: Some(self.number("eps_low")),
                epsilon_high: Some(self.number("eps_high")),
                learning_rate: self.number("lr"),
                adam_epsilon: self.case["adam"]["eps"].as_f64().unwrap(),
                num_iterations: updates,
                ..GspoSpec::default()
            },
            lora: adapter.lora,
            rollout: RolloutSpec {
                temperature: self.number("temperature"),
                max_completion_length: 10,
                ..RolloutSpec::default()
            },
            total_updates: None,
        };
        let mut learner = Learner::new(decoder, &plan).unwrap();
        learner.set_adapter(&adapter.tensors).unwrap();
        learner
    }
}

fn train_rows<'a>(
    prompts: &'a [Vec<u32>],
    completions: &'a [Vec<u32>],
    advantages: &[f64],
) -> Vec<TrainRow<'a>> {
    prompts
        .iter()
        .zip(completions)
        .zip(advantages)
        .map(|((prompt, completion), a)| TrainRow {
            prompt,
            completion,
            advantages: vec![*a; completion.len()],
            role: Role::Active,
            sampled: &[],
        })
        .collect()
}

fn assert_run(name: &'static str, limits: Limits) {
    let step = Step::read(name);
    let (prompts, completions) = (step.rows("prompt"), step.rows("completion"));
    let (_, rewards) = step.words("rewards", f32::from_le_bytes);
    let rewards: Vec<Option<f64>> = rewards.iter().map(|r| Some(f64::from(*r))).collect();
    let a = advantages(&rewards, 4, ScaleRewards::Group);
    let (_, want) = step.words("advantages", f32::from_le_bytes);
    for (got, want) in a.values.iter().zip(&want) {
        assert!((got - f64::from(*want)).abs() < 1e-6);
    }
    let mut learner = step.learner(4);
    learner.limits = limits;
    let updates = learner
        .update(&train_rows(&prompts, &completions, &a.values), [0, 0])
        .unwrap();
    assert_eq!(updates.each.len(), 4);
    for (i, update) in updates.each.iter().enumerate() {
        let loss = step.case["losses_f64"][i].as_f64().unwrap();
        let norm = step.case["grad_norms_before_clip"][i].as_f64().unwrap();
        // The reference's own f32 against f64: 1e-6 of loss.
        assert!(
            (update.loss - loss).abs() < 5e-6,
            "{name} loss {i}: {} {loss}",
            update.loss
        );
        assert!(
            (update.grad_norm / norm - 1.0).abs() < 2e-4,
            "{name} norm {i}: {} {norm}",
            update.grad_norm
        );
    }
    let kl: f64 = step.case["kl"]
        .as_array()
        .unwrap()
        .iter()
        .map(|k| k.as_f64().unwrap())
        .sum();
    assert!((updates.metrics.kl() * 4.0 - kl).abs() < 1e-4 * kl.max(1.0));
    let mut worst = 0f32;
    for (tensor, values) in learner.adapter().0 {
        let tensor = tensor.strip_prefix("base_model.model.").unwrap();
        let (_, want) = step.words(&format!("final.{tensor}"), f32::from_le_bytes);
        for (got, want) in values.data.iter().zip(&want) {
            worst = worst.max((got - want).abs());
        }
    }
    println!("{name}: adapter after four updates differs by {worst:e}");
    assert!(worst < 5e-5, "{name}: {worst:e}");
}

#[test]
fn four_updates_equal_pytorch() {
    for name in ["gspo", "gspo_kl", "gspo_kl_bias"] {
        assert_run(name, Limits::default());
    }
}

#[test]
fn micro_batches_change_nothing_that_matters() {
    let limits = Limits {
        micro_batch_tokens: 40,
        ..Limits::default()
    };
    assert_run("gspo_kl_bias", limits);
}

#[test]
fn the_first_gradient_equals_pytorch() {
    let step = Step::read("gspo_kl");
    let (prompts, completions) = (step.rows("prompt"), step.rows("completion"));
    let (_, advantages) = step.words("advantages", f32::from_le_bytes);
    let advantages: Vec<f64> = advantages.iter().map(|a| f64::from(*a)).collect();
    let mut learner = step.learner(1);
    learner
        .update(&train_rows(&prompts, &completions, &advantages), [0, 0])
        .unwrap();
    // After one update m = (1 − β₁) times the clipped gradient.
    let norm = step.case["grad_norms_before_clip"][0].as_f64().unwrap();
    let clip = 1.0 / (norm + 1e-6);
    let moments = learner.optimizer.moments().clone();
    learner.set_flat(&moments.m).unwrap();
    for (tensor, values) in learner.adapter().0 {
        let tensor = tensor.strip_prefix("base_model.model.").unwrap();
        let (_, want) = step.words(&format!("grad0.{tensor}"), f32::from_le_bytes);
        let scale = want.iter().map(|w| w.abs()).fold(0.0, f32::max);
        for (got, want) in values.data.iter().zip(&want) {
            let got = f64::from(*got) / (0.1 * clip);
            assert!(
                (got - f64::from(*want)).abs() < 2e-4 * f64::from(scale),
                "{tensor}: {got} {want}"
            );
        }
    }
}

/// The first update's loss and moments of two rows of lengths 1 and 9, with one or two parts a minibatch.
fn first_update(parts: u32, beta: f64) -> (f64, f64, Vec<f32>) {
    let step = Step::read("gspo");
    let prompts = step.rows("prompt");
    let completions: Vec<Vec<u32>> = vec![vec![7], (3..12).collect()];
    let mut learner = step.learner(1);
    learner.spec.gradient_accumulation_steps = parts;
    learner.spec.beta = beta;
    let updates = learner
        .update(&train_rows(&prompts[..2], &completions, &[0.7, -0.7]), [0, 0])
        .unwrap();
    let update = updates.each[0];
    (
        update.loss,
        update.grad_norm,
        learner.optimizer.moments().m.clone(),
    )
}

#[test]
fn lengths_one_and_nine_under_accumulation_equal_the_whole_batch() {
    let (whole, parts) = (first_update(1, 0.1), first_update(2, 0.1));
    // Packed otherwise, f32 log-probabilities round otherwise.
    assert!((whole.0 / parts.0 - 1.0).abs() < 5e-6, "{} {}", whole.0, parts.0);
    let worst = whole
        .2
        .iter()
        .zip(&parts.2)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    let size = whole.2.iter().map(|m| m.abs()).fold(0.0, f32::max);
    assert!(worst < 1e-5 * size, "{worst} of {size}");
}

#[test]
fn an_on_policy_update_has_no_loss_and_a_gradient() {
    let (loss, norm, _) = first_update(1, 0.0);
    assert!(loss.abs() < 1e-6 && norm > 0.0, "{loss} {norm}");
}

/// The blocks run again give the gradients of the blocks run once, and every B moves.
#[test]
fn checkpointing_changes_nothing() {
    let step = Step::read("gspo_kl_bias");
    let (prompts, completions) = (step.rows("prompt"), step.rows("completion"));
    let (_, advantages) = step.words("advantages", f32::from_le_bytes);
    let advantages: Vec<f64> = advantages.iter().map(|a| f64::from(*a)).collect();
    let after = |gradient_checkpointing| {
        let mut learner = step.learner(1);
        learner.spec.gradient_checkpointing = gradient_checkpointing;
        let before = learner.adapter();
        let updates = learner.update(&train_rows(&prompts, &completions, &advantages), [0, 0]);
        (updates.unwrap().each[0], before, learner)
    };
    let (plain, _, whole) = after(false);
    let (update, before, learner) = after(true);
    // Operations that keep nothing round otherwise than those that do.
    assert!(
        (plain.loss / update.loss - 1.0).abs() < 2e-6,
        "{plain:?} {update:?}"
    );
    assert!(
        (plain.grad_norm / update.grad_norm - 1.0).abs() < 2e-6,
        "{plain:?} {update:?}"
    );
    let (m, other) = (&whole.optimizer.moments().m, &learner.optimizer.moments().m);
    let size = m.iter().map(|m| m.abs()).fold(0.0, f32::max);
    let apart = m
        .iter()
        .zip(other)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(apart < 5e-6 * size, "{apart} of {size}");
    let moved = learner.adapter();
    for (name, tensor) in before.0.iter().filter(|(name, _)| name.contains("lora_B")) {
        assert_ne!(tensor, &moved.0[name], "{name} has not moved");
    }
}

#[test]
fn a_non_finite_gradient_changes_nothing() {
    let step = Step::read("gspo");
    let (prompts, completions) = (step.rows("prompt"), step.rows("completion"));
    let mut learner = step.learner(2);
    let before = (learner.flat.clone(), learner.optimizer.clone());
    let mut advantages = vec![1.0; prompts.len()];
    advantages[3] = f64::INFINITY;
    assert!(
        learner
            .update(&train_rows(&prompts, &completions, &advantages), [0, 0])
            .is_err()
    );
    assert_eq!(before, (learner.flat.clone(), learner.optimizer.clone()));
}
