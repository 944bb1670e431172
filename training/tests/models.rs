//! The decoder and its adapters against Hugging Face transformers and PEFT.
#![allow(clippy::unwrap_used, reason = "test helpers fail by panicking")]

mod common;
#[path = "common/nll.rs"]
mod loss;

use burn::tensor::{Device, Tensor};
use common::{MODELS, Reference, fixture, max_diff};
use gym_training::adapter::Adapter;
use gym_training::lora::Lora;
use gym_training::model::{Decoder, KvCache, LoadError, ModelConfig, Packed, Routes, Routing, Weight};
use loss::nll;

const GRADIENTS: f32 = 2e-4;

/// Largest difference of logits: what separates Hugging Face's f32 from its f64, with room.
fn tolerance(model: &str) -> f32 {
    if model == "qwen3_next" { 1e-4 } else { 5e-5 }
}

fn load(model: &str) -> (Decoder, Reference) {
    let decoder = Decoder::load(&fixture(&format!("models/{model}")), &Device::flex()).unwrap();
    (
        decoder,
        Reference::open(&format!("models/{model}/expected.safetensors")),
    )
}

fn adapter(model: &str, decoder: &Decoder) -> Lora {
    let adapter = Adapter::load(&fixture(&format!("models/{model}/adapter"))).unwrap();
    Lora::from_tensors(decoder, &adapter.lora, &adapter.tensors).unwrap()
}

fn logits(decoder: &Decoder, batch: &Packed, lora: Option<&Lora>) -> Vec<f32> {
    let logits = decoder.logits(decoder.hidden(batch, lora));
    logits.to_data().iter::<f32>().collect()
}

/// Largest difference at unpadded places of `want`, [B, T, vocab] padded as `mask` says.
fn unpadded_diff(mask: &[i32], vocab: usize, got: &[f32], want: &[f32]) -> f32 {
    let places = (0..mask.len()).filter(|place| mask[*place] == 1);
    let want: Vec<f32> = places
        .flat_map(|place| want[place * vocab..][..vocab].to_vec())
        .collect();
    assert_eq!(got.len(), want.len());
    max_diff(got.iter().copied(), want)
}

fn padded(expected: &Reference, side: &str) -> (Packed, Vec<i32>) {
    let name = format!("input_ids_{side}");
    let ids: Vec<u32> = expected.i32(&name).iter().map(|id| *id as u32).collect();
    let mask = expected.i32(&format!("attention_mask_{side}"));
    let bytes: Vec<u8> = mask.iter().map(|m| *m as u8).collect();
    (Packed::masked(&ids, &bytes, expected.shape(&name)[1]), mask)
}

#[test]
fn logits_equal_transformers_under_both_paddings() {
    for model in MODELS {
        let (decoder, expected) = load(model);
        let vocab = decoder.config().vocab_size;
        let rows = expected.rows("input_ids_left", "attention_mask_left");
        for side in ["left", "right"] {
            let (batch, mask) = padded(&expected, side);
            let got = logits(&decoder, &batch, None);
            let diff = unpadded_diff(&mask, vocab, &got, &expected.f32(&format!("logits_{side}")));
            println!("{model} {side}: {diff:e}");
            assert!(diff < tolerance(model), "{model} {side}: {diff:e}");
        }
        let alone = Packed::rows(&rows[1..]);
        let got = logits(&decoder, &alone, None);
        let diff = max_diff(got, expected.f32("logits_row1_unpadded"));
        println!("{model} alone: {diff:e}");
        assert!(diff < tolerance(model), "{model} unpadded: {diff:e}");
    }
}

#[test]
fn both_config_styles_are_one_model() {
    for model in MODELS {
        let dir = tempfile::tempdir().unwrap();
        let source = fixture(&format!("models/{model}"));
        std::fs::copy(
            source.join("config.hub_style.json"),
            dir.path().join("config.json"),
        )
        .unwrap();
        assert_eq!(
            ModelConfig::load(dir.path()).unwrap(),
            ModelConfig::load(&source).unwrap()
        );
    }
}

