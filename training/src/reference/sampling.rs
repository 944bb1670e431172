//! Philox, the noise and the drawn tokens.

use super::report::{Quantity, Tally};
use super::tensors::{Object, json};
use super::{ReferenceError, Set};
use crate::sampling::{Filters, Noise, RolloutKey, greedy, gumbel, philox, unit};
use serde_json::Value;

const LOGARITHMS: f64 = 1e-12;
/// u is exact; the JSON parser may lose the last bit of the printed one, half a grid step being 3e-8. That u's integer
/// is right is compared beside it, exactly.
const PARSER: f64 = 1.2e-16;
/// Margins are differences of scores of up to twenty.
const MARGIN: f64 = 4e-11;

pub(super) fn compare(set: &Set<'_>, tally: &mut Tally) -> Result<(), ReferenceError> {
    let all = json(&set.path("sampling.json"))?;
    let head = Object {
        what: "sampling.json",
        value: &all,
    };
    for key in ["known_answers", "further_answers"] {
        for (i, case) in head.items(key)?.iter().enumerate() {
            let case = Object {
                what: key,
                value: case,
            };
            let got = philox(words(case, "counter")?, words(case, "key")?);
            tally.exact(key, &format!("number {i}"), &got, &words::<4>(case, "output")?);
        }
    }
    let sampling = head
        .get("sampling")
        .ok_or_else(|| head.no("sampling", "object"))?;
    let sampling = Object {
        what: "sampling",
        value: sampling,
    };
    for (i, value) in sampling.items("examples")?.iter().enumerate() {
        let example = Object {
            what: "an example",
            value,
        };
        compare_example(example, &format!("example {i}"), tally)?;
    }
    for value in sampling.items("edge_words")? {
        compare_edge(
            Object {
                what: "an edge word",
                value,
            },
            tally,
        )?;
    }
    compare_distribution(head, sampling, tally)
}

fn compare_example(example: Object<'_>, place: &str, tally: &mut Tally) -> Result<(), ReferenceError> {
    let (key, base) = (words(example, "key")?, words::<4>(example, "counter_of_block_0")?);
    let logits: Vec<f32> = example.numbers("logits")?.iter().map(|v| *v as f32).collect();
    let scores = filters(example.number("T")?).scores(&logits, &[]);
    let blocks = logits.len().div_ceil(4) as u32;
    let counters: Vec<[u32; 4]> = (0..blocks)
        .map(|b| [base[0].wrapping_add(b), base[1], base[2], base[3]])
        .collect();
    let wanted: Vec<[u32; 4]> = example
        .list("counters")?
        .iter()
        .map(|value| list_of_words(value).ok_or_else(|| example.no("counters", "lists of words")))
        .collect::<Result<_, _>>()?;
    tally.exact("counters", place, &counters, &wanted);
    let mut drawn: Vec<u32> = counters.iter().flat_map(|c| philox(*c, key)).collect();
    drawn.truncate(logits.len());
    let wanted: Vec<u32> = example
        .list("words_u32")?
        .iter()
        .map(|v| word(v).ok_or_else(|| example.no("words_u32", "words")))
        .collect::<Result<_, _>>()?;
    tally.exact("words_u32", place, &drawn, &wanted);
    let tops: Vec<f64> = drawn.iter().map(|w| f64::from(w >> 8)).collect();
    tally.exact("x_top24", place, &tops, &example.numbers("x_top24")?);
    let u: Vec<f64> = drawn.iter().map(|w| unit(*w)).collect();
    tally.numbers(Quantity::absolute("u", PARSER), place, &u, &example.numbers("u")?);
    let g: Vec<f64> = u.iter().map(|u| gumbel(*u)).collect();
    each_relative("gumbel", place, &g, &example.numbers("gumbel")?, tally);
    let noisy: Vec<f64> = scores.iter().zip(&g).map(|(s, g)| s + g).collect();
    each_relative("score", place, &noisy, &example.numbers("score")?, tally);
    let token = greedy(&noisy).map(|t| t as usize);
    tally.exact("token", place, &[token], &[Some(example.count("token")?)]);
    // The engine's own noise starts its counter at block 0; such an example goes through it whole.
    if base[0] == 0 && base[2..] == [0, 0] {
        let token = Noise::from_key(key).choose(&scores, base[1]).map(|t| t as usize);
        tally.exact(
            "token by the engine",
            place,
            &[token],
            &[Some(example.count("token")?)],
        );
    }
    let likeliest = greedy(&scores).map(|t| t as usize);
    tally.exact(
        "greedy_token",
        place,
        &[likeliest],
        &[Some(example.count("greedy_token")?)],
    );
    let mut sorted = noisy;
    sorted.sort_by(|a, b| b.total_cmp(a));
    if let [first, second, ..] = sorted[..] {
        let what = Quantity::absolute("margin_to_second", MARGIN);
        tally.number(what, place, first - second, example.number("margin_to_second")?);
    }
    Ok(())
}

