//! LoRA on routed experts in each of PEFT's layouts (fixture `moe_adapter`).
#![allow(clippy::unwrap_used, reason = "test helpers fail by panicking")]

mod common;
#[path = "common/nll.rs"]
mod loss;

use burn::tensor::Device;
use common::{Reference, fixture, max_diff};
use gym_protocol::job::spec::LoraSpec;
use gym_protocol::tensor::TensorSet;
use gym_training::adapter::{Adapter, ExpertNames};
use gym_training::lora::{Lora, LoraError};
use gym_training::model::{Decoder, Packed};
use gym_training::quant::Quantisation;
use loss::nll;

const TOLERANCE: f32 = 1e-4;
const GRADIENTS: f32 = 2e-4;

/// Each adapter, and whose logits it must give.
const ADAPTERS: [(&str, &str); 5] = [
    ("fused", "fused"),
    ("fused_gate_up_only", "fused_gate_up_only"),
    ("per_expert", "fused"),
    ("per_expert_distinct", "per_expert_distinct"),
    ("per_expert_resaved", "fused"),
];

struct Bench {
    decoder: Decoder,
    expected: Reference,
    inputs: Reference,
    rows: Vec<Vec<u32>>,
}

impl Bench {
    fn new() -> Self {
        let inputs = Reference::open("models/qwen3_moe/expected.safetensors");
        Self {
            decoder: Decoder::load(&fixture("models/qwen3_moe"), &Device::flex()).unwrap(),
            expected: Reference::open("moe_adapter/expected.safetensors"),
            rows: inputs.rows("input_ids_left", "attention_mask_left"),
            inputs,
        }
    }

    fn adapter(name: &str) -> Adapter {
        Adapter::load(&fixture(&format!("moe_adapter/{name}"))).unwrap()
    }

    fn logits(&self, lora: &Lora) -> Vec<f32> {
        let hidden = self.decoder.hidden(&Packed::rows(&self.rows), Some(lora));
        self.decoder.logits(hidden).to_data().iter::<f32>().collect()
    }

    /// Largest difference of the adapter's logits from a reference's.
    fn diff(&self, lora: &Lora, reference: &str) -> f32 {
        let mask = self.inputs.i32("attention_mask_left");
        let vocab = self.decoder.config().vocab_size;
        let want = self.expected.f32(&format!("{reference}.logits_left"));
        let unmasked = (0..mask.len()).filter(|place| mask[*place] == 1);
        let want: Vec<f32> = unmasked
            .flat_map(|place| want[place * vocab..][..vocab].to_vec())
            .collect();
        let got = self.logits(lora);
        assert_eq!(got.len(), want.len());
        max_diff(got, want)
    }

    fn gradients(&self, lora: &Lora) -> (f32, TensorSet) {
        let lora = lora.tracked();
        let batch = Packed::rows(&self.rows);
        let logits = self.decoder.logits(self.decoder.hidden(&batch, Some(&lora)));
        let loss = nll(&batch, &self.rows, logits);
        let value = loss.clone().into_scalar();
        (value, lora.take_gradients(&mut loss.backward()))
    }
}

#[test]
fn every_layout_gives_pefts_logits() {
    let bench = Bench::new();
    for (name, reference) in ADAPTERS {
        let lora = Lora::from_adapter(&bench.decoder, &Bench::adapter(name)).unwrap();
        let diff = bench.diff(&lora, reference);
        println!("{name}: {diff:e}");
        assert!(diff < TOLERANCE, "{name}: {diff:e}");
    }
}

#[test]
fn gradients_equal_pefts_in_the_adapters_own_layout() {
    let bench = Bench::new();
    for (name, count) in [("fused", 8), ("per_expert", 96)] {
        let lora = Lora::from_adapter(&bench.decoder, &Bench::adapter(name)).unwrap();
        let (value, gradients) = bench.gradients(&lora);
        assert!(
            (value - bench.expected.f32("fused.nll")[0]).abs() < 1e-5,
            "{value}"
        );
        assert_eq!(gradients.0.len(), count);
        let mut worst = 0f32;
        for (tensor, gradient) in &gradients.0 {
            let module = tensor.strip_prefix("base_model.model.").unwrap();
            let want = bench.expected.f32(&format!("{name}.grad.{module}"));
            let scale = want.iter().map(|v| v.abs()).fold(0.0, f32::max);
            let diff = max_diff(gradient.data.iter().copied(), want);
            // A bias of rounding remains where an expert's whole gradient is next to nothing.
            worst = worst.max(diff / scale.max(1e-4));
            assert!(
                diff <= GRADIENTS * scale.max(1e-4),
                "{name} {tensor}: {diff:e} of {scale:e}"
            );
        }
        println!("{name} gradients: {worst:e} relative");
    }
}

#[test]
fn what_is_saved_loads_again_and_says_the_same_to_peft() {
    let bench = Bench::new();
    for (name, reference) in ADAPTERS {
        let adapter = Bench::adapter(name);
        let lora = Lora::from_adapter(&bench.decoder, &adapter).unwrap();
        assert_eq!(lora.to_tensors(), adapter.tensors, "{name}");
        let dir = tempfile::tempdir().unwrap();
        adapter.save(dir.path()).unwrap();
        let again = Adapter::load(dir.path()).unwrap();
        assert_eq!(again.tensors, adapter.tensors);
        assert_eq!(again.overrides, adapter.overrides);
        let lora = Lora::from_adapter(&bench.decoder, &again).unwrap();
        assert!(bench.diff(&lora, reference) < TOLERANCE, "{name}");
    }
}