#[test]
fn adapter_logits_and_gradients_equal_peft() {
    for model in MODELS {
        let (decoder, expected) = load(model);
        let lora = adapter(model, &decoder).tracked();
        let rows = expected.rows("input_ids_left", "attention_mask_left");
        let (batch, mask) = padded(&expected, "left");
        let hidden = decoder.hidden(&batch, Some(&lora));
        let logits = decoder.logits(hidden);
        let vocab = decoder.config().vocab_size;
        let got: Vec<f32> = logits.to_data().iter::<f32>().collect();
        let diff = unpadded_diff(&mask, vocab, &got, &expected.f32("adapter_logits_left"));
        println!("{model} adapter logits: {diff:e}");
        assert!(diff < tolerance(model), "{model}: {diff:e}");

        let loss = nll(&batch, &rows, logits);
        let value: f32 = loss.clone().into_scalar();
        assert!(
            (value - expected.f32("adapter_nll")[0]).abs() < 1e-5,
            "{model} nll {value}"
        );
        let gradients = lora.take_gradients(&mut loss.backward());
        let wanted = expected.names().iter().filter(|n| n.starts_with("grad.")).count();
        assert_eq!(gradients.0.len(), wanted);
        let mut worst = 0f32;
        for (name, gradient) in &gradients.0 {
            let name = name.strip_prefix("base_model.model.").unwrap();
            let want = expected.f32(&format!("grad.{name}"));
            let scale = want.iter().map(|v| v.abs()).fold(0.0, f32::max);
            let diff = max_diff(gradient.data.iter().copied(), want.iter().copied()) / scale;
            worst = worst.max(diff);
            assert!(diff < GRADIENTS, "{model} {name}: {diff:e}");
        }
        println!("{model} gradients: {worst:e}");
    }
}

#[test]
fn the_cache_changes_nothing_and_greedy_continues_as_transformers_does() {
    for model in MODELS {
        let (decoder, expected) = load(model);
        let vocab = decoder.config().vocab_size;
        let rows = expected.rows("input_ids_left", "attention_mask_left");
        let steps = expected.shape("greedy_ids")[1];
        let mut cache = KvCache::new(decoder.config().num_hidden_layers, batch_width(&rows) + steps);
        let mut whole = rows.clone();
        let mut worst = 0f32;
        let mut next: Vec<u32> = Vec::new();
        for step in 0..steps {
            let (cached, last) = if step == 0 {
                let prompts = Packed::rows(&rows);
                (decoder.prefill(&prompts, None, &mut cache), ends(&prompts))
            } else {
                (decoder.decode(&next, None, &mut cache), (0..rows.len()).collect())
            };
            let cached: Vec<f32> = decoder.logits(cached).to_data().iter::<f32>().collect();
            let packed = Packed::rows(&whole);
            let plain = logits(&decoder, &packed, None);
            next.clear();
            for (row, tokens) in whole.iter_mut().enumerate() {
                let a = &cached[last[row] * vocab..][..vocab];
                let b = &plain[ends(&packed)[row] * vocab..][..vocab];
                let diff = max_diff(a.iter().copied(), b.iter().copied());
                worst = worst.max(diff);
                assert!(diff < tolerance(model), "{model} step {step}: {diff:e}");
                let best = (0..vocab).max_by(|i, j| a[*i].total_cmp(&a[*j])).unwrap();
                tokens.push(best as u32);
                next.push(best as u32);
            }
        }
        println!("{model} cache: {worst:e}");
        let greedy = expected.i32("greedy_ids");
        for (row, tokens) in whole.iter().enumerate() {
            let got = &tokens[tokens.len() - steps..];
            let want: Vec<u32> = greedy[row * steps..][..steps].iter().map(|t| *t as u32).collect();
            assert_eq!(got, want, "{model} row {row}");
        }
    }
}

fn ends(packed: &Packed) -> Vec<usize> {
    packed.segments().iter().map(|s| s.places.end - 1).collect()
}

fn batch_width(rows: &[Vec<u32>]) -> usize {
    rows.iter().map(Vec::len).max().unwrap()
}

