//! What is refused, by name; and the optimizer's arithmetic by hand.
#![allow(clippy::unwrap_used, reason = "test helpers fail by panicking")]

mod common;

use burn::tensor::Device;
use common::fixture;
use gym_protocol::job::spec::{LoraSpec, LrScheduler};
use gym_training::adapter::Adapter;
use gym_training::lora::{Lora, LoraError};
use gym_training::model::{Decoder, ModelConfig};
use gym_training::optim::{AdamW, AdamWConfig, Schedule, UpdateError};
use serde_json::{Value, json};

fn config_with(key: &str, value: Value) -> Result<ModelConfig, String> {
    let text = std::fs::read_to_string(fixture("models/qwen3/config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config[key] = value;
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    ModelConfig::load(dir.path()).map_err(|e| e.to_string())
}

#[test]
fn a_config_that_would_be_misread_is_refused_by_key() {
    for (key, value) in [
        ("architectures", json!(["GPT2LMHeadModel"])),
        ("vocab_size", Value::Null),
        ("hidden_size", json!(0)),
        ("hidden_size", json!(1u64 << 40)),
        ("num_key_value_heads", json!(3)),
        ("head_dim", json!(15)),
        ("hidden_act", json!("gelu")),
        ("attention_bias", json!("yes")),
        ("layer_types", json!(["full_attention"])),
        (
            "layer_types",
            json!(["full_attention", "full_attention", "chunked_attention"]),
        ),
        ("num_hidden_layers", json!(1u64 << 20)),
        ("tie_word_embeddings", json!("yes")),
        ("eos_token_id", json!([2, -1])),
    ] {
        let message = config_with(key, value.clone()).unwrap_err();
        assert!(
            message.contains(&format!("\"{key}\"")),
            "{key} {value}: {message}"
        );
    }
    let scaled = json!({ "rope_type": "yarn", "rope_theta": 1e6 });
    assert!(
        config_with("rope_parameters", scaled)
            .unwrap_err()
            .contains("yarn")
    );
    let scaled = json!({ "rope_type": "llama3", "rope_theta": 1e6, "factor": 8.0, "low_freq_factor": 4.0,
        "high_freq_factor": 1.0, "original_max_position_embeddings": 64 });
    assert!(
        config_with("rope_parameters", scaled)
            .unwrap_err()
            .contains("high_freq_factor")
    );
    assert_eq!(
        config_with("eos_token_id", json!([2, 5])).unwrap().eos_token_ids,
        [2, 5]
    );
    assert_eq!(config_with("head_dim", Value::Null).unwrap().head_dim, 128);
}

/// Sizes that are possible each and absurd together: refused before a tensor is listed, and no sum overflows.
#[test]
fn sizes_whose_products_no_machine_can_hold_are_refused() {
    let refused = |model: &str, changes: Value, key: &str| {
        let text = std::fs::read_to_string(fixture(&format!("models/{model}/config.json"))).unwrap();
        let mut config: Value = serde_json::from_str(&text).unwrap();
        let object = config.as_object_mut().unwrap();
        object.remove("layer_types");
        object.extend(changes.as_object().unwrap().clone());
        let message = ModelConfig::from_json(config).unwrap_err().to_string();
        assert!(message.contains(&format!("\"{key}\"")), "{model}: {message}");
    };
    let most = 1u64 << 24;
    refused("qwen3", json!({ "head_dim": most }), "head_dim");
    let wide = json!({ "hidden_size": most, "intermediate_size": most, "num_hidden_layers": 1024 });
    refused("qwen3", wide, "hidden_size");
    let many = json!({ "num_experts": 4096, "num_hidden_layers": 1024 });
    refused("qwen3_moe", many, "num_hidden_layers");
    let keys = json!({ "linear_num_key_heads": 2, "linear_key_head_dim": most });
    refused("qwen3_next", keys, "linear_key_head_dim");
    let values = json!({ "linear_num_value_heads": most, "linear_value_head_dim": most });
    refused("qwen3_next", values, "linear_value_head_dim");
}

#[test]
fn an_absent_or_broken_model_directory_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let error = Decoder::load(dir.path(), &Device::flex())
        .unwrap_err()
        .to_string();
    assert!(error.contains("config.json"), "{error}");
    std::fs::copy(
        fixture("models/qwen3/config.json"),
        dir.path().join("config.json"),
    )
    .unwrap();
    let error = Decoder::load(dir.path(), &Device::flex())
        .unwrap_err()
        .to_string();
    assert!(error.contains("neither model.safetensors"), "{error}");
    let whole = std::fs::read(fixture("models/qwen3/model.safetensors")).unwrap();
    std::fs::write(dir.path().join("model.safetensors"), &whole[..whole.len() - 100]).unwrap();
    let error = Decoder::load(dir.path(), &Device::flex())
        .unwrap_err()
        .to_string();
    assert!(error.contains("fetch the file again"), "{error}");
    let index = json!({ "weight_map": { "a": "../model.safetensors" } });
    std::fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    let error = Decoder::load(dir.path(), &Device::flex())
        .unwrap_err()
        .to_string();
    assert!(error.contains("plain file names"), "{error}");
}

#[test]
fn targets_are_names_suffixes_or_all_linear() {
    let decoder = Decoder::load(&fixture("models/qwen3"), &Device::flex()).unwrap();
    let tensors = |targets: &[&str]| {
        let spec = LoraSpec {
            target_modules: targets.iter().map(|t| (*t).to_owned()).collect(),
            ..LoraSpec::default()
        };
        Lora::init(&decoder, &spec, 1).map(|lora| lora.to_tensors().0.len())
    };
    assert_eq!(tensors(&["all-linear"]), Ok(3 * 14));
    assert_eq!(tensors(&["q_proj", "v_proj"]), Ok(3 * 4));
    assert_eq!(tensors(&["layers.1.mlp.up_proj"]), Ok(2));
    let error = tensors(&["q_proj", "qkv"]).unwrap_err();
    assert!(
        error.to_string().contains("qkv") && error.to_string().contains("down_proj"),
        "{error}"
    );
    assert!(tensors(&["proj"]).is_err(), "part of a name is no name");
}

#[test]
fn a_fresh_adapter_changes_nothing_and_is_within_its_bound() {
    let decoder = Decoder::load(&fixture("models/qwen3"), &Device::flex()).unwrap();
    let set = Lora::init(&decoder, &LoraSpec::default(), 1)
        .unwrap()
        .to_tensors();
    for (name, tensor) in &set.0 {
        let bound = if name.contains("lora_B") {
            0.0
        } else {
            1.0 / (tensor.shape[1] as f32).sqrt()
        };
        assert!(tensor.data.iter().all(|v| v.abs() <= bound), "{name}");
        let spread = tensor.data.iter().map(|v| v * v).sum::<f32>() / tensor.data.len() as f32;
        assert!(
            (spread - bound * bound / 3.0).abs() <= 0.1 * bound * bound,
            "{name} {spread}"
        );
    }
}

#[test]
fn another_ranks_or_another_kind_of_adapter_is_refused() {
    let decoder = Decoder::load(&fixture("models/qwen3"), &Device::flex()).unwrap();
    let adapter = Adapter::load(&fixture("models/qwen3/adapter")).unwrap();
    let spec = LoraSpec {
        rank: 8,
        ..adapter.lora.clone()
    };
    let error = Lora::from_tensors(&decoder, &spec, &adapter.tensors).unwrap_err();
    assert!(matches!(error, LoraError::Shape { .. }), "{error}");
    let spec = LoraSpec {
        target_modules: vec!["q_proj".into()],
        ..adapter.lora.clone()
    };
    let error = Lora::from_tensors(&decoder, &spec, &adapter.tensors).unwrap_err();
    assert!(matches!(error, LoraError::Unused { .. }), "{error}");

    let dir = tempfile::tempdir().unwrap();
    adapter.save(dir.path()).unwrap();
    let path = dir.path().join("adapter_config.json");
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    config["use_dora"] = json!(true);
    std::fs::write(&path, config.to_string()).unwrap();
    assert!(
        Adapter::load(dir.path())
            .unwrap_err()
            .to_string()
            .contains("use_dora")
    );
}

#[test]
fn adamw_by_hand() {
    let config = AdamWConfig {
        weight_decay: 0.1,
        max_grad_norm: 1.0,
        ..AdamWConfig::default()
    };
    let mut optimizer = AdamW::new(config, 2);
    let mut parameters = [1.0f32, -2.0];
    // ‖g‖ = 5 is clipped to 1; the first step moves each by η, whatever the gradient's size.
    let norm = optimizer.update(&mut parameters, &[3.0, -4.0], 0.01).unwrap();
    assert!((norm - 5.0).abs() < 1e-12);
    let want = [1.0 * 0.999 - 0.01, -2.0 * 0.999 + 0.01];
    assert!(
        parameters.iter().zip(want).all(|(p, w)| (p - w).abs() < 1e-6),
        "{parameters:?}"
    );
    assert!((optimizer.moments().m[0] - 0.06).abs() < 1e-6);

    let before = (parameters, optimizer.clone());
    let error = optimizer
        .update(&mut parameters, &[f32::NAN, 0.0], 0.01)
        .unwrap_err();
    assert_eq!(error, UpdateError::NonFinite);
    assert!(optimizer.update(&mut parameters, &[0.0], 0.01).is_err());
    assert_eq!(before, (parameters, optimizer));
}

fn rates(schedule: &Schedule, updates: std::ops::Range<u64>) -> Vec<f64> {
    updates.map(|update| schedule.at(update, update)).collect()
}

#[test]
fn the_rate_warms_up_and_stays_or_falls() {
    let constant = Schedule {
        rate: 1.0,
        scheduler: LrScheduler::ConstantWithWarmup,
        warmup: 4,
        total: Some(8),
    };
    assert_eq!(rates(&constant, 0..6), [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]);
    assert_eq!(
        Schedule {
            warmup: 0,
            ..constant
        }
        .at(0, 0),
        1.0
    );
    let linear = Schedule {
        scheduler: LrScheduler::Linear,
        ..constant
    };
    assert_eq!(
        rates(&linear, 0..10),
        [0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    );
    let cosine = Schedule {
        scheduler: LrScheduler::Cosine,
        ..constant
    };
    let root = 0.5f64.sqrt();
    let want = [1.0, 1.0, (1.0 + root) / 2.0, 0.5, (1.0 - root) / 2.0, 0.0];
    for (got, want) in rates(&cosine, 3..9).iter().zip(want) {
        assert!((got - want).abs() < 1e-12, "{got} {want}");
    }
    // Whoever joins at the sixth update warms up, and falls with the rest.
    assert_eq!(linear.at(0, 6), 0.25 * 0.5);
    assert_eq!(
        Schedule {
            total: None,
            ..linear
        }
        .at(99, 99),
        1.0
    );
}
