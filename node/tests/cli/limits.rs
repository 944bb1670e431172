//! Steps that are not finite and memory that is not enough: what a person is told, and what is left on disk.

use crate::support::{Node, failure, genesis, init, json, run};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Two groups of eight, some of each right; the updates, the rate and the length are each test's.
const JOB: &str = "name = \"limits\"
model = \"MODEL\"
train = \"train.jsonl\"
heldout = \"heldout.jsonl\"
use_4bit = false
rewards = [{ name = \"format\", pattern = \"[02468] *$\" }]
[gspo]
group_size = 8
prompts_per_step = 2
minibatches = MINIBATCHES
max_bad_steps = 3
learning_rate = RATE
warmup_steps = 0
[rollout]
max_prompt_length = 4096
max_completion_length = 24
[schedule]
rounds = 8
aggregate_interval = 1
eval_questions = 2
min_workers = 1
max_workers = 1
";

/// A rate at which one update carries the model out of the finite numbers.
const ABSURD: &str = "1e30";

struct Folder {
    dir: tempfile::TempDir,
}

impl Folder {
    fn new(minibatches: u32, rate: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testnet/assets/gym-tiny");
        let text = JOB
            .replace("MODEL", model.to_str().unwrap())
            .replace("MINIBATCHES", &minibatches.to_string())
            .replace("RATE", rate);
        fs::write(dir.path().join("job.toml"), text).unwrap();
        let folder = Self { dir };
        folder.questions("train.jsonl", (0..20).map(|i| format!("{i} + 1 =")));
        folder.questions("heldout.jsonl", (20..24).map(|i| format!("{i} + 1 =")));
        folder
    }

    fn questions(&self, name: &str, texts: impl Iterator<Item = String>) {
        let lines = texts.map(|text| format!("{{\"question\": \"{text}\", \"answer\": \"1\"}}\n"));
        fs::write(self.path(name), lines.collect::<String>()).unwrap();
    }

    fn root(&self) -> &Path {
        self.dir.path()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    fn at(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// `hanzod train` with more arguments, as text.
    fn train(&self, out: &str, more: &[&str]) -> Vec<String> {
        let always = ["train", &self.at("job.toml"), "--out", &self.at(out)].map(str::to_owned);
        let device = ["--device", "cpu"];
        let more = device.iter().chain(more).map(|s| (*s).to_owned());
        always.into_iter().chain(more).collect()
    }

    fn metrics(&self, out: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.path(out).join("metrics.jsonl")).unwrap();
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    /// Names in the directory that start so, sorted.
    fn names(&self, out: &str, start: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(out)).unwrap();
        let mut names: Vec<String> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with(start))
            .collect();
        names.sort();
        names
    }
}

fn refs(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

/// The second minibatch meets what the first update left: nothing of such a step is kept but its batch.
#[test]
fn steps_that_are_not_finite_are_skipped_kept_for_inspection_and_end_the_run() {
    let folder = Folder::new(2, ABSURD);
    let train = folder.train("out", &["--resume"]);
    // Once more from where it stands: the same steps come again and the run ends at the same one.
    for _ in 0..2 {
        let words = failure(folder.root(), &refs(&train), 4);
        for said in [
            "step 1 is skipped: non-finite loss; its batch is in",
            "training stopped at step 3; its batch is in",
            "3 steps in a row",
            "gspo.learning_rate",
            &folder.at("out/bad-batch-3.jsonl"),
        ] {
            assert!(words.contains(said), "{said:?} is not in {words}");
        }
        let kept = ["bad-batch-1.jsonl", "bad-batch-2.jsonl", "bad-batch-3.jsonl"];
        assert_eq!(folder.names("out", "bad-batch"), kept);
        assert_eq!(folder.names("out", "checkpoint"), [""; 0], "no step was taken");
        let bad: Vec<f64> = folder
            .metrics("out")
            .iter()
            .filter_map(|r| r["bad_steps"].as_f64())
            .collect();
        assert_eq!(bad, [1.0, 2.0]);
    }
    let batch = fs::read_to_string(folder.path("out/bad-batch-1.jsonl")).unwrap();
    let rows: Vec<Value> = batch.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(rows.len(), 16);
    for row in rows {
        assert!(row["row"].as_u64().is_some_and(|row| row < 20), "{row}");
        assert!(row["text"].is_string() && row["reward"].is_f64(), "{row}");
        let tokens = row["tokens"].as_array().unwrap().len();
        assert!(
            tokens > 0 && row["log_probs"].as_array().unwrap().len() == tokens,
            "{row}"
        );
    }
}

/// With one update a step it is the next rollout that meets it, or the held-out questions.
#[test]
fn an_adapter_out_of_the_finite_numbers_is_told_and_pushes_no_saved_one_out() {
    let folder = Folder::new(1, ABSURD);
    let words = failure(
        folder.root(),
        &refs(&folder.train("out", &["--save-limit", "1"])),
        4,
    );
    assert!(
        words.contains("step 2 is skipped: non-finite logits")
            && words.contains("training stopped at step 4"),
        "{words}"
    );
    assert_eq!(folder.names("out", "bad-batch"), [""; 0], "nothing was drawn");
    assert_eq!(folder.names("out", "checkpoint"), ["checkpoint-1"]);

    let words = failure(
        folder.root(),
        &refs(&folder.train("other", &["--eval-every", "1"])),
        4,
    );
    assert!(
        words.contains("held-out questions after step 1") && words.contains("not finite"),
        "{words}"
    );
}

/// The same step in one piece and in several.
#[test]
fn a_step_that_does_not_fit_is_split_and_is_the_same_step() {
    let folder = Folder::new(1, "1e-3");
    let plan = json(folder.root(), &refs(&folder.train("none", &["--dry-run"])));
    let part = |key: &str| plan["estimate"][key].as_u64().unwrap();
    let fixed = part("weights") + part("adapter") + part("optimizer") + part("program");
    let limit = (fixed + (part("peak") - fixed) / 3).to_string();
    let narrow = ["--dry-run", "--memory-limit", &limit];
    let cut = json(folder.root(), &refs(&folder.train("none", &narrow)));
    let tokens = cut["micro_batch_tokens"].as_u64().unwrap();
    assert!(tokens < part("tokens_per_step") / 2, "{cut}");

    let outputs = [
        run(folder.root(), &refs(&folder.train("wide", &["--steps", "1"]))),
        run(
            folder.root(),
            &refs(&folder.train("narrow", &["--steps", "1", "--memory-limit", &limit])),
        ),
    ];
    let words = outputs
        .each_ref()
        .map(|o| String::from_utf8_lossy(&o.stderr).into_owned());
    assert!(outputs.iter().all(|o| o.status.success()), "{words:?}");
    let said = format!("{tokens} tokens trained at a time");
    assert!(
        words[1].contains(&said) && !words[0].contains("at a time"),
        "{words:?}"
    );
    let step = |out: &str| {
        let records = folder.metrics(out);
        records
            .into_iter()
            .find(|r| r.get("grad_norm").is_some())
            .unwrap()
    };
    let (wide, narrow) = (step("wide"), step("narrow"));
    for same in ["reward", "reward_std", "num_tokens", "completions/mean_length"] {
        assert_eq!(wide[same], narrow[same], "{same}");
    }
    let norm = |record: &Value| record["grad_norm"].as_f64().unwrap();
    assert!(norm(&wide) > 1e-3, "{wide}");
    assert!(
        (norm(&wide) / norm(&narrow) - 1.0).abs() < 1e-4,
        "{wide} {narrow}"
    );
}

/// One question far longer than the others decides.
#[test]
fn a_sample_that_does_not_fit_alone_is_named_before_anything_is_loaded() {
    let folder = Folder::new(1, "1e-3");
    let limit = {
        let plan = json(folder.root(), &refs(&folder.train("none", &["--dry-run"])));
        plan["estimate"]["peak"].as_u64().unwrap().to_string()
    };
    let within = ["--steps", "1", "--memory-limit", &limit];
    let long = "1 + ".repeat(1500) + "1 =";
    folder.questions("train.jsonl", ["1 + 1 =".to_owned(), long].into_iter());
    let plan = run(
        folder.root(),
        &refs(&folder.train("none", &["--dry-run", "--memory-limit", &limit, "--json"])),
    );
    assert_eq!(plan.status.code(), Some(5));
    let plan: Value = serde_json::from_slice(&plan.stdout).unwrap();
    let longest = plan["longest_prompt"].as_u64().unwrap();
    assert!(longest > 2000 && plan["fits"] == false, "{plan}");

    let words = failure(folder.root(), &refs(&folder.train("out", &within)), 5);
    for said in [
        &format!("the longest has {} tokens", longest + 24),
        "shorter prompts",
        "may be used",
    ] {
        assert!(words.contains(said), "{said:?} is not in {words}");
    }
    assert!(!folder.path("out/metrics.jsonl").exists());
}

/// A node respects a limit as `hanzod train` does.
#[test]
fn a_nodes_training_is_split_to_fit_or_refused() {
    let folder = Folder::new(1, "1e-3");
    let plan = json(folder.root(), &refs(&folder.train("none", &["--dry-run"])));
    let part = |key: &str| plan["estimate"][key].as_u64().unwrap();
    let fixed = part("weights") + part("adapter") + part("optimizer") + part("program");
    let limit = (fixed + (part("peak") - fixed) / 3).to_string();
    let genesis = genesis(folder.root(), "lab");
    let start = |name: &str, limit: &str| {
        let roles = ["--role", "orchestrator", "--role", "worker", "--device", "cpu"];
        let args = [&roles[..], &["--memory-limit", limit]].concat();
        Node::start(&init(folder.root(), name, &genesis), &args)
    };
    let job = folder.path("job.toml");
    let submit = |node: &Node| json(&node.home, &["job", "submit", job.to_str().unwrap()]);

    let node = start("narrow", &limit);
    submit(&node);
    node.wait(
        |n| n.log().contains("tokens trained at a time"),
        "the limits to be told",
    );
    node.wait(|n| n.log().contains("job done"), "the job's end");
    drop(node);

    let node = start("tight", "1MiB");
    submit(&node);
    node.wait(|n| n.log().contains("job failed"), "the job to be refused");
    let log = node.log();
    assert!(
        log.contains("one sequence at a time") && log.contains("1.0 MiB"),
        "{log}"
    );
}