#[test]
fn a_shared_prefix_equals_separate_rows() {
    for model in MODELS {
        let (decoder, expected) = load(model);
        let lora = adapter(model, &decoder);
        let tokens = &expected.rows("input_ids_left", "attention_mask_left")[0];
        let other = &expected.rows("input_ids_left", "attention_mask_left")[1];
        // Ends on both sides of the prefix: within its first taps, and longer than a window.
        for cut in [1, 2, 5, 20] {
            let (prompt, rest) = tokens.split_at(cut);
            let mut shared = Packed::default();
            let first = shared.push(prompt);
            let between = shared.push(other);
            shared.push_after(first, rest);
            shared.push_after(between, &rest[..1]);
            shared.push_after(first, &rest[..2]);
            let joined = |a: &[u32], b: &[u32]| [a, b].concat();
            let rows = Packed::rows(&[
                joined(prompt, rest),
                joined(other, &rest[..1]),
                joined(prompt, &rest[..2]),
            ]);
            let vocab = decoder.config().vocab_size;
            let got = logits(&decoder, &shared, Some(&lora));
            let want = logits(&decoder, &rows, Some(&lora));
            let (s, r) = (shared.segments(), rows.segments());
            let pairs = [(2, 0, cut), (3, 1, other.len()), (4, 2, cut)];
            let mut worst = 0f32;
            for (segment, row, skip) in pairs {
                let got = &got[s[segment].places.start * vocab..s[segment].places.end * vocab];
                let want = &want[(r[row].places.start + skip) * vocab..r[row].places.end * vocab];
                assert_eq!(got.len(), want.len());
                worst = worst.max(max_diff(got.iter().copied(), want.iter().copied()));
            }
            println!("{model} prefix {cut}: {worst:e}");
            assert!(worst < tolerance(model), "{model} prefix {cut}: {worst:e}");
        }
    }
}

#[test]
fn replayed_experts_are_the_recorded_ones() {
    for model in ["mixtral", "qwen3_moe", "qwen3_next"] {
        let (decoder, expected) = load(model);
        let lora = adapter(model, &decoder);
        let (batch, _) = padded(&expected, "left");
        let per_token = decoder.config().experts().unwrap().per_token;
        let values = |hidden: Tensor<2>| {
            decoder
                .logits(hidden)
                .to_data()
                .iter::<f32>()
                .collect::<Vec<f32>>()
        };
        let (mut base, mut adapted) = (Routes::default(), Routes::default());
        let plain = decoder
            .hidden_routed(&batch, None, Routing::Record(&mut base))
            .unwrap();
        assert_eq!(values(plain), logits(&decoder, &batch, None));
        assert_eq!(base.layer(0).len(), batch.len() * per_token);
        let free = decoder
            .hidden_routed(&batch, Some(&lora), Routing::Record(&mut adapted))
            .unwrap();
        let free = values(free);
        // The adapter moves tokens to other experts; its own routes give its own logits again.
        let moved = base.differing(&adapted, per_token).unwrap();
        println!("{model}: {moved} of the choices differ");
        assert!(moved > 0.0);
        let again = decoder
            .hidden_routed(&batch, Some(&lora), Routing::Replay(&adapted))
            .unwrap();
        assert_eq!(values(again), free);
        let mut replayed = Routes::default();
        let forced = decoder
            .hidden_routed(&batch, Some(&lora), Routing::Replay(&base))
            .unwrap();
        assert!(max_diff(values(forced), free) > 1e-3);
        let other = Packed::rows(&[vec![1u32, 2, 3]]);
        let error = decoder
            .hidden_routed(&other, None, Routing::Replay(&base))
            .unwrap_err();
        assert_eq!(error.wanted, 3 * per_token);
        let routed = decoder.hidden_routed(&other, None, Routing::Record(&mut replayed));
        assert!(routed.is_ok() && replayed.differing(&base, per_token).is_none());
    }
}

#[test]
fn gradients_reach_the_router_through_the_weights_of_replayed_experts() {
    let (decoder, expected) = load("qwen3_moe");
    let rows = expected.rows("input_ids_left", "attention_mask_left");
    let batch = Packed::rows(&rows);
    let mut routes = Routes::default();
    let _ = decoder
        .hidden_routed(&batch, None, Routing::Record(&mut routes))
        .unwrap();
    let tracked = decoder.tracked().unwrap();
    let hidden = tracked
        .hidden_routed(&batch, None, Routing::Replay(&routes))
        .unwrap();
    let loss = nll(&batch, &rows, tracked.logits(hidden));
    let gradients = tracked.take_gradients(&mut loss.backward());
    let router = &gradients.0["model.layers.0.mlp.gate.weight"];
    assert!(router.data.iter().any(|v| v.abs() > 1e-6));
}

