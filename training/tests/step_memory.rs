//! A step's memory as foreseen and as counted by the allocator. One test, so that nothing else allocates.
#![allow(clippy::unwrap_used, reason = "test helpers fail by panicking")]

mod common;

use burn::tensor::Device;
use common::fixture;
use gym_protocol::job::spec::JobFile;
use gym_training::data::{Prompt, Question};
use gym_training::memory::{Estimate, Place, Requirements, Work};
use gym_training::model::{Decoder, ModelConfig};
use gym_training::pretrain::write_tokenizer;
use gym_training::quant::Quantisation;
use gym_training::sampling::RolloutKey;
use gym_training::trainer::{Limits, Outcome, Plan, StepInput, Trainer};
use peak_alloc::PeakAlloc;
use serde_json::{Value, json};
use std::path::Path;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

const JOB: &str = "name = \"t\"\nmodel = \"m\"\ntrain = \"a\"\nheldout = \"b\"\nuse_4bit = false\n\
                   rewards = [{ name = \"format\", pattern = \"^[0-4]\" }]\n\
                   [gspo]\nbeta = 0.01\ngroup_size = 8\nprompts_per_step = 4\n\
                   [rollout]\nmax_completion_length = 48\n[schedule]\nrounds = 1\n";

/// One shape and the ways to train it.
struct Case {
    name: &'static str,
    model: &'static str,
    sizes: Value,
    change: fn(&mut Plan),
    limits: Limits,
}

fn cases() -> Vec<Case> {
    let dense = json!({ "hidden_size": 256, "intermediate_size": 768, "head_dim": 64, "num_attention_heads": 8,
        "vocab_size": 2048 });
    let wide = json!({ "hidden_size": 256, "intermediate_size": 768, "head_dim": 64, "num_attention_heads": 8,
        "vocab_size": 32_768 });
    let experts =
        json!({ "hidden_size": 192, "moe_intermediate_size": 192, "head_dim": 32, "vocab_size": 2048 });
    let next = json!({ "hidden_size": 192, "moe_intermediate_size": 96, "shared_expert_intermediate_size": 96,
        "head_dim": 32, "linear_key_head_dim": 32, "linear_value_head_dim": 32, "vocab_size": 2048 });
    let all = Limits::default();
    let few = Limits {
        rollout_rows: 8,
        micro_batch_tokens: 400,
    };
    let case = |name, model, sizes: &Value, change, limits| Case {
        name,
        model,
        sizes: sizes.clone(),
        change,
        limits,
    };
    let plain: fn(&mut Plan) = |_| ();
    let packed: fn(&mut Plan) = |plan| plan.quantisation = Quantisation::Nf4;
    let again: fn(&mut Plan) = |plan| plan.gspo.gradient_checkpointing = true;
    let parts: fn(&mut Plan) = |plan| plan.gspo.minibatches = 4;
    let ranked: fn(&mut Plan) = |plan| plan.lora.rank = 256;
    vec![
        case("dense", "qwen3_untied", &dense, plain, all),
        case("dense, four minibatches", "qwen3_untied", &dense, parts, all),
        case("dense, blocks again", "qwen3_untied", &dense, again, all),
        case("dense, rank 256", "qwen3_untied", &dense, ranked, few),
        case("dense, large vocabulary", "qwen3_untied", &wide, plain, all),
        case("NF4", "qwen3_untied", &dense, packed, all),
        case("experts", "qwen3_moe", &experts, plain, all),
        case("experts, blocks again", "qwen3_moe", &experts, again, all),
        case("delta-nets", "qwen3_next", &next, plain, all),
        case("delta-nets, blocks again", "qwen3_next", &next, again, all),
        case("delta-nets, split", "qwen3_next", &next, plain, few),
    ]
}

/// A model of the case's shape with random weights, whose completions never end by themselves.
fn write_model(case: &Case, dir: &Path) -> ModelConfig {
    let text = std::fs::read_to_string(fixture(&format!("models/{}/config.json", case.model))).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    for (key, value) in case.sizes.as_object().unwrap() {
        assert!(config.get(key).is_some(), "{key}");
        config[key] = value.clone();
    }
    // An id that the tokenizer does not have is never drawn.
    config["eos_token_id"] = json!(2000);
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let config = ModelConfig::load(dir).unwrap();
    let model = Decoder::init(config.clone(), 1, &Device::flex()).unwrap();
    model.save(dir).unwrap();
    write_tokenizer(dir).unwrap();
    let generation = json!({ "eos_token_id": 2000 }).to_string();
    std::fs::write(dir.join("generation_config.json"), generation).unwrap();
    config
}

fn questions() -> Vec<Question> {
    let question = |row: u64| Question {
        row,
        prompt: Prompt::Text(format!("{} + {} + {} + 101 =", 100 + row, 200 + row, 300 + row)),
        answer: "1".into(),
        raw: json!({}),
    };
    (0..4).map(question).collect()
}

/// The estimate and the bytes that a step held at most.
fn measure(case: &Case) -> (Estimate, u64) {
    let dir = tempfile::tempdir().unwrap();
    let config = write_model(case, dir.path());
    let mut plan = Plan::from(&JobFile::parse(JOB).unwrap());
    (case.change)(&mut plan);
    let before = MEMORY.current_usage();
    let mut trainer = Trainer::new(plan.clone(), dir.path(), &Device::flex(), questions()).unwrap();
    trainer.set_limits(case.limits);
    MEMORY.reset_peak_usage();
    let report = trainer
        .step(&StepInput {
            rows: &[0, 1, 2, 3],
            key: &RolloutKey::offline(1),
            step: 0,
        })
        .unwrap();
    let peak = MEMORY.peak_usage() - before;
    assert_eq!(report.outcome, Outcome::Updated);
    assert_eq!(report.tokens, 4 * 8 * 48, "{}: a completion ended", case.name);
    let prompt = trainer.tokenizer().encode_prompt(&questions()[0].prompt).unwrap();
    let work = Work::Training { heldout: 0 };
    let needs = Requirements::new(&config, &plan, Place::Cpu, work, prompt.len() as u64);
    (needs.under(case.limits), peak as u64)
}

#[test]
fn a_step_holds_what_is_foreseen() {
    let mut wrong = Vec::new();
    for case in cases() {
        let (estimate, peak) = measure(&case);
        let foreseen = estimate.peak - estimate.program;
        let ratio = foreseen as f64 / peak as f64;
        println!(
            "{:<26} counted {:>7.1} MiB, foreseen {:>7.1}: {ratio:.2}",
            case.name,
            peak as f64 / f64::from(1 << 20),
            foreseen as f64 / f64::from(1 << 20)
        );
        if !(0.97..1.25).contains(&ratio) {
            wrong.push(format!("{}: {ratio:.2} {estimate:?}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