fn compare_edge(edge: Object<'_>, tally: &mut Tally) -> Result<(), ReferenceError> {
    let text = edge.text("word")?;
    let word = edge
        .get("word")
        .and_then(word)
        .ok_or_else(|| edge.no("word", "word"))?;
    let u = unit(word);
    tally.exact("edge x", text, &[f64::from(word >> 8)], &[edge.number("x")?]);
    tally.number(Quantity::absolute("edge u", PARSER), text, u, edge.number("u")?);
    each_relative(
        "edge gumbel",
        text,
        &[gumbel(u)],
        &[edge.number("gumbel")?],
        tally,
    );
    Ok(())
}

/// Each number relative to itself.
fn each_relative(name: &str, place: &str, got: &[f64], want: &[f64], tally: &mut Tally) {
    if got.len() != want.len() {
        return tally.numbers(Quantity::relative(name, LOGARITHMS), place, got, want);
    }
    for (got, want) in got.iter().zip(want) {
        tally.number(Quantity::relative(name, LOGARITHMS), place, *got, *want);
    }
}

/// χ² of our own draws from one example's distribution, under what one in a thousand good samplers exceeds.
fn compare_distribution(
    head: Object<'_>,
    sampling: Object<'_>,
    tally: &mut Tally,
) -> Result<(), ReferenceError> {
    let Some(value) = head.get("distribution_check") else {
        tally.problem("sampling.json has no distribution_check".into());
        return Ok(());
    };
    let check = Object {
        what: "distribution_check",
        value,
    };
    let examples = sampling.list("examples")?;
    let example = examples
        .get(check.count("of_example")?)
        .ok_or_else(|| check.no("of_example", "example"))?;
    let example = Object {
        what: "an example",
        value: example,
    };
    let logits: Vec<f32> = example.numbers("logits")?.iter().map(|v| *v as f32).collect();
    let (temperature, draws) = (check.number("T")?, check.count("draws")?);
    let scores = filters(temperature).scores(&logits, &[]);
    let mut counts = vec![0f64; logits.len()];
    let noise = RolloutKey::offline(1).noise(0, 0, 0);
    for position in 0..draws {
        if let Some(token) = noise.choose(&scores, position as u32) {
            counts[token as usize] += 1.0;
        }
    }
    let whole: f64 = scores.iter().map(|s| s.exp()).sum();
    let expected = scores.iter().map(|s| s.exp() / whole * draws as f64);
    let statistic: f64 = counts
        .iter()
        .zip(expected)
        .map(|(n, e)| (n - e).powi(2) / e)
        .sum();
    let degrees = logits.len().saturating_sub(1);
    let stated = check.count("degrees_of_freedom")?;
    tally.exact("degrees_of_freedom", "", &[degrees], &[stated]);
    let limit = chi_squared_limit(degrees as f64);
    tally.number(
        Quantity::absolute("chi_square of our draws", limit),
        "",
        statistic,
        0.0,
    );
    Ok(())
}

/// What χ² exceeds once in a thousand times (Wilson and Hilferty 1931).
fn chi_squared_limit(degrees: f64) -> f64 {
    const NORMAL: f64 = 3.090_232;
    let part = 2.0 / (9.0 * degrees);
    degrees * (1.0 - part + NORMAL * part.sqrt()).powi(3)
}

fn filters(temperature: f64) -> Filters {
    Filters {
        temperature,
        ..Filters::default()
    }
}

fn words<const N: usize>(of: Object<'_>, key: &str) -> Result<[u32; N], ReferenceError> {
    let value = of.get(key).ok_or_else(|| of.no(key, "list of words"))?;
    list_of_words(value).ok_or_else(|| of.no(key, "list of hexadecimal words"))
}

fn list_of_words<const N: usize>(value: &Value) -> Option<[u32; N]> {
    let all: Vec<u32> = value.as_array()?.iter().map(word).collect::<Option<_>>()?;
    all.try_into().ok()
}

fn word(value: &Value) -> Option<u32> {
    u32::from_str_radix(value.as_str()?, 16).ok()
}
