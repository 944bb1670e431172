//! Adapters over a base in NF4, against PEFT over bitsandbytes (fixture `qlora`).
#![allow(clippy::unwrap_used, reason = "test helpers fail by panicking")]

mod common;
#[path = "common/nll.rs"]
mod loss;

use burn::tensor::Device;
use common::{Reference, fixture, max_diff};
use gym_training::adapter::Adapter;
use gym_training::lora::Lora;
use gym_training::model::{Decoder, Packed, Weight};
use gym_training::quant::Quantisation;
use loss::nll;
use std::path::Path;

const TOLERANCE: f32 = 1e-4;

/// The base quantised here, and as bitsandbytes stored it.
fn bases() -> [Decoder; 2] {
    let dir = fixture("models/qwen3_untied");
    let ours = Decoder::load_as(&dir, &Device::flex(), Quantisation::Nf4).unwrap();
    let stored = tempfile::tempdir().unwrap();
    write_quantised(&dir, stored.path());
    // It says itself that it is quantised.
    let theirs = Decoder::load(stored.path(), &Device::flex()).unwrap();
    [ours, theirs]
}

/// A directory as `save_pretrained` leaves it: packed linear layers, everything else as it was.
fn write_quantised(dir: &Path, out: &Path) {
    std::fs::copy(dir.join("config.json"), out.join("config.json")).unwrap();
    let dense = std::fs::read(dir.join("model.safetensors")).unwrap();
    let packed = std::fs::read(fixture("qlora/quantised.safetensors")).unwrap();
    let dense = safetensors::SafeTensors::deserialize(&dense).unwrap();
    let packed = safetensors::SafeTensors::deserialize(&packed).unwrap();
    let kept = dense.iter().filter(|(name, _)| packed.tensor(name).is_err());
    let all: Vec<_> = kept.chain(packed.iter()).collect();
    safetensors::serialize_to_file(all, None, &out.join("model.safetensors")).unwrap();
}

#[test]
fn adapter_logits_and_gradients_equal_pefts_over_bitsandbytes() {
    let expected = Reference::open("qlora/expected.safetensors");
    let inputs = Reference::open("models/qwen3_untied/expected.safetensors");
    let rows = inputs.rows("input_ids_left", "attention_mask_left");
    let mask = inputs.i32("attention_mask_left");
    let adapter = Adapter::load(&fixture("models/qwen3_untied/adapter")).unwrap();
    for decoder in bases() {
        let packed = decoder
            .weights()
            .0
            .values()
            .filter(|w| matches!(w, Weight::Nf4(_)))
            .count();
        assert_eq!(packed, 14);
        let lora = Lora::from_adapter(&decoder, &adapter).unwrap().tracked();
        let batch = Packed::rows(&rows);
        let base = decoder.logits(decoder.hidden(&batch, None));
        let logits = decoder.logits(decoder.hidden(&batch, Some(&lora)));
        for (name, got) in [("base", &base), ("adapter", &logits)] {
            let got: Vec<f32> = got.to_data().iter::<f32>().collect();
            let want = expected.f32(&format!("{name}_logits_left"));
            let vocab = decoder.config().vocab_size;
            let unmasked = (0..mask.len()).filter(|place| mask[*place] == 1);
            let want: Vec<f32> = unmasked
                .flat_map(|place| want[place * vocab..][..vocab].to_vec())
                .collect();
            assert_eq!(got.len(), want.len());
            let diff = max_diff(got, want);
            println!("{name} logits: {diff:e}");
            assert!(diff < TOLERANCE, "{name}: {diff:e}");
        }
        let loss = nll(&batch, &rows, logits);
        let value: f32 = loss.clone().into_scalar();
        assert!((value - expected.f32("adapter_nll")[0]).abs() < 1e-5, "{value}");
        let gradients = lora.take_gradients(&mut loss.backward());
        assert_eq!(gradients.0.len(), 28);
        let mut worst = 0f32;
        for (name, gradient) in &gradients.0 {
            let name = name.strip_prefix("base_model.model.").unwrap();
            let want = expected.f32(&format!("grad.{name}"));
            let diff = max_diff(gradient.data.iter().copied(), want);
            worst = worst.max(diff);
            assert!(diff < TOLERANCE, "{name}: {diff:e}");
        }
        println!("gradients: {worst:e}");
    }
}

#[test]
fn only_linear_layers_are_quantised_and_experts_are() {
    for model in ["qwen3_moe", "mixtral", "qwen3_next", "qwen2"] {
        let dir = fixture(&format!("models/{model}"));
        let decoder = Decoder::load_as(&dir, &Device::flex(), Quantisation::Nf4).unwrap();
        let (mut bytes, mut values) = (0, 0);
        for (name, weight) in &decoder.weights().0 {
            let plain = [
                "norm",
                "embed",
                "lm_head",
                ".mlp.gate.",
                "shared_expert_gate",
                "bias",
                "conv1d",
                "A_log",
            ]
            .iter()
            .any(|part| name.contains(part));
            assert_eq!(matches!(weight, Weight::Nf4(_)), !plain, "{model} {name}");
            if let Weight::Nf4(t) = weight {
                bytes += t.resident_bytes();
                values += t.shape().iter().product::<usize>();
            }
        }
        assert!(values > 0, "{model}");
        // Matrices this small do not fill their blocks of 256 scales.
        println!("{model}: {} bytes a weight", bytes as f64 / values as f64);
    }
}
