//! Philox, the noise and the drawn tokens against `fixtures/sampling`.
#![allow(clippy::unwrap_used, reason = "test helpers fail by panicking")]

mod common;

use common::fixture;
use gym_training::sampling::{Filters, LogSoftmax, RolloutKey, greedy, gumbel, philox, unit};
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

#[test]
fn frequencies_follow_the_softmax() {
    let logits = [0.0f32, 1.0, 2.0, -1.0, 0.5];
    let scores = Filters::default().scores(&logits, &[]);
    let draws = 20_000u32;
    let mut counts = [0u32; 5];
    let noise = RolloutKey::offline(3).noise(0, 0, 0);
    for position in 0..draws {
        counts[noise.choose(&scores, position).unwrap() as usize] += 1;
    }
    for (token, count) in counts.iter().enumerate() {
        let p = LogSoftmax::of(&logits, 1.0).at(token as u32).exp();
        let got = f64::from(*count) / f64::from(draws);
        let error = (p * (1.0 - p) / f64::from(draws)).sqrt();
        assert!((got - p).abs() < 4.0 * error, "{token}: {got} for {p}");
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
