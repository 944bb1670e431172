//! What a model in NF4 holds in memory: counted by the allocator, not computed. One test, so that nothing else allocates.
#![allow(clippy::unwrap_used, reason = "test helpers fail by panicking")]

mod common;

use burn::tensor::Device;
use common::fixture;
use gym_protocol::job::spec::LoraSpec;
use gym_training::lora::Lora;
use gym_training::model::{Decoder, ModelConfig, Packed, Weight};
use gym_training::quant::Quantisation;
use peak_alloc::PeakAlloc;
use serde_json::{Value, json};
use std::path::Path;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Bytes beside the tensors: names, maps, thread pools.
const SLACK: usize = 2 << 20;

/// A fixture's configuration in sizes whose weights outweigh everything else.
fn configuration(model: &str, dir: &Path, changes: Value) -> ModelConfig {
    let text = std::fs::read_to_string(fixture(&format!("models/{model}/config.json"))).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        assert!(config.get(key).is_some(), "{key}");
        config[key] = value.clone();
    }
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    ModelConfig::load(dir).unwrap()
}

#[test]
fn a_quantised_model_holds_053_bytes_a_weight_and_no_dense_copy() {
    let dense = json!({ "hidden_size": 512, "intermediate_size": 2048 });
    let sparse = json!({ "hidden_size": 512, "moe_intermediate_size": 512 });
    for (model, changes) in [("qwen3_untied", dense), ("qwen3_moe", sparse)] {
        let dir = tempfile::tempdir().unwrap();
        let config = configuration(model, dir.path(), changes);
        Decoder::init(config, 1, &Device::flex())
            .unwrap()
            .save(dir.path())
            .unwrap();

        MEMORY.reset_peak_usage();
        let before = MEMORY.current_usage();
        let decoder = Decoder::load_as(dir.path(), &Device::flex(), Quantisation::Nf4).unwrap();
        let (held, peak) = (MEMORY.current_usage() - before, MEMORY.peak_usage() - before);

        let all = decoder.weights().0.values();
        let sizes = all.map(|w| (matches!(w, Weight::Nf4(_)), w.shape().iter().product::<usize>()));
        let (packed, plain): (Vec<_>, Vec<_>) = sizes.partition(|(packed, _)| *packed);
        let sum = |list: &[(bool, usize)]| list.iter().map(|(_, n)| n).sum::<usize>();
        let (packed_values, plain_values) = (sum(&packed), sum(&plain));
        let largest = packed.iter().map(|(_, n)| *n).max().unwrap();
        let each = held.saturating_sub(4 * plain_values) as f64 / packed_values as f64;
        println!("{model}: {packed_values} packed weights at {each:.4} bytes, peak {peak} of {held} held");
        // Names and maps count too; the weights alone are at 0.516.
        assert!(each <= 0.53, "{model}: {each} bytes a weight");
        assert!(4 * packed_values > 8 * SLACK);
        // One tensor at a time is dense.
        assert!(
            peak < held + 3 * 4 * largest + SLACK,
            "{model}: peak {peak} over {held}"
        );

        // A pass over four tokens keeps activations only, and its backward pass unpacks tile by tile.
        let spec = LoraSpec {
            rank: 4,
            ..LoraSpec::default()
        };
        let lora = Lora::init(&decoder, &spec, 1).unwrap().tracked();
        let before = MEMORY.current_usage();
        MEMORY.reset_peak_usage();
        let hidden = decoder.hidden(&Packed::rows(&[[3u32, 1, 4, 1]]), Some(&lora));
        let kept = MEMORY.current_usage().saturating_sub(before);
        let gradients = hidden.sum().backward();
        let peak = MEMORY.peak_usage().saturating_sub(before);
        println!("{model}: {kept} bytes kept for the backward pass, peak {peak}");
        assert!(kept < SLACK, "{model}: {kept} bytes kept");
        let adapter = 4 * lora.elements();
        assert!(peak < 2 * SLACK + 2 * adapter, "{model}: peak {peak}");
        drop(gradients);
    }
}
