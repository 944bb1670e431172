//! Merged models give the adapter's logits, in this engine (and in transformers: `scripts/peft-check` says how to see).
#![allow(clippy::unwrap_used, reason = "test helpers fail by panicking")]

mod common;

use burn::tensor::Device;
use common::{fixture, max_diff};
use gym_training::adapter::Adapter;
use gym_training::lora::Lora;
use gym_training::merge::{MergeError, MergeOptions, MergedDtype, merge};
use gym_training::model::{Decoder, Packed};
use serde_json::Value;
use std::path::{Path, PathBuf};

const TOLERANCE: f32 = 1e-3;

/// Each model with an adapter for it.
fn pairs() -> Vec<(PathBuf, PathBuf)> {
    let own = [
        "qwen3",
        "qwen3_untied",
        "qwen2",
        "qwen3_moe",
        "mixtral",
        "qwen3_next",
    ];
    let mut pairs: Vec<_> = own
        .iter()
        .map(|m| {
            (
                fixture(&format!("models/{m}")),
                fixture(&format!("models/{m}/adapter")),
            )
        })
        .collect();
    for layout in [
        "fused",
        "fused_gate_up_only",
        "per_expert_distinct",
        "per_expert_resaved",
    ] {
        pairs.push((
            fixture("models/qwen3_moe"),
            fixture(&format!("moe_adapter/{layout}")),
        ));
    }
    pairs
}

fn logits(decoder: &Decoder, lora: Option<&Lora>) -> Vec<f32> {
    let rows: [&[u32]; 2] = [&[5, 9, 2, 40, 77, 3], &[11, 60, 61]];
    let hidden = decoder.hidden(&Packed::rows(&rows), lora);
    decoder.logits(hidden).to_data().iter::<f32>().collect()
}

fn load(dir: &Path) -> Decoder {
    Decoder::load(dir, &Device::flex()).unwrap()
}

fn options(dtype: MergedDtype, shard_bytes: u64) -> MergeOptions {
    MergeOptions { dtype, shard_bytes }
}

#[test]
fn merged_models_give_the_adapters_logits() {
    for (model, adapter) in pairs() {
        let base = load(&model);
        let adapter = Adapter::load(&adapter).unwrap();
        let lora = Lora::from_adapter(&base, &adapter).unwrap();
        let (plain, want) = (logits(&base, None), logits(&base, Some(&lora)));
        let out = tempfile::tempdir().unwrap();
        let report = merge(&model, &adapter, out.path(), &MergeOptions::default()).unwrap();
        assert_eq!(report.shards, 1);
        let merged = load(out.path());
        let diff = max_diff(logits(&merged, None), want.clone());
        println!("{}: {diff:e}, {} layers", model.display(), report.layers);
        assert!(diff < TOLERANCE, "{}: {diff:e}", model.display());
        assert!(
            max_diff(plain, want) > 10.0 * TOLERANCE,
            "the adapter changes nothing"
        );
    }
}

#[test]
fn a_merged_model_is_sharded_with_an_index_over_all_tensors() {
    let model = fixture("models/qwen3_moe");
    let adapter = Adapter::load(&fixture("moe_adapter/fused")).unwrap();
    let (one, many) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    merge(&model, &adapter, one.path(), &MergeOptions::default()).unwrap();
    let report = merge(&model, &adapter, many.path(), &options(MergedDtype::Kept, 60_000)).unwrap();
    assert!(report.shards > 2, "{report:?}");
    assert_eq!(
        load(one.path()).weights().to_host(),
        load(many.path()).weights().to_host()
    );
    let index = std::fs::read_to_string(many.path().join("model.safetensors.index.json")).unwrap();
    let index: Value = serde_json::from_str(&index).unwrap();
    assert_eq!(index["metadata"]["total_size"], report.bytes);
    let map = index["weight_map"].as_object().unwrap();
    assert_eq!(map.len(), report.tensors);
    for file in map.values() {
        let path = many.path().join(file.as_str().unwrap());
        let bytes = std::fs::metadata(&path).unwrap().len();
        assert!(bytes < 60_000 + 100_000, "{} is {bytes} bytes", path.display());
    }
    for file in ["config.json", "model-00001-of-0000"] {
        let names = std::fs::read_dir(many.path()).unwrap();
        let mut names = names.map(|e| e.unwrap().file_name().into_string().unwrap());
        assert!(names.any(|name| name.starts_with(file)), "{file}");
    }
}

#[test]
fn another_kind_of_values_is_rounded_once_and_said() {
    let model = fixture("models/qwen3");
    let adapter = Adapter::load(&fixture("models/qwen3/adapter")).unwrap();
    let whole = tempfile::tempdir().unwrap();
    merge(
        &model,
        &adapter,
        whole.path(),
        &options(MergedDtype::F32, u64::MAX),
    )
    .unwrap();
    let exact = load(whole.path()).weights().to_host();
    for (dtype, name, step) in [
        (MergedDtype::Bf16, "bfloat16", 256.0),
        (MergedDtype::F16, "float16", 2048.0),
    ] {
        let out = tempfile::tempdir().unwrap();
        let report = merge(&model, &adapter, out.path(), &options(dtype, u64::MAX)).unwrap();
        let values: usize = exact.0.values().map(|t| t.data.len()).sum();
        assert_eq!(report.bytes, 2 * values as u64);
        let config = std::fs::read_to_string(out.path().join("config.json")).unwrap();
        assert!(config.contains(name), "{config}");
        for (tensor, rounded) in load(out.path()).weights().to_host().0 {
            for (a, b) in rounded.data.iter().zip(&exact.0[&tensor].data) {
                assert!((a - b).abs() <= b.abs() / step + 1e-7, "{tensor}: {a} {b}");
            }
        }
    }
}

#[test]
fn a_directory_with_weights_and_an_adapter_of_another_model_are_refused() {
    let model = fixture("models/qwen3");
    let adapter = Adapter::load(&fixture("models/qwen3/adapter")).unwrap();
    let error = merge(&model, &adapter, &model, &MergeOptions::default()).unwrap_err();
    assert!(matches!(error, MergeError::Occupied { .. }), "{error}");
    let out = tempfile::tempdir().unwrap();
    let other = fixture("models/qwen3_moe");
    let error = merge(&other, &adapter, out.path(), &MergeOptions::default()).unwrap_err();
    assert!(matches!(error, MergeError::Adapter(_)), "{error}");
    let files = std::fs::read_dir(out.path()).unwrap().count();
    assert_eq!(files, 0);
}
