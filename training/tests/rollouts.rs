//! What a completion depends on: its prompt, the weights and the seed; and where it ends.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "test helpers fail by panicking, and say what they measured"
)]

mod common;

use burn::tensor::Device;
use common::{MODELS, Reference, fixture};
use gym_training::adapter::Adapter;
use gym_training::generate::{Completion, Draw, Finish, GenerateConfig, Request, generate};
use gym_training::lora::Lora;
use gym_training::model::{Decoder, Packed};
use gym_training::pretrain::write_tokenizer;
use gym_training::sampling::{Filters, LogSoftmax, RolloutKey};
use gym_training::tokenizer::TextTokenizer;

fn load(model: &str) -> Decoder {
    Decoder::load(&fixture(&format!("models/{model}")), &Device::flex()).unwrap()
}

fn config(new_tokens: usize, max_rows: usize) -> GenerateConfig {
    GenerateConfig {
        filters: Filters::default(),
        max_new_tokens: new_tokens,
        eos: Vec::new(),
        stop: None,
        pad: 0,
        max_rows,
    }
}

/// Prompts of 1 to 19 tokens.
fn prompts(count: u32) -> Vec<Vec<u32>> {
    (0..count)
        .map(|n| (0..n * 7 % 19 + 1).map(|i| (n * 31 + i * 17) % 120 + 3).collect())
        .collect()
}

fn drawn(row: usize) -> Vec<Draw> {
    let key = RolloutKey::offline(9);
    vec![Draw::Noise(key.noise(2, row as u64, 0))]
}

#[test]
fn ids_that_the_tokenizer_has_no_token_for_are_never_drawn() {
    let whole = load("qwen3");
    let limited = whole.clone().drawing_below(40);
    let prompts = prompts(16);
    let requests: Vec<Request<'_>> = prompts
        .iter()
        .enumerate()
        .map(|(row, prompt)| Request {
            prompt,
            draws: [drawn(row), vec![Draw::Greedy]].concat(),
        })
        .collect();
    let mut config = config(12, 16);
    config.filters.top_p = 0.95;
    let tokens = |decoder: &Decoder| -> Vec<u32> {
        let all = generate(decoder, None, &requests, &config).unwrap();
        all.into_iter().flatten().flat_map(|c| c.tokens).collect()
    };
    assert!(tokens(&whole).iter().any(|t| *t >= 40));
    assert!(tokens(&limited).iter().all(|t| *t < 40));
    assert!(tokens(&limited.inner().unwrap()).iter().all(|t| *t < 40));
    // They keep their share of the softmax: the log-probability is the whole model's.
    let one = [Request {
        prompt: &prompts[0],
        draws: vec![Draw::Greedy],
    }];
    let completion = &generate(&limited, None, &one, &config).unwrap()[0][0];
    let logits = whole.logits(whole.hidden(&Packed::rows(&[&prompts[0]]), None));
    let logits: Vec<f32> = logits.to_data().iter::<f32>().collect();
    let vocab = whole.config().vocab_size;
    let last = LogSoftmax::of(&logits[logits.len() - vocab..], 1.0);
    let apart = last.at(completion.tokens[0]) as f32 - completion.log_probs[0];
    assert!(apart.abs() < 1e-4, "{apart}");
}

#[test]
fn a_completion_is_the_same_in_every_batch() {
    for model in ["qwen3", "qwen3_moe", "qwen3_next"] {
        let decoder = load(model);
        let prompts = prompts(32);
        let request = |row: usize| Request {
            prompt: &prompts[row],
            draws: drawn(row),
        };
        let alone: Vec<Completion> = (0..32)
            .map(|row| {
                let mut one = generate(&decoder, None, &[request(row)], &config(8, 1)).unwrap();
                one.remove(0).remove(0)
            })
            .collect();
        let near_ties: u32 = alone.iter().map(|c| c.near_ties).sum();
        let mut different = 0;
        for size in 1..=32usize {
            // Another order for each size: 7 and 32 have no common factor.
            let order: Vec<usize> = (0..32).map(|i| (i * 7 + size * 5) % 32).collect();
            let requests: Vec<Request<'_>> = order.iter().map(|row| request(*row)).collect();
            let together = generate(&decoder, None, &requests, &config(8, size)).unwrap();
            for (row, completion) in order.iter().zip(together.iter().flatten()) {
                if completion.tokens == alone[*row].tokens {
                    continue;
                }
                different += 1;
                let ties = completion.near_ties + alone[*row].near_ties;
                assert!(
                    ties > 0,
                    "{model}, row {row}, batches of {size}: another text without a near tie"
                );
            }
        }
        println!("{model}: {near_ties} near ties among 256 tokens; {different} of 1024 completions differ");
        assert!(different <= 32 * near_ties);
    }
}