#[test]
fn a_saved_model_and_adapter_load_again() {
    for model in MODELS {
        let (decoder, expected) = load(model);
        let dir = tempfile::tempdir().unwrap();
        decoder.save(dir.path()).unwrap();
        let again = Decoder::load(dir.path(), &Device::flex()).unwrap();
        assert_eq!(again.weights().to_host(), decoder.weights().to_host());
        assert_eq!(again.config(), decoder.config());

        let mut saved = Adapter::load(&fixture(&format!("models/{model}/adapter"))).unwrap();
        saved.save(&dir.path().join("adapter")).unwrap();
        let loaded = Adapter::load(&dir.path().join("adapter")).unwrap();
        assert_eq!(loaded, saved);
        assert_eq!(adapter(model, &decoder).to_tensors(), saved.tensors);

        let name = saved.tensors.0.keys().next().unwrap().clone();
        saved.tensors.0.remove(&name);
        let error = Lora::from_tensors(&decoder, &saved.lora, &saved.tensors).unwrap_err();
        assert!(error.to_string().contains(&name), "{error}");
        drop(expected);
    }
}

#[test]
fn every_weight_of_a_tracked_model_has_a_gradient() {
    for model in ["qwen3_untied", "qwen2", "mixtral", "qwen3_next"] {
        check_every_gradient(model);
    }
}

fn check_every_gradient(model: &str) {
    let (decoder, expected) = load(model);
    let tracked = decoder.tracked().unwrap();
    let rows = expected.rows("input_ids_left", "attention_mask_left");
    let batch = Packed::rows(&rows);
    let loss = nll(&batch, &rows, tracked.logits(tracked.hidden(&batch, None)));
    let value: f32 = loss.clone().into_scalar();
    assert!((value - expected.f32("base_nll")[0]).abs() < 1e-5, "{model}");
    let gradients = tracked.take_gradients(&mut loss.backward());
    for (name, gradient) in &gradients.0 {
        // Keys shift all scores of a query alike, so their bias does nothing.
        let idle = name.ends_with("k_proj.bias");
        assert!(idle || gradient.data.iter().any(|v| *v != 0.0), "{model} {name}");
    }
    // One gradient by finite differences, in a direction that touches every weight.
    // Qwen3-Next's bends more: a shorter step.
    let step = if model == "qwen3_next" { 5e-5f32 } else { 1e-3 };
    let norm: f32 = gradients.flatten().iter().map(|v| v * v).sum::<f32>().sqrt();
    let shifted = |sign: f32| {
        let mut set = decoder.weights().to_host();
        for (name, tensor) in &mut set.0 {
            for (value, g) in tensor.data.iter_mut().zip(&gradients.0[name].data) {
                *value += sign * step * g / norm;
            }
        }
        let moved = decoder.with_host(&set).unwrap();
        let loss = nll(&batch, &rows, moved.logits(moved.hidden(&batch, None)));
        loss.into_scalar::<f32>()
    };
    let slope = (shifted(1.0) - shifted(-1.0)) / (2.0 * step);
    eprintln!("{model}: slope {slope}, norm {norm}");
    assert!(
        (slope / norm - 1.0).abs() < 1e-2,
        "{model} slope {slope}, norm {norm}"
    );
}

#[test]
fn a_missing_or_unused_tensor_is_named() {
    let (decoder, _) = load("qwen3_untied");
    let device = Device::flex();
    let mut weights = decoder.weights().clone();
    let name = "model.layers.1.mlp.up_proj.weight";
    let taken = weights.0.remove(name).unwrap();
    let error = Decoder::from_weights(decoder.config().clone(), weights.clone(), &device).unwrap_err();
    assert!(
        matches!(&error, LoadError::Missing { name: n } if n == name),
        "{error}"
    );
    weights.0.insert(name.into(), taken);
    let extra = Weight::Vector(Tensor::zeros([3], &device));
    weights.0.insert("model.layers.0.mlp.router.weight".into(), extra);
    let error = Decoder::from_weights(decoder.config().clone(), weights, &device).unwrap_err();
    assert!(
        error.to_string().contains("model.layers.0.mlp.router.weight"),
        "{error}"
    );
}
