//! A batch as one, two and more micro-batches against TRL.

use super::gspo::{Batch, Part, known, needs_kl};
use super::report::{Quantity, Tally};
use super::tensors::{Object, Tensors, json, numbers};
use super::{ReferenceError, Set};
use crate::gspo::{LossMetrics, advantages};
use gym_protocol::job::spec::ScaleRewards;
use serde_json::Value;

const TOLERANCE: f64 = 1e-7;

type Metric = fn(&LossMetrics) -> f64;
const METRICS: [(&str, Metric); 2] = [("kl", LossMetrics::kl), ("clip_ratio", LossMetrics::clip_region)];

pub(super) fn compare(set: &Set<'_>, tally: &mut Tally) -> Result<(), ReferenceError> {
    let file = Tensors::open(&set.path("accumulation.safetensors"))?;
    let all = json(&set.path("cases.json"))?;
    let head = Object {
        what: "cases.json",
        value: &all,
    };
    let batch = Batch::read(&file, "")?;
    compare_advantages(&file, tally)?;
    for value in head.items("cases")? {
        let case = Object {
            what: "a case of cases.json",
            value,
        };
        compare_case(case, &batch, &file, tally)?;
    }
    file.finish(tally);
    Ok(())
}

fn compare_advantages(file: &Tensors, tally: &mut Tally) -> Result<(), ReferenceError> {
    let (rewards, want) = (file.numbers("rewards")?, file.numbers("advantages")?);
    some_groups_advantages(&rewards, &want, "", tally);
    Ok(())
}

/// The set does not say how large its groups are: one size gives TRL's advantages, or none does.
pub(super) fn some_groups_advantages(rewards: &[f64], want: &[f64], place: &str, tally: &mut Tally) {
    let sizes = (2..=rewards.len()).filter(|n| rewards.len().is_multiple_of(*n));
    let tried = sizes.map(|n| (n, advantages(&known(rewards), n, ScaleRewards::Group).values));
    let best = tried.min_by(|(_, a), (_, b)| apart(a, want).total_cmp(&apart(b, want)));
    match best {
        Some((size, got)) => {
            let place = format!("{place} in groups of {size}");
            tally.numbers(Quantity::absolute("advantages", 1e-6), place.trim(), &got, want);
        }
        None => tally.problem(format!("{} rewards make no group", rewards.len())),
    }
}

pub(super) fn apart(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

fn compare_case(
    case: Object<'_>,
    batch: &Batch,
    file: &Tensors,
    tally: &mut Tally,
) -> Result<(), ReferenceError> {
    let id = case.text("id")?;
    // On policy TRL takes the new log-probabilities, detached, for the old ones.
    let on_policy = case.get("old_logps_given").and_then(Value::as_bool) == Some(false);
    let own;
    let batch = if on_policy {
        own = batch.on_policy();
        &own
    } else {
        batch
    };
    let (mut losses, mut gradient, mut metrics) = (Vec::new(), Vec::new(), Vec::new());
    let mut start = 0;
    for lengths in case.items("row_lengths_per_micro_batch")? {
        let rows = lengths.as_array().map_or(0, Vec::len);
        let end = (start + rows).min(batch.len());
        let part = Part {
            batch,
            rows: start..end,
            accumulation: case.count("current_gradient_accumulation_steps")?,
        };
        let (got, scaled) = part.loss(case)?;
        losses.push(scaled.value);
        gradient.extend(scaled.gradient);
        metrics.push(got.metrics);
        start = end;
    }
    tally.exact("rows", id, &[start], &[batch.len()]);
    let loss = Quantity::absolute("losses_per_micro_batch", TOLERANCE);
    tally.numbers(loss, id, &losses, &case.numbers("losses_per_micro_batch")?);
    let sum = Quantity::absolute("loss_sum", TOLERANCE);
    tally.number(sum, id, losses.iter().sum(), case.number("loss_sum")?);
    for name in ["grad_total", "grad_total_f64"] {
        batch.compare_gradient(&gradient, file, &format!("{id}.{name}"), TOLERANCE, tally)?;
    }
    if let (Some(whole), Some(true)) = (
        case.get("whole_batch_case").and_then(Value::as_str),
        case.get("equal_to_whole_batch").and_then(Value::as_bool),
    ) {
        // The micro-batches' sum is the whole batch's gradient.
        batch.compare_gradient(
            &gradient,
            file,
            &format!("{whole}.grad_total_f64"),
            TOLERANCE,
            tally,
        )?;
    }
    compare_metrics(case, id, &metrics, tally)
}

fn compare_metrics(
    case: Object<'_>,
    id: &str,
    got: &[LossMetrics],
    tally: &mut Tally,
) -> Result<(), ReferenceError> {
    let each = case
        .get("metrics_per_micro_batch")
        .ok_or_else(|| case.no("metrics_per_micro_batch", "object"))?;
    let logged = case.get("metrics_logged_by_trl");
    for (key, of) in METRICS {
        if key == "kl" && !needs_kl(case) {
            continue;
        }
        let want = each.get(key).and_then(Value::as_array);
        let want = want.ok_or_else(|| case.no("metrics_per_micro_batch", "list of each metric"))?;
        let want = numbers(want).ok_or_else(|| case.no("metrics_per_micro_batch", "numbers"))?;
        let values: Vec<f64> = got.iter().map(of).collect();
        tally.numbers(Quantity::absolute(key, 1e-6), id, &values, &want);
        // TRL logs the plain mean.
        if let Some(mean) = logged.and_then(|l| l.get(key)).and_then(Value::as_f64) {
            let ours = values.iter().sum::<f64>() / values.len().max(1) as f64;
            tally.number(Quantity::absolute(&format!("logged {key}"), 1e-6), id, ours, mean);
        }
    }
    Ok(())
}
