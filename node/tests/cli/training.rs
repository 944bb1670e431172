//! The commands that train and answer with no network, on a model of a few thousand parameters.

use crate::support::{failure, json, run};
use std::fs;
use std::path::{Path, PathBuf};

const PRETRAIN: &str = "seed = 1
[shape]
layers = 1
hidden = 16
heads = 2
kv_heads = 1
head_dim = 8
mlp = 16
[[stages]]
steps = 2
batch = 4
running_share = 0.5
";

const JOB: &str = "name = \"tiny\"
model = \"model\"
train = \"train.jsonl\"
heldout = \"heldout.jsonl\"
use_4bit = false
rewards = [{ name = \"length\", max_length = 4 }]
[gspo]
group_size = 2
prompts_per_step = 2
learning_rate = 1e-3
[rollout]
max_completion_length = 8
[schedule]
rounds = 12
aggregate_interval = 1
eval_questions = 2
";

/// A folder with a model, questions and a job.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_path_buf();
    fs::write(root.join("pretrain.toml"), PRETRAIN).unwrap();
    fs::write(root.join("job.toml"), JOB).unwrap();
    questions(&root.join("train.jsonl"), 0, 20);
    questions(&root.join("heldout.jsonl"), 20, 4);
    let model = root.join("model");
    let made = json(
        &root,
        &[
            "pretrain",
            root.join("pretrain.toml").to_str().unwrap(),
            "--out",
            model.to_str().unwrap(),
        ],
    );
    assert_eq!(made["steps"], 2);
    (dir, root)
}

fn questions(path: &Path, first: u32, count: u32) {
    let lines = (first..first + count)
        .map(|i| format!("{{\"question\": \"{i} + 1 =\", \"answer\": \"{}\"}}\n", i + 1));
    fs::write(path, lines.collect::<String>()).unwrap();
}

#[test]
fn a_model_is_made_asked_and_judged() {
    let (_dir, root) = folder();
    let model = root.join("model");
    let model = model.to_str().unwrap();
    let said = json(
        &root,
        &[
            "generate",
            "--model",
            model,
            "--prompt",
            "1 + 1 =",
            "--max-tokens",
            "5",
        ],
    );
    assert!(
        (1..=5).contains(&said["tokens"].as_array().unwrap().len()),
        "{said}"
    );
    let again = json(
        &root,
        &[
            "generate",
            "--model",
            model,
            "--prompt",
            "1 + 1 =",
            "--max-tokens",
            "5",
        ],
    );
    assert_eq!(said, again);
    let words = failure(
        &root,
        &["generate", "--model", model, "--prompt", "1", "--samples", "2"],
        1,
    );
    assert!(words.contains("--temperature"), "{words}");

    let file = root.join("heldout.jsonl");
    let judged = json(
        &root,
        &[
            "eval",
            "--model",
            model,
            "--questions",
            file.to_str().unwrap(),
            "--max-tokens",
            "5",
        ],
    );
    assert_eq!(judged["questions"], 4);
    let file = file.to_str().unwrap();
    let packed = [
        "eval",
        "--model",
        model,
        "--questions",
        file,
        "--max-tokens",
        "5",
        "--use-4bit",
    ];
    assert_eq!(json(&root, &packed)["questions"], 4);
    assert!((0.0..=1.0).contains(&judged["accuracy"].as_f64().unwrap()));
}

#[test]
fn a_run_says_what_it_did_and_goes_on_only_when_asked() {
    let (_dir, root) = folder();
    let (job, out) = (root.join("job.toml"), root.join("out"));
    let (job, out_text) = (job.to_str().unwrap(), out.to_str().unwrap());
    let first = [
        "train",
        job,
        "--out",
        out_text,
        "--steps",
        "5",
        "--save-every",
        "2",
        "--save-limit",
        "2",
    ];
    let report = json(
        &root,
        &[
            &first[..],
            &[
                "--eval-every",
                "2",
                "--eval-samples",
                "2",
                "--log-completions",
                "5",
            ],
        ]
        .concat(),
    );
    assert_eq!(
        (report["steps"].as_u64(), report["questions"].as_u64()),
        (Some(5), Some(2))
    );
    let records: Vec<serde_json::Value> = fs::read_to_string(out.join("metrics.jsonl"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let steps_with = |name: &str| -> Vec<u64> {
        let having = records.iter().filter(|r| r.get(name).is_some());
        having.map(|r| r["step"].as_u64().unwrap()).collect()
    };
    for name in [
        "reward",
        "loss",
        "grad_norm",
        "rewards/length/mean",
        "frac_reward_zero_std",
        "step_time",
        "epoch",
    ] {
        assert_eq!(steps_with(name), [1, 2, 3, 4, 5], "{name}");
    }
    for name in ["eval_accuracy", "eval_pass@1", "eval_pass@2", "eval_reward"] {
        assert_eq!(steps_with(name), [0, 2, 4, 5], "{name}");
    }
    assert_eq!(lines(&out.join("completions.jsonl")), 4);
    assert!(out.join("reward.png").exists() && out.join("state.cbor").exists());
    assert!(out.join("checkpoint-4/adapter_config.json").exists());
    assert!(!out.join("checkpoint-2").exists() && out.join("checkpoint-5").exists());
    assert_eq!(fs::read_dir(out.join("tensorboard")).unwrap().count(), 1);

    let words = failure(&root, &first, 1);
    assert!(words.contains("--resume"), "{words}");
    let report = json(
        &root,
        &["train", job, "--out", out_text, "--steps", "7", "--resume"],
    );
    assert_eq!(report["steps"], 7);
    fs::write(job, JOB.replace("1e-3", "2e-3")).unwrap();
    let words = failure(&root, &["train", job, "--out", out_text, "--resume"], 1);
    assert!(words.contains("another job"), "{words}");

    let picture = root.join("p.png");
    let group = format!("seeds={out_text},{out_text}");
    let drawn = json(
        &root,
        &[
            "plot",
            "--out",
            picture.to_str().unwrap(),
            "--metric",
            "loss",
            "--metric",
            "eval_accuracy",
            &group,
        ],
    );
    assert_eq!(
        (drawn["panels"].as_u64(), drawn["lines"].as_u64()),
        (Some(2), Some(2))
    );
    assert!(fs::read(picture).unwrap().starts_with(b"\x89PNG"));
}

#[test]
fn memory_is_foreseen_and_a_batch_too_large_is_split() {
    let (_dir, root) = folder();
    let (job, out) = (root.join("job.toml"), root.join("out"));
    let train = [
        "train",
        job.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
        "--steps",
        "2",
    ];
    let plan = json(&root, &[&train[..], &["--dry-run"]].concat());
    let estimate = &plan["estimate"];
    // 80 or so tokens of width 16, one block, one norm more: 2,500 to 10,000 values.
    assert!(
        (2_500..10_000).contains(&estimate["parameters"].as_u64().unwrap()),
        "{plan}"
    );
    assert_eq!(
        estimate["weights"].as_u64(),
        estimate["parameters"].as_u64().map(|n| 4 * n)
    );
    assert!(!out.exists(), "a dry run writes nothing");

    let program = estimate["program"].as_u64().unwrap();
    let fixed: u64 = ["weights", "adapter", "optimizer"]
        .iter()
        .map(|k| estimate[k].as_u64().unwrap())
        .sum();
    let narrow = (program + fixed + (estimate["peak"].as_u64().unwrap() - program - fixed) / 2).to_string();
    let output = run(&root, &[&train[..], &["--memory-limit", &narrow]].concat());
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && words.contains("tokens trained at a time"),
        "{words}"
    );

    let words = failure(
        &root,
        &[&train[..], &["--memory-limit", "1MiB", "--dry-run"]].concat(),
        5,
    );
    assert!(words.contains("one sequence at a time"), "{words}");
    let words = failure(
        &root,
        &[&train[..], &["--memory-limit", "1MiB", "--resume"]].concat(),
        5,
    );
    assert!(words.contains("use_4bit") && words.contains("1.0 MiB"), "{words}");
}

#[test]
fn a_run_in_four_bits_is_merged_and_exported() {
    let (_dir, root) = folder();
    let job = root.join("job.toml");
    fs::write(&job, JOB.replace("use_4bit = false", "use_4bit = true")).unwrap();
    let at = |name: &str| root.join(name).to_str().unwrap().to_owned();
    let (out, adapter) = (at("out"), at("out/adapter"));
    let report = json(&root, &["train", job.to_str().unwrap(), "--out", &out]);
    assert_eq!(report["steps"].as_u64(), Some(12));

    let merged = at("merged");
    let said = json(
        &root,
        &[
            "model",
            "merge",
            &at("model"),
            &adapter,
            &merged,
            "--dtype",
            "bf16",
        ],
    );
    assert_eq!(
        (said["shards"].as_u64(), said["layers"].as_u64()),
        (Some(1), Some(7))
    );
    assert_eq!(json(&root, &["model", "check", &merged])["loads"], true);
    json(
        &root,
        &[
            "generate",
            "--model",
            &merged,
            "--prompt",
            "1 + 1 =",
            "--max-tokens",
            "2",
        ],
    );
    let words = failure(&root, &["model", "merge", &at("model"), &adapter, &merged], 1);
    assert!(words.contains("holds weights already"), "{words}");

    let exported = at("exported");
    let export = [
        "model",
        "export",
        &adapter,
        &exported,
        "--layout",
        "vllm",
        "--base",
        "someone/tiny",
    ];
    assert_eq!(json(&root, &export)["tensors"].as_u64(), Some(14));
    let config = fs::read_to_string(root.join("exported/adapter_config.json")).unwrap();
    assert!(config.contains("someone/tiny"), "{config}");
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

#[test]
fn broken_inputs_are_named() {
    let (_dir, root) = folder();
    let job = root.join("job.toml");
    let out = root.join("out");
    let train = ["train", job.to_str().unwrap(), "--out", out.to_str().unwrap()];

    fs::write(&job, JOB.replace("group_size", "group_sizes")).unwrap();
    let words = failure(&root, &train, 1);
    assert!(
        words.contains("job.toml") && words.contains("group_sizes") && words.contains("line"),
        "{words}"
    );

    fs::write(&job, JOB).unwrap();
    let good = fs::read_to_string(root.join("train.jsonl")).unwrap();
    fs::write(root.join("train.jsonl"), format!("{good}{{\"question\": ")).unwrap();
    let words = failure(&root, &train, 1);
    assert!(words.contains("train.jsonl") && words.contains("21"), "{words}");

    let empty = "{\"question\": \"\", \"answer\": \"1\"}\n";
    fs::write(root.join("train.jsonl"), format!("{good}{empty}")).unwrap();
    for more in [&[][..], &["--dry-run"]] {
        let words = failure(&root, &[&train[..], more].concat(), 1);
        assert!(words.contains("question 20 has an empty prompt"), "{words}");
    }

    fs::write(root.join("train.jsonl"), good).unwrap();
    fs::remove_file(root.join("model/model.safetensors")).unwrap();
    let words = failure(&root, &train, 1);
    assert!(words.contains("model"), "{words}");

    let other = run(&root, &["delta", "inspect", job.to_str().unwrap()]);
    assert_eq!(other.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&other.stderr).contains("job.toml"));
}

/// The run goes on, and whoever started it is told, once.
#[test]
fn a_reward_program_that_does_not_start_is_told() {
    let (_dir, root) = folder();
    let (job, out) = (root.join("job.toml"), root.join("out"));
    let program = "rewards = [{ name = \"command\", program = [\"/no/such/program\"] }]";
    let rewards = "rewards = [{ name = \"length\", max_length = 4 }]";
    fs::write(&job, JOB.replace(rewards, program)).unwrap();
    let train = ["train", job.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let output = run(&root, &[&train[..], &["--steps", "2"]].concat());
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words}");
    let said = "step 1: 4 of 4 completions have no reward and train nothing";
    assert!(
        words.contains(said) && words.contains("does not start"),
        "{words}"
    );
    assert_eq!(words.matches("have no reward").count(), 1, "{words}");
}

#[test]
fn a_model_directory_is_checked_without_reading_a_weight() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = |name: &str| {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../training/tests/fixtures/models");
        models.join(name)
    };
    let path = fixture("qwen3_next");
    let found = json(dir.path(), &["model", "check", path.to_str().unwrap()]);
    assert_eq!(found["family"], "Qwen3NextForCausalLM");
    // The fixture's own count.
    assert_eq!(found["parameters"]["total"], 87024);
    // Four layers with 8 experts of 3·16·32, of which a token meets 2.
    assert_eq!(found["parameters"]["active"], 87024 - 4 * 6 * 3 * 16 * 32);
    assert_eq!(found["memory"]["f32"], 4 * 87024);
    assert_eq!(found["loads"], true);

    let broken = dir.path().join("broken");
    fs::create_dir(&broken).unwrap();
    fs::copy(path.join("config.json"), broken.join("config.json")).unwrap();
    fs::copy(
        fixture("qwen3_moe").join("model.safetensors"),
        broken.join("model.safetensors"),
    )
    .unwrap();
    let words = failure(dir.path(), &["model", "check", broken.to_str().unwrap()], 1);
    assert!(words.contains("would not load"), "{words}");
    let output = run(dir.path(), &["model", "check", broken.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("model.layers.0.linear_attn.A_log"), "{said}");
    let absent = failure(dir.path(), &["model", "check", "nowhere"], 1);
    assert!(absent.contains("nowhere"), "{absent}");
}
