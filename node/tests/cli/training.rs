//! The commands that train and answer with no network, on a model of a few thousand parameters.

use crate::support::{failure, hanzod, json, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

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
    assert!((0.0..=1.0).contains(&judged["accuracy"].as_f64().unwrap()));
}

#[test]
fn a_killed_run_goes_on_to_the_same_bits() {
    let (_dir, root) = folder();
    let job = root.join("job.toml");
    let job = job.to_str().unwrap();
    let (whole, killed) = (root.join("whole"), root.join("killed"));
    let report = json(&root, &["train", job, "--out", whole.to_str().unwrap()]);
    assert_eq!(
        (report["rounds"].as_u64(), report["questions"].as_u64()),
        (Some(12), Some(2))
    );
    assert!(whole.join("reward.png").exists());

    let mut child = hanzod()
        .args(["train", job, "--out", killed.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while lines(&killed.join("metrics.jsonl")) < 3 {
        assert!(
            Instant::now() < deadline && child.try_wait().unwrap().is_none(),
            "three steps of a run"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!killed.join("adapter").exists(), "it was killed before its end");
    json(&root, &["train", job, "--out", killed.to_str().unwrap()]);
    let bits = |out: &Path| fs::read(out.join("adapter/adapter_model.safetensors")).unwrap();
    assert!(
        bits(&whole) == bits(&killed),
        "the continued run's adapter differs"
    );
    assert_eq!(lines(&killed.join("metrics.jsonl")), 12);
}

#[test]
fn a_run_in_four_bits_is_merged_and_exported() {
    let (_dir, root) = folder();
    let job = root.join("job.toml");
    fs::write(&job, JOB.replace("use_4bit = false", "use_4bit = true")).unwrap();
    let at = |name: &str| root.join(name).to_str().unwrap().to_owned();
    let (out, adapter) = (at("out"), at("out/adapter"));
    let report = json(&root, &["train", job.to_str().unwrap(), "--out", &out]);
    assert_eq!(report["rounds"].as_u64(), Some(12));

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

    fs::write(root.join("train.jsonl"), good).unwrap();
    fs::remove_file(root.join("model/model.safetensors")).unwrap();
    let words = failure(&root, &train, 1);
    assert!(words.contains("model"), "{words}");

    let other = run(&root, &["delta", "inspect", job.to_str().unwrap()]);
    assert_eq!(other.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&other.stderr).contains("job.toml"));
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
