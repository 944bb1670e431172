//! What `adapter_config.json` may say: target lists, patterns, scales, and what is refused.
#![allow(clippy::unwrap_used, reason = "test helpers fail by panicking")]

mod common;

use burn::tensor::Device;
use common::{fixture, max_diff};
use gym_training::adapter::Adapter;
use gym_training::lora::Lora;
use gym_training::model::{Decoder, Packed};
use serde_json::{Value, json};
use std::path::Path;

fn decoder() -> Decoder {
    Decoder::load(&fixture("models/qwen3"), &Device::flex()).unwrap()
}

/// The fixture's adapter with another configuration.
fn rewritten(change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("models/qwen3/adapter");
    let name = "adapter_model.safetensors";
    std::fs::copy(source.join(name), dir.path().join(name)).unwrap();
    let text = std::fs::read_to_string(source.join("adapter_config.json")).unwrap();
    let mut config = serde_json::from_str(&text).unwrap();
    change(&mut config);
    std::fs::write(dir.path().join("adapter_config.json"), config.to_string()).unwrap();
    dir
}

fn logits(decoder: &Decoder, dir: &Path) -> Vec<f32> {
    let adapter = Adapter::load(dir).unwrap();
    let lora = Lora::from_adapter(decoder, &adapter).unwrap();
    let hidden = decoder.hidden(&Packed::rows(&[[5u32, 9, 2, 40]]), Some(&lora));
    decoder.logits(hidden).to_data().iter::<f32>().collect()
}

#[test]
fn a_list_a_regular_expression_and_all_linear_are_one_target() {
    let decoder = decoder();
    let want = logits(&decoder, &fixture("models/qwen3/adapter"));
    for targets in [
        json!("all-linear"),
        json!(r".*\.(q|k|v|o|gate|up|down)_proj"),
        // Beyond what the regex crate knows, and as good: the tensors say what it matched.
        json!(r"(?!lm_head).*_proj"),
    ] {
        let dir = rewritten(|config| config["target_modules"] = targets.clone());
        assert_eq!(logits(&decoder, dir.path()), want, "{targets}");
        let again = tempfile::tempdir().unwrap();
        Adapter::load(dir.path()).unwrap().save(again.path()).unwrap();
        assert_eq!(logits(&decoder, again.path()), want, "{targets} saved");
    }
}

#[test]
fn layers_may_be_left_out_by_number_or_by_name() {
    let decoder = decoder();
    let whole = Adapter::load(&fixture("models/qwen3/adapter")).unwrap();
    let kept = |name: &str| name.contains("layers.1.") && !name.contains("q_proj");
    let mut part = whole.clone();
    part.tensors.0.retain(|name, _| kept(name));
    let dir = tempfile::tempdir().unwrap();
    part.save(dir.path()).unwrap();
    let path = dir.path().join("adapter_config.json");
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let adapter = Adapter::load(dir.path()).unwrap();
    assert!(
        Lora::from_adapter(&decoder, &adapter).is_err(),
        "most targets have no tensor"
    );
    config["layers_to_transform"] = json!([1]);
    config["exclude_modules"] = json!(["q_proj"]);
    std::fs::write(&path, config.to_string()).unwrap();
    // The whole adapter with B = 0 elsewhere.
    let mut zeroed = whole;
    for (name, tensor) in &mut zeroed.tensors.0 {
        if !kept(name) {
            tensor.data.fill(0.0);
        }
    }
    let want = tempfile::tempdir().unwrap();
    zeroed.save(want.path()).unwrap();
    assert!(max_diff(logits(&decoder, dir.path()), logits(&decoder, want.path())) < 1e-5);
}

#[test]
fn scales_are_alpha_over_rank_or_over_its_root_or_a_patterns() {
    let decoder = decoder();
    let plain = fixture("models/qwen3/adapter");
    let (rank, alpha) = (4.0f64, 8.0f64);
    let spec = Adapter::load(&plain).unwrap().lora;
    assert_eq!((f64::from(spec.rank), spec.alpha), (rank, alpha));
    let want = logits(&decoder, &plain);
    // alpha/√r at half the alpha is alpha/r at the whole for rank 4.
    let root = rewritten(|config| {
        config["use_rslora"] = json!(true);
        config["lora_alpha"] = json!(alpha / rank.sqrt());
    });
    assert!(max_diff(logits(&decoder, root.path()), want.clone()) < 1e-5);
    // Every layer's alpha by pattern, the adapter's own wrong.
    let pattern = rewritten(|config| {
        config["lora_alpha"] = json!(1.0);
        config["alpha_pattern"] = json!({ ".*_proj": alpha });
    });
    assert_eq!(logits(&decoder, pattern.path()), want);
    // A rank by pattern that the tensors do not have.
    let wrong = rewritten(|config| config["rank_pattern"] = json!({ "q_proj": 8 }));
    let adapter = Adapter::load(wrong.path()).unwrap();
    let error = Lora::from_adapter(&decoder, &adapter).unwrap_err().to_string();
    assert!(error.contains("q_proj") && error.contains("[8, 48]"), "{error}");
    let broken = rewritten(|config| config["alpha_pattern"] = json!({ "(": 8 }));
    let adapter = Adapter::load(broken.path()).unwrap();
    let error = Lora::from_adapter(&decoder, &adapter).unwrap_err().to_string();
    assert!(error.contains("alpha_pattern"), "{error}");
}

#[test]
fn what_would_give_other_logits_is_refused_by_name() {
    for (key, value) in [
        ("use_dora", json!(true)),
        ("lora_bias", json!(true)),
        ("bias", json!("all")),
        ("fan_in_fan_out", json!(true)),
        ("modules_to_save", json!(["lm_head"])),
        ("layer_replication", json!([[0, 2]])),
        ("peft_type", json!("LOHA")),
        ("r", json!(0)),
        ("rank_pattern", json!({ "q_proj": "four" })),
        ("target_modules", json!(7)),
        ("target_parameters", json!(["mlp.router"])),
    ] {
        let dir = rewritten(|config| config[key] = value.clone());
        let error = Adapter::load(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("\"{key}\"")), "{key}: {error}");
    }
}
