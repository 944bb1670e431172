//! Advantages, loss, gradient and metrics against TRL's own: sequence level, GSPO-token, and all levels and loss types.

use super::report::{Quantity, Tally};
use super::tensors::{Object, Tensors, json};
use super::{ReferenceError, Set};
use crate::gspo::{Denominators, Loss, LossConfig, LossRow, advantages, loss};
use gym_protocol::job::spec::{ImportanceSampling, LossType, ScaleRewards};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The rows of a case, only their unmasked tokens.
#[derive(Clone)]
pub(super) struct Batch {
    pub(super) new: Vec<Vec<f64>>,
    pub(super) old: Vec<Vec<f64>>,
    pub(super) reference: Option<Vec<Vec<f64>>>,
    /// Once a token.
    pub(super) advantages: Vec<Vec<f64>>,
    mask: Vec<bool>,
    width: usize,
}

pub(super) fn compare(set: &Set<'_>, tally: &mut Tally) -> Result<(), ReferenceError> {
    let file = Tensors::open(&set.path("gspo.safetensors"))?;
    let all = json(&set.path("cases.json"))?;
    let head = Object {
        what: "cases.json",
        value: &all,
    };
    for value in head.items("cases")? {
        let case = Object {
            what: "a case of cases.json",
            value,
        };
        compare_sequence(case, head, &file, tally)?;
    }
    file.finish(tally);
    compare_token(set, tally)
}

fn compare_sequence(
    case: Object<'_>,
    head: Object<'_>,
    file: &Tensors,
    tally: &mut Tally,
) -> Result<(), ReferenceError> {
    let id = case.text("id")?;
    let batch = Batch::read(file, &format!("{id}."))?;
    let config = LossConfig {
        level: setting(case, head, "importance_sampling_level")?,
        loss_type: setting(case, head, "loss_type")?,
        ..config(case)?
    };
    let length = case.count_or("max_completion_length", batch.width)?;
    let got = loss(
        &config,
        &batch.denominators(0..batch.len(), length),
        &batch.rows(0..batch.len()),
    );
    tally.number(
        Quantity::absolute("loss", 1e-6),
        id,
        got.value,
        case.number("loss")?,
    );
    tally.number(
        Quantity::absolute("loss_f64", 1e-6),
        id,
        got.value,
        case.number("loss_f64")?,
    );
    batch.compare_gradient(&got.gradient, file, &format!("{id}.grad_new"), 1e-6, tally)?;
    batch.compare_gradient(&got.gradient, file, &format!("{id}.grad_new_f64"), 1e-6, tally)?;
    let ratio = Quantity::absolute("ratio", 1e-6);
    tally.numbers(ratio, id, &got.ratios, &case.numbers("ratio")?);
    tally.numbers(ratio, id, &got.ratios, &file.numbers(&format!("{id}.ratio"))?);
    compare_metrics(case, id, &got, tally)?;
    compare_advantages(case, file, id, tally)
}

/// TRL's advantages of the case's rewards; a reward that could not be had is NaN.
fn compare_advantages(
    case: Object<'_>,
    file: &Tensors,
    id: &str,
    tally: &mut Tally,
) -> Result<(), ReferenceError> {
    let scale: ScaleRewards = match case.get("scale_rewards") {
        Some(value) => parse(value, "scale_rewards")?,
        None => ScaleRewards::Group,
    };
    let rewards: Vec<Option<f64>> = match case.get("rewards").and_then(Value::as_array) {
        Some(_) if !file.has(&format!("{id}.rewards")) => {
            case.list("rewards")?.iter().map(Value::as_f64).collect()
        }
        _ => known(&file.numbers(&format!("{id}.rewards"))?),
    };
    let got = advantages(&rewards, case.count("num_generations")?, scale);
    let what = Quantity::absolute("advantages", 1e-6);
    tally.numbers(what, id, &got.values, &file.numbers(&format!("{id}.advantages"))?);
    if case.get("advantages").is_some() {
        tally.numbers(what, id, &got.values, &case.numbers("advantages")?);
    }
    Ok(())
}

pub(super) fn known(rewards: &[f64]) -> Vec<Option<f64>> {
    rewards.iter().map(|r| (!r.is_nan()).then_some(*r)).collect()
}