/// The training forward's log-probability of each completion token.
fn trained(
    decoder: &Decoder,
    lora: Option<&Lora>,
    prompt: &[u32],
    completion: &[u32],
    temperature: f64,
) -> Vec<f64> {
    let whole = Packed::rows(&[[prompt, completion].concat()]);
    let logits = decoder.logits(decoder.hidden(&whole, lora));
    let logits: Vec<f32> = logits.to_data().iter::<f32>().collect();
    let vocab = decoder.config().vocab_size;
    let place = |i: usize| &logits[(prompt.len() - 1 + i) * vocab..][..vocab];
    let at = |(i, token): (usize, &u32)| LogSoftmax::of(place(i), temperature).at(*token);
    completion.iter().enumerate().map(at).collect()
}

#[test]
fn the_sampler_and_the_training_forward_agree() {
    for model in MODELS {
        let decoder = load(model);
        let adapter = Adapter::load(&fixture(&format!("models/{model}/adapter"))).unwrap();
        let lora = Lora::from_adapter(&decoder, &adapter).unwrap();
        let expected = Reference::open(&format!("models/{model}/expected.safetensors"));
        let prompts = expected.rows("input_ids_left", "attention_mask_left");
        let config = GenerateConfig {
            filters: Filters {
                temperature: 0.8,
                ..Filters::default()
            },
            ..config(16, 8)
        };
        let key = RolloutKey::offline(4);
        let requests: Vec<Request<'_>> = prompts
            .iter()
            .enumerate()
            .map(|(row, prompt)| Request {
                prompt,
                draws: (0..4).map(|s| Draw::Noise(key.noise(0, row as u64, s))).collect(),
            })
            .collect();
        let mut worst = 0f64;
        for lora in [None, Some(&lora)] {
            let groups = generate(&decoder, lora, &requests, &config).unwrap();
            for (prompt, group) in prompts.iter().zip(&groups) {
                for completion in group {
                    let want = trained(&decoder, lora, prompt, &completion.tokens, 0.8);
                    for (got, want) in completion.log_probs.iter().zip(want) {
                        worst = worst.max((f64::from(*got) - want).abs());
                    }
                }
            }
        }
        println!("{model}: {worst:e}");
        assert!(worst < 1e-4, "{model}: {worst:e}");
    }
}

#[test]
fn a_swapped_adapter_is_the_adapter_used() {
    let decoder = load("qwen3");
    let adapter = Adapter::load(&fixture("models/qwen3/adapter")).unwrap();
    let first = Lora::from_adapter(&decoder, &adapter).unwrap();
    let mut other = adapter.clone();
    for tensor in other.tensors.0.values_mut() {
        tensor.data.iter_mut().for_each(|v| *v = -*v * 0.5);
    }
    let second = Lora::from_adapter(&decoder, &other).unwrap();
    let prompts = prompts(4);
    let requests: Vec<Request<'_>> = (0..4)
        .map(|row| Request {
            prompt: &prompts[row],
            draws: drawn(row),
        })
        .collect();
    let run =
        |decoder: &Decoder, lora: Option<&Lora>| generate(decoder, lora, &requests, &config(8, 4)).unwrap();
    let texts = [
        run(&decoder, None),
        run(&decoder, Some(&first)),
        run(&decoder, Some(&second)),
    ];
    assert!(
        texts[0] != texts[1] && texts[1] != texts[2],
        "the adapters make a difference"
    );
    // In any order, and in a process that has seen no other adapter, the same.
    assert_eq!(run(&decoder, Some(&first)), texts[1]);
    assert_eq!(run(&load("qwen3"), Some(&second)), texts[2]);
    for (prompt, group) in prompts.iter().zip(&texts[2]) {
        let want = trained(&decoder, Some(&second), prompt, &group[0].tokens, 1.0);
        for (got, want) in group[0].log_probs.iter().zip(want) {
            assert!((f64::from(*got) - want).abs() < 1e-4);
        }
    }
}

#[test]
fn the_first_of_several_ends_ends_it() {
    let decoder = load("qwen3");
    let prompts = prompts(6);
    let requests: Vec<Request<'_>> = (0..6)
        .map(|row| Request {
            prompt: &prompts[row],
            draws: drawn(row),
        })
        .collect();
    let whole = generate(&decoder, None, &requests, &config(12, 6)).unwrap();
    let ends = [whole[0][0].tokens[4], whole[1][0].tokens[2]];
    let config = GenerateConfig {
        eos: ends.to_vec(),
        ..config(12, 6)
    };
    let cut = generate(&decoder, None, &requests, &config).unwrap();
    for (cut, whole) in cut.iter().flatten().zip(whole.iter().flatten()) {
        let end = whole.tokens.iter().position(|t| ends.contains(t));
        let length = end.map_or(12, |at| at + 1);
        assert_eq!(cut.tokens, whole.tokens[..length]);
        assert_eq!(cut.log_probs.len(), length);
        let want = if end.is_some() {
            Finish::Eos
        } else {
            Finish::Length
        };
        assert_eq!(cut.finish, want);
    }
    assert_eq!((cut[0][0].finish, cut[1][0].finish), (Finish::Eos, Finish::Eos));
}