#[test]
fn one_name_per_expert_is_the_same_adapter() {
    let bench = Bench::new();
    for name in ["fused", "fused_gate_up_only"] {
        let apart = Bench::adapter(name).per_expert(ExpertNames::Projections).unwrap();
        assert!(
            apart
                .tensors
                .0
                .keys()
                .all(|n| n.contains(".experts.") && !n.contains("base_layer"))
        );
        let dir = tempfile::tempdir().unwrap();
        apart.save(dir.path()).unwrap();
        let apart = Adapter::load(dir.path()).unwrap();
        let lora = Lora::from_adapter(&bench.decoder, &apart).unwrap();
        let diff = bench.diff(&lora, name);
        assert!(diff < TOLERANCE, "{name}: {diff:e}");
    }
    let apart = Bench::adapter("fused")
        .per_expert(ExpertNames::Projections)
        .unwrap();
    assert_eq!(apart.tensors, Bench::adapter("per_expert").tensors);
    let mixtral = Bench::adapter("fused").per_expert(ExpertNames::Mixtral).unwrap();
    let hub = "base_model.model.model.layers.1.block_sparse_moe.experts.7.w3.lora_B.weight";
    let ours = "base_model.model.model.layers.1.mlp.experts.7.up_proj.lora_B.weight";
    assert_eq!(mixtral.tensors.0[hub], apart.tensors.0[ours]);
    assert_eq!(mixtral.lora.target_modules, ["w1", "w2", "w3"]);
    // Read again, it has the names that all families share.
    let dir = tempfile::tempdir().unwrap();
    mixtral.save(dir.path()).unwrap();
    assert_eq!(Adapter::load(dir.path()).unwrap().tensors, apart.tensors);
    let error = Bench::adapter("per_expert_resaved")
        .per_expert(ExpertNames::Projections)
        .unwrap_err();
    assert!(error.to_string().contains("rank_pattern"), "{error}");
}

#[test]
fn a_job_can_train_experts_in_pefts_layout() {
    let bench = Bench::new();
    let spec = |targets: &[&str]| LoraSpec {
        rank: 4,
        alpha: 8.0,
        target_modules: targets.iter().map(|t| (*t).to_owned()).collect(),
    };
    let all = spec(&["all-linear", "experts.gate_up_proj", "experts.down_proj"]);
    let fresh = Lora::init(&bench.decoder, &all, 3).unwrap();
    // Attention's four layers and two wrappers, A and B, twice.
    assert_eq!(fresh.to_tensors().0.len(), 2 * (8 + 4));
    let (_, gradients) = bench.gradients(&fresh);
    assert!(gradients.same_layout(&fresh.to_tensors()));
    for (name, gradient) in gradients.0.iter().filter(|(name, _)| name.contains("lora_B")) {
        assert!(gradient.data.iter().any(|v| *v != 0.0), "{name}");
    }
    let attention = Lora::init(&bench.decoder, &spec(&["all-linear"]), 3).unwrap();
    assert!(
        attention
            .to_tensors()
            .0
            .keys()
            .all(|name| name.contains("self_attn"))
    );
    let one = Lora::init(&bench.decoder, &spec(&["layers.1.mlp.experts.down_proj"]), 3).unwrap();
    assert_eq!(one.to_tensors().0.len(), 2);
    let error = Lora::init(&bench.decoder, &spec(&["experts.w1"]), 3).unwrap_err();
    assert!(error.to_string().contains("experts.gate_up_proj"), "{error}");
}

#[test]
fn a_missing_or_foreign_tensor_is_named() {
    let bench = Bench::new();
    let mut adapter = Bench::adapter("fused");
    let name = "base_model.model.model.layers.1.mlp.experts.base_layer.lora_B.weight";
    let taken = adapter.tensors.0.remove(name).unwrap();
    let error = Lora::from_adapter(&bench.decoder, &adapter).unwrap_err();
    assert_eq!(error, LoraError::Missing { name: name.into() });
    let dense = name.replace("layers.1", "layers.7");
    adapter.tensors.0.insert(name.into(), taken.clone());
    adapter.tensors.0.insert(dense.clone(), taken);
    let error = Lora::from_adapter(&bench.decoder, &adapter).unwrap_err();
    assert_eq!(error, LoraError::Unused { name: dense });
}

#[test]
fn experts_in_four_bits_train_too() {
    let dir = fixture("models/qwen3_moe");
    let decoder = Decoder::load_as(&dir, &Device::flex(), Quantisation::Nf4).unwrap();
    let bench = Bench {
        decoder,
        ..Bench::new()
    };
    let dense = bench
        .decoder
        .with_host(&bench.decoder.weights().to_host())
        .unwrap();
    let dense = Bench {
        decoder: dense,
        ..Bench::new()
    };
    let adapter = Bench::adapter("fused");
    let packed = Lora::from_adapter(&bench.decoder, &adapter).unwrap();
    let diff = max_diff(bench.logits(&packed), dense.logits(&packed));
    assert!(diff < TOLERANCE, "{diff:e}");
    let (mine, theirs) = (bench.gradients(&packed).1, dense.gradients(&packed).1);
    for (name, gradient) in &mine.0 {
        let want = &theirs.0[name].data;
        let scale = want.iter().map(|v| v.abs()).fold(1e-4, f32::max);
        let diff = max_diff(gradient.data.iter().copied(), want.iter().copied());
        assert!(diff <= GRADIENTS * scale, "{name}: {diff:e} of {scale:e}");
    }
}