fn compare_token(set: &Set<'_>, tally: &mut Tally) -> Result<(), ReferenceError> {
    let (tensors, cases) = (set.path("gspo_token.safetensors"), set.path("gspo_token.json"));
    if !tensors.is_file() && !cases.is_file() {
        tally.problem("gspo_token.safetensors and gspo_token.json are missing".into());
        return Ok(());
    }
    let (file, all) = (Tensors::open(&tensors)?, json(&cases)?);
    let head = Object {
        what: "gspo_token.json",
        value: &all,
    };
    for value in head.items("cases")? {
        let case = Object {
            what: "a case of gspo_token.json",
            value,
        };
        let id = case.text("id")?;
        let batch = Batch::read(&file, &format!("{id}."))?;
        let config = LossConfig {
            level: ImportanceSampling::SequenceToken,
            loss_type: LossType::Grpo,
            ..config(case)?
        };
        let got = loss(
            &config,
            &batch.denominators(0..batch.len(), batch.width),
            &batch.rows(0..batch.len()),
        );
        tally.number(
            Quantity::absolute("gspo_token loss", 1e-6),
            id,
            got.value,
            case.number("loss")?,
        );
        let rows = batch.row_ratios();
        tally.numbers(
            Quantity::absolute("gspo_token ratio", 1e-6),
            id,
            &rows,
            &case.numbers("ratio")?,
        );
        batch.compare_gradient(&got.gradient, &file, &format!("{id}.grad_new"), 1e-6, tally)?;
    }
    file.finish(tally);
    Ok(())
}

pub(super) fn compare_variants(set: &Set<'_>, tally: &mut Tally) -> Result<(), ReferenceError> {
    let file = Tensors::open(&set.path("gspo_variants.safetensors"))?;
    let all = json(&set.path("cases.json"))?;
    let head = Object {
        what: "cases.json",
        value: &all,
    };
    for value in head.items("cases")? {
        let case = Object {
            what: "a case of cases.json",
            value,
        };
        let id = case.text("id")?;
        let batch = Batch::read(&file, &format!("{id}."))?;
        let part = Part {
            batch: &batch,
            rows: 0..batch.len(),
            accumulation: case.count("gradient_accumulation_steps")?,
        };
        let (got, scaled) = part.loss(case)?;
        tally.number(
            Quantity::absolute("loss", 5e-7),
            id,
            scaled.value,
            case.number("loss")?,
        );
        tally.number(
            Quantity::absolute("loss_f64", 5e-7),
            id,
            scaled.value,
            case.number("loss_f64")?,
        );
        for suffix in ["grad_new", "grad_new_f64"] {
            batch.compare_gradient(&scaled.gradient, &file, &format!("{id}.{suffix}"), 1e-7, tally)?;
        }
        compare_metrics(case, id, &got, tally)?;
        if needs_kl(case) {
            let kl = case.number("kl_f64")?;
            tally.number(Quantity::absolute("kl_f64", 1e-6), id, got.metrics.kl(), kl);
        }
        compare_advantages(case, &file, id, tally)?;
    }
    file.finish(tally);
    Ok(())
}

/// Some rows of a batch as one micro-batch of TRL's.
pub(super) struct Part<'a> {
    pub(super) batch: &'a Batch,
    pub(super) rows: std::ops::Range<usize>,
    /// TRL's `current_gradient_accumulation_steps`.
    pub(super) accumulation: usize,
}

/// Loss and gradient as TRL scales them.
pub(super) struct Scaled {
    pub(super) value: f64,
    pub(super) gradient: Vec<Vec<f64>>,
}

impl Part<'_> {
    /// Ours, and ours under TRL's factors: 1/ga, and for dapo N/P · ga/spg in the denominator.
    pub(super) fn loss(&self, case: Object<'_>) -> Result<(Loss, Scaled), ReferenceError> {
        let config = LossConfig {
            level: setting(case, case, "importance_sampling_level")?,
            loss_type: setting(case, case, "loss_type")?,
            ..config(case)?
        };
        let accumulation = self.accumulation as f64;
        let length = case.count("max_completion_length")?;
        let mut denominators = self.batch.denominators(self.rows.clone(), length);
        let factor = if config.loss_type == LossType::Dapo {
            denominators.rollout_tokens = case.count("num_items_in_batch")?;
            let share = accumulation / case.number("steps_per_generation")?;
            case.count_or("num_processes", 1)? as f64 / share
        } else {
            1.0 / accumulation
        };
        let got = loss(&config, &denominators, &self.batch.rows(self.rows.clone()));
        let gradient = got
            .gradient
            .iter()
            .map(|row| row.iter().map(|g| g * factor).collect());
        let scaled = Scaled {
            value: got.value * factor,
            gradient: gradient.collect(),
        };
        Ok((got, scaled))
    }
}

pub(super) fn compare_metrics(
    case: Object<'_>,
    id: &str,
    got: &Loss,
    tally: &mut Tally,
) -> Result<(), ReferenceError> {
    let metrics = &got.metrics;
    for (key, value) in [
        ("clip_ratio", metrics.clip_region()),
        ("clip_low", metrics.clip_low()),
        ("clip_high", metrics.clip_high()),
    ] {
        tally.number(Quantity::absolute(key, 1e-6), id, value, case.number(key)?);
    }
    if needs_kl(case) {
        tally.number(
            Quantity::absolute("kl", 1e-6),
            id,
            metrics.kl(),
            case.number("kl")?,
        );
    }
    Ok(())
}

