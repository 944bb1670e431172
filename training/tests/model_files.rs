//! Model directories as the Hub has them: kinds of values, shards, fused experts, tensors to pass over.
#![allow(clippy::unwrap_used, reason = "test helpers fail by panicking")]

mod common;

use burn::tensor::Device;
use common::{Reference, fixture, max_diff};
use gym_training::model::{Architecture, Decoder, ModelConfig, Packed, Store};
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::collections::BTreeMap;
use std::path::Path;

/// One tensor as it is to be written.
#[derive(Clone)]
struct Raw {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

type Tensors = BTreeMap<String, Raw>;

fn read(model: &str) -> Tensors {
    let bytes = std::fs::read(fixture(&format!("models/{model}/model.safetensors"))).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let raw = |view: TensorView<'_>| Raw {
        dtype: view.dtype(),
        shape: view.shape().to_vec(),
        bytes: view.data().to_vec(),
    };
    file.iter()
        .map(|(name, view)| (name.to_owned(), raw(view)))
        .collect()
}

fn write(tensors: &Tensors, path: &Path) {
    let views = tensors.iter().map(|(name, raw)| {
        let view = TensorView::new(raw.dtype, raw.shape.clone(), &raw.bytes).unwrap();
        (name.clone(), view)
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// A directory with the model's config and these tensors.
fn directory(model: &str, tensors: &Tensors) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let config = fixture(&format!("models/{model}/config.json"));
    std::fs::copy(config, dir.path().join("config.json")).unwrap();
    write(tensors, &dir.path().join("model.safetensors"));
    dir
}

fn load(dir: &Path) -> Decoder {
    Decoder::load(dir, &Device::flex()).unwrap()
}

fn error(dir: &Path) -> String {
    Decoder::load(dir, &Device::flex()).unwrap_err().to_string()
}

fn values(raw: &Raw) -> Vec<f32> {
    let (chunks, _) = raw.bytes.as_chunks();
    chunks.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn f32_raw(shape: &[usize], values: &[f32]) -> Raw {
    Raw {
        dtype: Dtype::F32,
        shape: shape.to_vec(),
        bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

#[test]
fn half_precision_files_are_read_to_the_bit() {
    for model in ["qwen3_untied", "qwen3_next"] {
        let tensors = read(model);
        let bytes16 = |dtype, f: &dyn Fn(f32) -> [u8; 2]| -> Tensors {
            let half = |raw: &Raw| Raw {
                dtype,
                shape: raw.shape.clone(),
                bytes: values(raw).into_iter().flat_map(f).collect(),
            };
            tensors.iter().map(|(n, raw)| (n.clone(), half(raw))).collect()
        };
        let brain = directory(model, &bytes16(Dtype::BF16, &|v| bf16::from_f32(v).to_le_bytes()));
        let half = directory(model, &bytes16(Dtype::F16, &|v| f16::from_f32(v).to_le_bytes()));
        for (dir, round) in [
            (&brain, (|v| bf16::from_f32(v).to_f32()) as fn(f32) -> f32),
            (&half, |v| f16::from_f32(v).to_f32()),
        ] {
            let got = load(dir.path()).weights().to_host();
            let whole = load(&fixture(&format!("models/{model}"))).weights().to_host();
            for (name, tensor) in &whole.0 {
                let want: Vec<f32> = tensor.data.iter().map(|v| round(*v)).collect();
                assert_eq!(got.0[name].data, want, "{model} {name}");
            }
        }
    }
}

#[test]
fn a_sharded_model_is_the_same_model() {
    for model in ["qwen3", "qwen3_next"] {
        let decoder = load(&fixture(&format!("models/{model}")));
        let dir = tempfile::tempdir().unwrap();
        let config = fixture(&format!("models/{model}/config.json"));
        std::fs::copy(config, dir.path().join("config.json")).unwrap();
        let mut map = serde_json::Map::new();
        for shard in ["a.safetensors", "b.safetensors"] {
            let mut own = read(model);
            own.retain(|name, _| name.contains("mlp") == shard.starts_with('a'));
            map.extend(own.keys().map(|name| (name.clone(), shard.into())));
            write(&own, &dir.path().join(shard));
        }
        let index = serde_json::json!({ "metadata": {}, "weight_map": map });
        std::fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
        let sharded = load(dir.path());
        assert_eq!(sharded.weights().to_host(), decoder.weights().to_host());
        std::fs::remove_file(dir.path().join("b.safetensors")).unwrap();
        assert!(error(dir.path()).contains("b.safetensors"));
        std::fs::copy(dir.path().join("a.safetensors"), dir.path().join("b.safetensors")).unwrap();
        assert!(error(dir.path()).contains("two shards"));
    }
}

/// Experts in one tensor a layer, as newer files have them: gate_up_proj [E, 2I, H], down_proj [E, H, I].
fn fused(model: &str) -> Tensors {
    let mut tensors = read(model);
    let config = ModelConfig::load(&fixture(&format!("models/{model}"))).unwrap();
    let experts = config.experts().unwrap().count;
    let mixtral = config.architecture == Architecture::Mixtral;
    for layer in 0..config.num_hidden_layers {
        let path = format!("model.layers.{layer}.mlp");
        let mut take = |expert: usize, part: &str, hub: &str| {
            let name = match mixtral {
                true => format!("model.layers.{layer}.block_sparse_moe.experts.{expert}.{hub}.weight"),
                false => format!("{path}.experts.{expert}.{part}.weight"),
            };
            tensors.remove(&name).unwrap()
        };
        let (mut gate_up, mut down) = (Vec::new(), Vec::new());
        let mut shapes = (Vec::new(), Vec::new());
        for expert in 0..experts {
            let (gate, up) = (take(expert, "gate_proj", "w1"), take(expert, "up_proj", "w3"));
            let one = take(expert, "down_proj", "w2");
            shapes = (
                vec![experts, 2 * gate.shape[0], gate.shape[1]],
                vec![experts, one.shape[0], one.shape[1]],
            );
            gate_up.extend(values(&gate).into_iter().chain(values(&up)));
            down.extend(values(&one));
        }
        let name = format!("{path}.experts.gate_up_proj");
        tensors.insert(name, f32_raw(&shapes.0, &gate_up));
        tensors.insert(format!("{path}.experts.down_proj"), f32_raw(&shapes.1, &down));
        if mixtral {
            let router = tensors
                .remove(&format!("model.layers.{layer}.block_sparse_moe.gate.weight"))
                .unwrap();
            tensors.insert(format!("{path}.gate.weight"), router);
        }
    }
    tensors
}

#[test]
fn fused_experts_are_the_same_experts() {
    for model in ["mixtral", "qwen3_moe", "qwen3_next"] {
        let tensors = fused(model);
        let dir = directory(model, &tensors);
        let want = load(&fixture(&format!("models/{model}"))).weights().to_host();
        assert_eq!(load(dir.path()).weights().to_host(), want);

        let name = "model.layers.1.mlp.experts.gate_up_proj".to_owned();
        let mut wrong = tensors.clone();
        let raw = wrong.get_mut(&name).unwrap();
        // One expert short.
        let one = raw.bytes.len() / raw.shape[0];
        raw.shape[0] -= 1;
        raw.bytes.truncate(raw.bytes.len() - one);
        let dir = directory(model, &wrong);
        assert!(error(dir.path()).contains(&name));
        wrong.remove(&name);
        let dir = directory(model, &wrong);
        assert!(error(dir.path()).contains("model.layers.1.mlp.experts.0.gate_proj.weight"));
    }
}

#[test]
fn what_a_family_may_ignore_is_passed_over_and_nothing_else() {
    let mut tensors = read("qwen3");
    let head = tensors["model.embed_tokens.weight"].clone();
    tensors.insert("lm_head.weight".into(), head);
    tensors.insert("mtp.layers.0.mlp.up_proj.weight".into(), f32_raw(&[2], &[0.0; 2]));
    let frequencies = "model.layers.0.self_attn.rotary_emb.inv_freq";
    tensors.insert(frequencies.into(), f32_raw(&[8], &[0.0; 8]));
    let dir = directory("qwen3", &tensors);
    let want = load(&fixture("models/qwen3")).weights().to_host();
    assert_eq!(load(dir.path()).weights().to_host(), want);

    let extra = "model.layers.0.self_attn.q_proj.bias";
    tensors.insert(extra.into(), f32_raw(&[64], &[0.0; 64]));
    assert!(error(directory("qwen3", &tensors).path()).contains(extra));
}

#[test]
fn rows_beyond_the_vocabulary_are_dropped() {
    for model in ["qwen3", "qwen3_untied"] {
        let mut tensors = read(model);
        for name in ["model.embed_tokens.weight", "lm_head.weight"] {
            let Some(table) = tensors.get(name) else {
                continue;
            };
            let mut all = values(table);
            all.extend(vec![9.0; 16 * table.shape[1]]);
            let shape = [table.shape[0] + 16, table.shape[1]];
            tensors.insert(name.into(), f32_raw(&shape, &all));
        }
        let dir = directory(model, &tensors);
        let decoder = load(dir.path());
        let expected = Reference::open(&format!("models/{model}/expected.safetensors"));
        let rows = expected.rows("input_ids_left", "attention_mask_left");
        let logits = decoder.logits(decoder.hidden(&Packed::rows(&rows[1..]), None));
        assert_eq!(logits.dims()[1], decoder.config().vocab_size);
        let got: Vec<f32> = logits.to_data().iter::<f32>().collect();
        assert!(max_diff(got, expected.f32("logits_row1_unpadded")) < 5e-5);
    }
}

#[test]
fn the_headers_alone_tell_every_problem() {
    let dir = directory("mixtral", &read("mixtral"));
    let config = ModelConfig::load(dir.path()).unwrap();
    assert!(Store::open(dir.path()).unwrap().problems(&config).is_empty());

    let mut tensors = read("mixtral");
    let missing = "model.layers.0.self_attn.q_proj.weight";
    tensors.remove(missing);
    let narrow = "model.layers.1.block_sparse_moe.experts.2.w2.weight";
    tensors.insert(narrow.into(), f32_raw(&[48, 23], &[0.0; 48 * 23]));
    let whole = "model.norm.weight";
    tensors.insert(
        whole.into(),
        Raw {
            dtype: Dtype::I32,
            shape: vec![48],
            bytes: vec![0; 4 * 48],
        },
    );
    let extra = "model.layers.0.self_attn.sinks";
    tensors.insert(extra.into(), f32_raw(&[4], &[0.0; 4]));
    let dir = directory("mixtral", &tensors);
    let problems = Store::open(dir.path()).unwrap().problems(&config);
    let text: Vec<String> = problems.iter().map(ToString::to_string).collect();
    for name in [missing, narrow, whole, extra] {
        assert_eq!(
            text.iter().filter(|t| t.contains(name)).count(),
            1,
            "{name}: {text:?}"
        );
    }
    assert_eq!(problems.len(), 4);
}
