//! bf16 against f32: as far apart as transformers' own bf16 is, with half as much again.
//!
//! Where experts are routed a few flipped choices dominate the largest difference, so medians over places are held
//! against theirs there.

use super::model::{Padded, greedy, logits};
use super::report::{Quantity, Tally};
use super::tensors::{Object, Tensors, json, numbers};
use super::{ReferenceError, Set};
use crate::model::{Decoder, Precision};
use serde_json::Value;

/// Of transformers' gap.
const SHARE: f64 = 1.5;

pub(super) fn compare(set: &Set<'_>, tally: &mut Tally) -> Result<(), ReferenceError> {
    let file = json(&set.path("bf16.json"))?;
    let whole = Object {
        what: "bf16.json",
        value: &file,
    };
    let models = whole.get("archs").and_then(Value::as_object);
    for (name, value) in models.ok_or_else(|| whole.no("archs", "object"))? {
        let own = Object { what: name, value };
        if let Err(error) = compare_model(set, &own, tally) {
            tally.problem(format!("{name}: {error}"));
        }
    }
    Ok(())
}

fn compare_model(set: &Set<'_>, own: &Object<'_>, tally: &mut Tally) -> Result<(), ReferenceError> {
    let dir = set.base(own.what)?;
    let decoder = Decoder::load_as(&dir, &set.device(), Precision::Bf16).map_err(ReferenceError::ours)?;
    let expected = Tensors::open(&dir.join("expected.safetensors"))?;
    let vocab = decoder.config().vocab_size;
    for side in ["left", "right"] {
        let inputs = Padded::read(&expected, side, vocab)?;
        let want = inputs.kept(&expected.numbers(&format!("logits_{side}"))?);
        let got = logits(&decoder, &inputs.packed(), None);
        if got.len() != want.len() {
            return Err(ReferenceError::Ours(format!("logits_{side} has another shape")));
        }
        // A median would pass over some that are not.
        if !got.iter().chain(&want).all(|v| v.is_finite()) {
            return Err(ReferenceError::Ours(format!("logits_{side} are not all finite")));
        }
        let key = format!("gap_{side}");
        let value = own.get(&key).ok_or_else(|| own.no(&key, "object"))?;
        let theirs = Object { what: &key, value };
        for (measure, ours) in gap(&decoder, &got, &want) {
            // As shares of theirs, so that all models stand in one line.
            let name = format!("{measure}, of transformers' own");
            let share = ours / theirs.number(measure)?.max(f64::MIN_POSITIVE);
            let place = format!("{}, {side}", own.what);
            tally.number(Quantity::absolute(&name, SHARE), &place, share, 0.0);
        }
    }
    compare_greedy(&decoder, &Padded::read(&expected, "left", vocab)?, own, tally)
}

/// The measures that count for this model.
fn gap(decoder: &Decoder, got: &[f64], want: &[f64]) -> [(&'static str, f64); 2] {
    let apart: Vec<f64> = got.iter().zip(want).map(|(a, b)| (a - b).abs()).collect();
    let places = apart.chunks(decoder.config().vocab_size);
    if decoder.config().experts().is_some() {
        [
            ("place_rms_median", median(places.clone().map(rms))),
            ("place_max_median", median(places.map(largest))),
        ]
    } else {
        [("max", largest(&apart)), ("rms", rms(&apart))]
    }
}

/// Tokens count up to the first that transformers' bf16 chose by less than twice the gap.
fn compare_greedy(
    decoder: &Decoder,
    left: &Padded,
    own: &Object<'_>,
    tally: &mut Tally,
) -> Result<(), ReferenceError> {
    let gap = own
        .get("gap_left")
        .and_then(|g| g.get("max"))
        .and_then(Value::as_f64);
    let gap = gap.ok_or_else(|| own.no("gap_left", "object with max"))?;
    let ids = rows(own, "greedy_ids_bf16")?;
    let margins = rows(own, "greedy_bf16_margin_top1_top2")?;
    let steps = ids.iter().map(Vec::len).max().unwrap_or(0);
    let rows = left.rows();
    let whole = |all: &[Vec<f64>]| all.len() == rows.len() && all.iter().all(|row| row.len() == steps);
    if steps == 0 || !whole(&ids) || !whole(&margins) {
        return Err(own.no("greedy_ids_bf16", "margin beside each token of each row in"));
    }
    let got = greedy(decoder, &rows, steps)?;
    for (row, ((got, want), margins)) in got.iter().zip(&ids).zip(&margins).enumerate() {
        let sure = margins.iter().take_while(|m| **m >= 2.0 * gap).count();
        let sure = sure.min(got.len()).min(want.len());
        let got: Vec<f64> = got.iter().map(|t| f64::from(*t)).collect();
        if sure > 0 {
            let place = format!("{}, row {row}", own.what);
            tally.exact("greedy_ids_bf16", &place, &got[..sure], &want[..sure]);
        }
    }
    Ok(())
}

fn rows(own: &Object<'_>, key: &'static str) -> Result<Vec<Vec<f64>>, ReferenceError> {
    let row = |row: &Value| row.as_array().and_then(|r| numbers(r));
    let all = own.list(key)?.iter().map(row).collect::<Option<_>>();
    all.ok_or_else(|| own.no(key, "list of lists of numbers"))
}

fn rms(values: &[f64]) -> f64 {
    (values.iter().map(|v| v * v).sum::<f64>() / values.len().max(1) as f64).sqrt()
}

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = values.collect();
    all.sort_by(f64::total_cmp);
    let middle = all.len() / 2;
    match all.len() {
        0 => 0.0,
        n if n % 2 == 1 => all[middle],
        _ => (all[middle - 1] + all[middle]) / 2.0,
    }
}