#[test]
fn a_stop_string_ends_with_the_token_that_completes_it() {
    let dir = tempfile::tempdir().unwrap();
    write_tokenizer(dir.path()).unwrap();
    let named = r#"{"eos_token": "<|end|>"}"#;
    std::fs::write(dir.path().join("tokenizer_config.json"), named).unwrap();
    let tokenizer = TextTokenizer::load(dir.path()).unwrap();
    let decoder = load("qwen3");
    let prompts = prompts(8);
    let requests: Vec<Request<'_>> = (0..8)
        .map(|row| Request {
            prompt: &prompts[row],
            draws: drawn(row),
        })
        .collect();
    let whole = generate(&decoder, None, &requests, &config(24, 8)).unwrap();
    // Texts of two tokens, the second of which completes the string: what must be found is in the completions.
    let text = |tokens: &[u32]| tokenizer.decode(tokens).unwrap();
    let strings: Vec<String> = [&whole[0][0].tokens[5..7], &whole[3][0].tokens[9..11]]
        .iter()
        .map(|pair| text(pair))
        .filter(|s| !s.is_empty())
        .collect();
    assert!(!strings.is_empty(), "the model writes tokens that have a text");
    let config = GenerateConfig {
        stop: tokenizer.stop_strings(&strings),
        ..config(24, 8)
    };
    let cut = generate(&decoder, None, &requests, &config).unwrap();
    let mut stopped = 0;
    for (cut, whole) in cut.iter().flatten().zip(whole.iter().flatten()) {
        let has = |n: usize| strings.iter().any(|s| text(&whole.tokens[..n]).contains(s));
        let end = (1..=24).find(|n| has(*n));
        assert_eq!(cut.tokens, whole.tokens[..end.unwrap_or(24)]);
        assert_eq!(cut.log_probs.len(), cut.tokens.len());
        assert_eq!(cut.finish == Finish::Stop, end.is_some());
        stopped += usize::from(end.is_some());
    }
    println!("{stopped} of 8 stopped by {strings:?}");
    assert!(stopped >= 1);
    assert!(tokenizer.stop_strings(&[]).is_none() && tokenizer.stop_strings(&[String::new()]).is_none());
}

#[test]
fn first_tokens_follow_the_models_distribution() {
    let decoder = load("qwen3");
    let prompt = [5u32, 9, 40, 77];
    let key = RolloutKey::offline(2);
    let draws = 8_000u32;
    let request = Request {
        prompt: &prompt,
        draws: (0..draws).map(|s| Draw::Noise(key.noise(0, 0, s))).collect(),
    };
    let group = generate(&decoder, None, &[request], &config(1, draws as usize))
        .unwrap()
        .remove(0);
    let vocab = decoder.config().vocab_size;
    let logits: Vec<f32> = decoder
        .logits(decoder.hidden(&Packed::rows(&[prompt]), None))
        .to_data()
        .iter::<f32>()
        .skip((prompt.len() - 1) * vocab)
        .collect();
    let mut counts = vec![0f64; vocab];
    for completion in &group {
        counts[completion.tokens[0] as usize] += 1.0;
    }
    // Tokens that are expected fewer than five times are one class.
    let (mut statistic, mut degrees, mut rare) = (0.0, -1.0, (0.0, 0.0));
    for (token, count) in counts.iter().enumerate() {
        let expected = LogSoftmax::of(&logits, 1.0).at(token as u32).exp() * f64::from(draws);
        if expected < 5.0 {
            rare = (rare.0 + count, rare.1 + expected);
        } else {
            statistic += (count - expected).powi(2) / expected;
            degrees += 1.0;
        }
    }
    if rare.1 > 0.0 {
        statistic += f64::powi(rare.0 - rare.1, 2) / rare.1;
        degrees += 1.0;
    }
    let part = 2.0 / (9.0 * degrees);
    let limit = degrees * (1.0 - part + 3.090_232 * f64::sqrt(part)).powi(3);
    println!("chi-squared {statistic:.1} of {limit:.1}, {degrees} degrees of freedom");
    assert!(degrees > 10.0 && statistic < limit);
}