/// Whether the case has a KL to compare: it says one, or must by its β.
pub(super) fn needs_kl(case: Object<'_>) -> bool {
    let beta = case.get("beta").and_then(Value::as_f64);
    case.get("kl").is_some() || beta.is_some_and(|beta| beta > 0.0)
}

fn config(case: Object<'_>) -> Result<LossConfig, ReferenceError> {
    let flag = case.get("use_bias_correction_kl").and_then(Value::as_bool);
    Ok(LossConfig {
        level: ImportanceSampling::Sequence,
        loss_type: LossType::Grpo,
        epsilon_low: case.number("eps_low")?,
        epsilon_high: case.number("eps_high")?,
        beta: case.get("beta").and_then(Value::as_f64).unwrap_or(0.0),
        kl_bias_correction: flag.unwrap_or(false),
    })
}

/// A setting of a case, or of all cases.
fn setting<T: DeserializeOwned>(case: Object<'_>, head: Object<'_>, key: &str) -> Result<T, ReferenceError> {
    let value = case
        .get(key)
        .or_else(|| head.get(key))
        .ok_or_else(|| case.no(key, "setting"))?;
    parse(value, key)
}

fn parse<T: DeserializeOwned>(value: &Value, key: &str) -> Result<T, ReferenceError> {
    serde_json::from_value(value.clone()).map_err(|e| ReferenceError::Ours(format!("{key}: {e}")))
}

impl Batch {
    /// The tensors `{prefix}new`, `old`, `ref`, `mask`, and `advantages` or `adv_tok`.
    pub(super) fn read(file: &Tensors, prefix: &str) -> Result<Self, ReferenceError> {
        let name = |part: &str| format!("{prefix}{part}");
        let rows = |part: &str| file.unmasked(&file.numbers(&name(part))?, &name("mask"));
        let new = rows("new")?;
        let advantages = if file.has(&name("adv_tok")) {
            rows("adv_tok")?
        } else {
            let each = file.numbers(&name("advantages"))?;
            if each.len() != new.len() {
                return Err(ReferenceError::Ours(format!(
                    "{} has {} numbers for {} rows",
                    name("advantages"),
                    each.len(),
                    new.len()
                )));
            }
            new.iter().zip(each).map(|(row, a)| vec![a; row.len()]).collect()
        };
        Ok(Self {
            old: rows("old")?,
            reference: file.has(&name("ref")).then(|| rows("ref")).transpose()?,
            advantages,
            mask: file.mask(&name("mask"))?,
            width: file.width(&name("mask"))?,
            new,
        })
    }

    /// The same rows with the new log-probabilities for old ones.
    pub(super) fn on_policy(&self) -> Self {
        Self {
            old: self.new.clone(),
            ..self.clone()
        }
    }

    pub(super) fn len(&self) -> usize {
        self.new.len()
    }

    pub(super) fn rows(&self, range: std::ops::Range<usize>) -> Vec<LossRow<'_>> {
        range
            .map(|i| LossRow {
                new: &self.new[i],
                old: &self.old[i],
                reference: self.reference.as_ref().map(|r| r[i].as_slice()),
                advantages: &self.advantages[i],
            })
            .collect()
    }

    /// What the sums over these rows are divided by, the rollout batch being the whole.
    pub(super) fn denominators(
        &self,
        range: std::ops::Range<usize>,
        max_completion_length: usize,
    ) -> Denominators {
        let tokens = |rows: &[Vec<f64>]| rows.iter().map(Vec::len).sum();
        Denominators {
            rows: range.len(),
            minibatch_tokens: tokens(&self.new[range]),
            rollout_tokens: tokens(&self.new),
            max_completion_length,
        }
    }

    /// exp of the mean log-ratio of each row.
    fn row_ratios(&self) -> Vec<f64> {
        let mean = |new: &[f64], old: &[f64]| {
            let sum: f64 = new.iter().zip(old).map(|(n, o)| n - o).sum();
            (sum / new.len().max(1) as f64).exp()
        };
        self.new.iter().zip(&self.old).map(|(n, o)| mean(n, o)).collect()
    }

    /// A gradient by row against the tensor [rows, width] of that name, masked places being 0.
    pub(super) fn compare_gradient(
        &self,
        gradient: &[Vec<f64>],
        file: &Tensors,
        tensor: &str,
        tolerance: f64,
        tally: &mut Tally,
    ) -> Result<(), ReferenceError> {
        let mut all = gradient.iter().flatten();
        let got: Vec<f64> = self
            .mask
            .iter()
            .map(|m| {
                if *m {
                    all.next().copied().unwrap_or(f64::NAN)
                } else {
                    0.0
                }
            })
            .collect();
        let quantity = tensor.rsplit('.').next().unwrap_or(tensor);
        let what = Quantity::absolute(quantity, tolerance);
        tally.numbers(what, tensor, &got, &file.numbers(tensor)?);
        Ok(())
    }
}
