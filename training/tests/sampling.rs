//! Philox, the noise and the drawn tokens against `fixtures/sampling`.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "test helpers fail by panicking, and say what they measured"
)]

mod common;

use common::fixture;
use gym_training::sampling::{Choice, Filters, RolloutKey, greedy, gumbel, philox, unit};
use serde_json::Value;

fn reference() -> Value {
    let text = std::fs::read_to_string(fixture("sampling/sampling.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn words<const N: usize>(v: &Value) -> [u32; N] {
    let list: Vec<u32> = v.as_array().unwrap().iter().map(word).collect();
    list.try_into().unwrap()
}

fn word(v: &Value) -> u32 {
    u32::from_str_radix(v.as_str().unwrap(), 16).unwrap()
}

fn list(v: &Value) -> impl Iterator<Item = &Value> {
    v.as_array().unwrap().iter()
}

fn close(got: f64, want: &Value) {
    let want = want.as_f64().unwrap();
    assert!(
        (got - want).abs() <= 1e-12 * want.abs().max(1e-300),
        "{got} {want}"
    );
}

/// u is exact in f64; the JSON parser may lose the last bit of the printed one, so the integer x decides.
fn exact(u: f64, x: &Value, printed: &Value) {
    assert_eq!(u * 16_777_216.0 - 0.5, x.as_f64().unwrap());
    close(u, printed);
}

#[test]
fn philox_gives_the_published_answers() {
    let reference = reference();
    let known = list(&reference["known_answers"]).chain(list(&reference["further_answers"]));
    let mut count = 0;
    for case in known {
        let got = philox(words(&case["counter"]), words(&case["key"]));
        assert_eq!(got, words::<4>(&case["output"]));
        count += 1;
    }
    assert!(count > 3);
}

#[test]
fn noise_scores_and_tokens_equal_the_worked_examples() {
    let reference = reference();
    for example in list(&reference["sampling"]["examples"]) {
        let (key, base) = (words(&example["key"]), words::<4>(&example["counter_of_block_0"]));
        let temperature = example["T"].as_f64().unwrap();
        let logits: Vec<f32> = list(&example["logits"])
            .map(|v| v.as_f64().unwrap() as f32)
            .collect();
        let filters = Filters {
            temperature,
            ..Filters::default()
        };
        let scores = filters.scores(&logits, &[]);
        let mut best = (0, f64::NEG_INFINITY);
        for (token, score) in scores.iter().enumerate() {
            let counter = [base[0] + token as u32 / 4, base[1], base[2], base[3]];
            let word = philox(counter, key)[token % 4];
            let u = unit(word);
            exact(u, &example["x_top24"][token], &example["u"][token]);
            close(gumbel(u), &example["gumbel"][token]);
            close(score + gumbel(u), &example["score"][token]);
            if score + gumbel(u) > best.1 {
                best = (token, score + gumbel(u));
            }
        }
        assert_eq!(best.0 as u64, example["token"].as_u64().unwrap());
        assert_eq!(
            u64::from(greedy(&scores).unwrap()),
            example["greedy_token"].as_u64().unwrap()
        );
    }
    for edge in list(&reference["sampling"]["edge_words"]) {
        let u = unit(word(&edge["word"]));
        exact(u, &edge["x"], &edge["u"]);
        close(gumbel(u), &edge["gumbel"]);
    }
}

#[test]
fn skipping_hopeless_tokens_changes_no_choice() {
    let noise = RolloutKey::offline(7).noise(1, 2, 3);
    let plain = |scores: &[f64], position: u32| {
        let mut best = (0u32, f64::NEG_INFINITY);
        for (v, score) in scores.iter().enumerate() {
            let g = noise.block(v as u32 / 4, position)[v % 4];
            if score + g > best.1 {
                best = (v as u32, score + g);
            }
        }
        best.0
    };
    for position in 0..200u32 {
        // Spread far beyond the span, so that whole blocks are skipped.
        let scores: Vec<f64> = (0..97)
            .map(|v| f64::from((v * 31 + position * 7) % 97) * 0.9)
            .collect();
        assert_eq!(noise.choose(&scores, position), Some(plain(&scores, position)));
    }
    assert_eq!(noise.choose(&[f64::NEG_INFINITY; 4], 0), None);
}

/// A row without ties: the likeliest is token 2.
const LOGITS: [f32; 8] = [0.3, 1.1, 2.0, -1.0, 0.6, -0.4, 1.5, -2.2];

/// Probabilities that are proportional to `weights`.
fn normalised(weights: &[f64]) -> Vec<f64> {
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| w / sum).collect()
}

/// exp(logit / T) of each token, written out apart from the engine.
fn weights(temperature: f64) -> Vec<f64> {
    LOGITS
        .iter()
        .map(|l| (f64::from(*l) / temperature).exp())
        .collect()
}

/// Draws 20,000 tokens and compares their counts with `want`: χ² must not exceed what one good sampler in a thousand
/// exceeds (Wilson and Hilferty 1931), and a token of probability 0 must not come at all.
fn assert_distribution(what: &str, filters: &Filters, seen: &[u32], want: &[f64]) {
    const DRAWS: u32 = 20_000;
    let scores = filters.scores(&LOGITS, seen);
    let mut counts = [0u32; LOGITS.len()];
    let key = RolloutKey::offline(11);
    for draw in 0..DRAWS {
        // Over completions and over positions in one.
        let noise = key.noise(3, 17, draw / 100);
        counts[noise.choose(&scores, draw % 100).unwrap() as usize] += 1;
    }
    let mut statistic = 0.0;
    let mut degrees = -1.0;
    for (token, (count, p)) in counts.iter().zip(want).enumerate() {
        if *p == 0.0 {
            assert_eq!(*count, 0, "{what}: token {token} is filtered");
            continue;
        }
        let expected = p * f64::from(DRAWS);
        statistic += (f64::from(*count) - expected).powi(2) / expected;
        degrees += 1.0;
    }
    let part = 2.0 / (9.0 * degrees);
    let limit = degrees * (1.0 - part + 3.090_232 * f64::sqrt(part)).powi(3);
    println!("{what}: chi-squared {statistic:.1} of {limit:.1}, {degrees} degrees of freedom");
    assert!(statistic < limit, "{what}: {statistic} {limit}");
}

#[test]
fn every_control_gives_its_distribution() {
    let base = Filters::default();
    for temperature in [0.5, 0.7, 1.0, 1.6] {
        let filters = Filters {
            temperature,
            ..base.clone()
        };
        let want = normalised(&weights(temperature));
        assert_distribution(&format!("temperature {temperature}"), &filters, &[], &want);
    }
    // Likeliest first: 2, 6, 1, 4, 0, 5, 3, 7.
    let kept = |tokens: &[usize], temperature: f64| {
        let all = weights(temperature);
        normalised(&std::array::from_fn::<f64, 8, _>(|t| {
            if tokens.contains(&t) { all[t] } else { 0.0 }
        }))
    };
    let top_k = Filters {
        top_k: 3,
        ..base.clone()
    };
    assert_distribution("top-k 3", &top_k, &[], &kept(&[2, 6, 1], 1.0));
    // Masses .385, .234, .157, .095, …: the fourth carries the sum over 0.8.
    let top_p = Filters {
        top_p: 0.8,
        ..base.clone()
    };
    assert_distribution("top-p 0.8", &top_p, &[], &kept(&[2, 6, 1, 4], 1.0));
    // A quarter of the likeliest's .385 is .0962: token 4, with .0949, goes.
    let min_p = Filters {
        min_p: 0.25,
        ..base.clone()
    };
    assert_distribution("min-p 0.25", &min_p, &[], &kept(&[2, 6, 1], 1.0));
    let penalty = Filters {
        repetition_penalty: 1.5,
        ..base.clone()
    };
    let mut penalised = LOGITS.map(f64::from);
    penalised[2] /= 1.5;
    penalised[3] *= 1.5;
    let want = normalised(&penalised.map(f64::exp));
    assert_distribution("repetition penalty 1.5", &penalty, &[2, 3, 2], &want);
    let together = Filters {
        temperature: 0.8,
        top_k: 5,
        top_p: 0.9,
        ..base
    };
    // Of the five kept at T = 0.8 (.464, .249, .151, .081, .056) the first four pass 0.9.
    assert_distribution(
        "top-k 5, top-p 0.9, T 0.8",
        &together,
        &[],
        &kept(&[2, 6, 1, 4], 0.8),
    );
}

#[test]
fn greedy_takes_the_likeliest_whatever_the_temperature() {
    for temperature in [0.1, 1.0, 5.0] {
        let filters = Filters {
            temperature,
            ..Filters::default()
        };
        assert_eq!(greedy(&filters.scores(&LOGITS, &[])), Some(2));
    }
    assert_eq!(greedy(&[1.0, 3.0, 3.0]), Some(1), "the lower index on a tie");
    assert_eq!(greedy(&[f64::NAN]), None);
}

#[test]
fn a_choice_knows_by_how_much_it_won() {
    let choice = Choice::greedy(&[1.0, 3.0, 2.5]).unwrap();
    assert_eq!((choice.token, choice.margin), (1, 0.5));
    assert!(!choice.is_near_tie());
    assert!(Choice::greedy(&[1.0, 1.0]).unwrap().is_near_tie());
    let alone = Choice::greedy(&[f64::NEG_INFINITY, 1.0]).unwrap();
    assert_eq!((alone.token, alone.is_near_tie()), (1, false));
    let noise = RolloutKey::offline(5).noise(0, 0, 0);
    let scores = Filters::default().scores(&LOGITS, &[]);
    for position in 0..200 {
        let mut noisy: Vec<f64> = scores
            .iter()
            .enumerate()
            .map(|(v, s)| s + noise.block(v as u32 / 4, position)[v % 4])
            .collect();
        noisy.sort_by(|a, b| b.total_cmp(a));
        let choice = noise.choice(&scores, position).unwrap();
        assert_eq!(choice.margin, noisy[0] - noisy[1]);
    }
}

#[test]
fn every_public_number_changes_the_noise() {
    let base = RolloutKey::offline(1);
    let other_job = RolloutKey {
        job: vec![1],
        ..base.clone()
    };
    let other_member = RolloutKey {
        roster_index: 1,
        ..base.clone()
    };
    let all = [
        base.noise(0, 0, 0),
        base.noise(1, 0, 0),
        base.noise(0, 1, 0),
        base.noise(0, 0, 1),
        other_job.noise(0, 0, 0),
        other_member.noise(0, 0, 0),
        RolloutKey::offline(2).noise(0, 0, 0),
    ];
    for (i, a) in all.iter().enumerate() {
        assert!(all[..i].iter().all(|b| a != b));
    }
    assert_eq!(base.noise(0, 0, 0), RolloutKey::offline(1).noise(0, 0, 0));
}

#[test]
fn filters_keep_what_they_say() {
    let logits = [3.0f32, 2.0, 1.0, 0.0];
    let kept = |filters: &Filters, seen: &[u32]| {
        let scores = filters.scores(&logits, seen);
        (0..4).filter(|i| scores[*i].is_finite()).collect::<Vec<_>>()
    };
    let base = Filters::default();
    assert_eq!(kept(&base, &[]), [0, 1, 2, 3]);
    assert_eq!(
        kept(
            &Filters {
                top_k: 2,
                ..base.clone()
            },
            &[]
        ),
        [0, 1]
    );
    // Probabilities .644, .237, .087, .032.
    assert_eq!(
        kept(
            &Filters {
                top_p: 0.6,
                ..base.clone()
            },
            &[]
        ),
        [0]
    );
    assert_eq!(
        kept(
            &Filters {
                top_p: 0.9,
                ..base.clone()
            },
            &[]
        ),
        [0, 1, 2]
    );
    assert_eq!(
        kept(
            &Filters {
                min_p: 0.1,
                ..base.clone()
            },
            &[]
        ),
        [0, 1, 2]
    );
    let penalised = Filters {
        repetition_penalty: 2.0,
        ..base
    };
    assert_eq!(penalised.scores(&[3.0, -1.0], &[0, 1, 1]), [1.5, -2.0]);
}
