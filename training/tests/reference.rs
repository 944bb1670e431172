//! Every committed set of reference numbers through the comparison, and sets that are wrong in each way.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "test helpers fail by panicking, and say what they measured"
)]

mod common;

use common::fixture;
use gym_training::reference::{Kind, Options, Report, compare};
use safetensors::{SafeTensors, serialize};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

fn reports(dir: &Path, options: &Options) -> Vec<Report> {
    compare(dir, options).unwrap()
}

/// A copy of a set in a folder of its own.
fn copy_of(set: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy(&fixture(set), dir.path());
    dir
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Writes a safetensors file again with one tensor changed: dropped, doubled under another name, its first bytes
/// replaced, or cut.
enum Change<'a> {
    Drop(&'a str),
    Add(&'a str),
    Set(&'a str, [u8; 4]),
    /// Its first row alone is kept.
    Cut(&'a str),
}

fn rewrite(path: &Path, change: &Change<'_>) {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: Vec<(String, safetensors::Dtype, Vec<usize>, Vec<u8>)> = file
        .iter()
        .map(|(name, v)| (name.to_owned(), v.dtype(), v.shape().to_vec(), v.data().to_vec()))
        .collect();
    match change {
        Change::Drop(name) => tensors.retain(|t| t.0 != *name),
        Change::Add(name) => {
            let mut extra = tensors[0].clone();
            extra.0 = (*name).to_owned();
            tensors.push(extra);
        }
        Change::Set(name, value) => {
            let tensor = tensors.iter_mut().find(|t| t.0 == *name).unwrap();
            tensor.3[..4].copy_from_slice(value);
        }
        Change::Cut(name) => {
            let tensor = tensors.iter_mut().find(|t| t.0 == *name).unwrap();
            let row = tensor.3.len() / tensor.2[0];
            tensor.2[0] = 1;
            tensor.3.truncate(row);
        }
    }
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        let view = safetensors::tensor::TensorView::new(*dtype, shape.clone(), data).unwrap();
        (name.as_str(), view)
    });
    std::fs::write(path, serialize(views, None).unwrap()).unwrap();
}

#[test]
fn every_set_agrees() {
    let all = reports(&fixture(""), &Options::default());
    let mut wrong = Vec::new();
    for report in &all {
        println!("{} ({})", report.dir.display(), report.kind);
        for check in &report.checks {
            println!(
                "  {:32} {:9.2e} of {:7.0e}  {} values  {}",
                check.quantity, check.worst, check.tolerance, check.values, check.place
            );
            if !check.passes() {
                wrong.push(format!("{} {}", report.dir.display(), check.quantity));
            }
        }
        // The tokenizer's file is too large to be here: scripts/fetch-qwen3-tokenizer.
        let absent = report.kind == Kind::Tokenizer.to_string();
        if !absent {
            wrong.extend(report.problems.clone());
        }
    }
    assert!(all.len() >= 15, "{} sets", all.len());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_tokenizer_set_agrees_where_its_file_is() {
    let path = std::env::var_os("GYM_QWEN3_TOKENIZER").map_or_else(
        || fixture("../../../target/qwen3_tokenizer/tokenizer.json"),
        Into::into,
    );
    if !path.is_file() {
        println!("skipped: scripts/fetch-qwen3-tokenizer gets {}", path.display());
        return;
    }
    let options = Options {
        tokenizer: Some(path),
        ..Options::default()
    };
    let all = reports(&fixture("qwen3_tokenizer"), &options);
    assert!(all[0].passes(), "{:#?}", all[0]);
    assert!(
        all[0]
            .checks
            .iter()
            .any(|c| c.quantity == "ids" && c.values > 100)
    );
}

#[test]
fn a_value_off_by_more_than_the_tolerance_fails() {
    let cases = [
        ("gspo", "gspo.safetensors", "c03.grad_new"),
        ("gspo_variants", "gspo_variants.safetensors", "v07.advantages"),
        ("nf4", "nf4.safetensors", "a64x64.dq.dequant"),
    ];
    for (set, file, tensor) in cases {
        let dir = copy_of(set);
        assert!(reports(dir.path(), &Options::default())[0].passes(), "{set}");
        rewrite(
            &dir.path().join(file),
            &Change::Set(tensor, 0.37f32.to_le_bytes()),
        );
        assert!(
            !reports(dir.path(), &Options::default())[0].passes(),
            "{set} {tensor}"
        );
    }
}

#[test]
fn a_value_that_is_not_finite_fails() {
    let dir = copy_of("gspo");
    let file = dir.path().join("gspo.safetensors");
    rewrite(&file, &Change::Set("c03.ratio", f32::NAN.to_le_bytes()));
    assert!(!reports(dir.path(), &Options::default())[0].passes());
}

#[test]
fn a_missing_and_an_unknown_quantity_fail_by_name() {
    for (change, name) in [
        (Change::Drop("c03.grad_new"), "c03.grad_new"),
        (Change::Add("c03.surprise"), "c03.surprise"),
    ] {
        let dir = copy_of("gspo");
        rewrite(&dir.path().join("gspo.safetensors"), &change);
        let report = reports(dir.path(), &Options::default()).remove(0);
        assert!(!report.passes());
        assert!(
            report.problems.iter().any(|p| p.contains(name)),
            "{:?}",
            report.problems
        );
    }
}

/// Nothing is compared with what was cut away, so nothing agrees.
#[test]
fn a_list_cut_short_is_no_agreement() {
    let cut = |set: &str, file: &str, change: &dyn Fn(&mut Value)| {
        let dir = copy_of(set);
        let path = dir.path().join(file);
        let mut all: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        change(&mut all);
        std::fs::write(&path, all.to_string()).unwrap();
        let options = Options {
            models: Some(fixture("models")),
            ..Options::default()
        };
        let report = reports(dir.path(), &options).remove(0);
        assert!(!report.passes(), "{set} {file}");
    };
    let pop = |list: &mut Value| drop(list.as_array_mut().unwrap().pop());
    cut("gspo_step", "step.json", &|all| {
        pop(&mut all["gspo"]["grad_norms_before_clip"]);
    });
    cut("gspo_step", "step.json", &|all| {
        pop(&mut all["gspo"]["ratios_before_each_step"]);
    });
    cut("sampling", "sampling.json", &|all| {
        all["known_answers"] = json!([])
    });
    cut("sampling", "sampling.json", &|all| {
        all["sampling"]["edge_words"] = json!([])
    });
    cut("sampling", "sampling.json", &|all| {
        all["distribution_check"]["degrees_of_freedom"] = json!(1_000_000);
    });
    cut("gspo", "cases.json", &|all| {
        let cases = all["cases"].as_array_mut().unwrap();
        let with_kl = cases.iter_mut().find(|c| c["kl"].is_number()).unwrap();
        with_kl["kl"] = Value::Null;
    });
    cut("accumulation", "cases.json", &|all| {
        all["cases"][0]["metrics_per_micro_batch"] = json!({});
    });
    cut("bf16", "bf16.json", &|all| {
        let archs = all["archs"].as_object_mut().unwrap();
        archs.retain(|name, _| name == "qwen3");
        pop(&mut archs["qwen3"]["greedy_bf16_margin_top1_top2"]);
    });
}

#[test]
fn a_tensor_cut_short_or_out_of_the_vocabulary_fails_without_a_panic() {
    let cases = [
        ("nf4", "nf4.safetensors", Change::Cut("a64x64.dq.codes")),
        ("gspo", "gspo.safetensors", Change::Cut("c03.advantages")),
        (
            "accumulation",
            "accumulation.safetensors",
            Change::Cut("advantages"),
        ),
        (
            "models/qwen3",
            "expected.safetensors",
            Change::Set("input_ids_left", 4096i32.to_le_bytes()),
        ),
        (
            "models/qwen3",
            "expected.safetensors",
            Change::Set("greedy_ids", 4096i32.to_le_bytes()),
        ),
        (
            "models/qwen3",
            "expected.safetensors",
            Change::Cut("attention_mask_left"),
        ),
    ];
    for (set, file, change) in cases {
        let dir = copy_of(set);
        rewrite(&dir.path().join(file), &change);
        let report = reports(dir.path(), &Options::default()).remove(0);
        assert!(!report.passes(), "{set} {file}");
    }
}

#[test]
fn two_sets_in_a_folder_are_two_and_half_a_set_fails() {
    let dir = copy_of("nf4");
    copy(&fixture("sampling"), dir.path());
    copy(&fixture("nf4"), &dir.path().join("below"));
    let all = reports(dir.path(), &Options::default());
    let kinds: Vec<&str> = all.iter().map(|r| r.kind.as_str()).collect();
    assert_eq!(kinds, ["nf4", "sampling", "nf4"]);
    assert!(all.iter().all(Report::passes));

    copy(&fixture("gspo"), &dir.path().join("half"));
    std::fs::remove_file(dir.path().join("half/cases.json")).unwrap();
    let all = reports(dir.path(), &Options::default());
    let half: Vec<&Report> = all.iter().filter(|r| r.dir.ends_with("half")).collect();
    assert!(half.iter().any(|r| r.problems[0].contains("gspo.safetensors")));
    assert!(!half.iter().any(|r| r.passes()));
}

#[cfg(unix)]
#[test]
fn links_in_a_circle_are_followed_once() {
    let dir = copy_of("nf4");
    let below = dir.path().join("below");
    std::fs::create_dir(&below).unwrap();
    for name in ["one", "two", "three"] {
        std::os::unix::fs::symlink("..", below.join(name)).unwrap();
    }
    assert_eq!(reports(dir.path(), &Options::default()).len(), 1);
}

#[test]
fn a_set_is_known_by_its_files_and_finds_its_model_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let (set, models) = (dir.path().join("any/name"), dir.path().join("other"));
    copy(&fixture("gspo_step"), &set);
    copy(&fixture("models/qwen3"), &models.join("renamed"));
    copy(&fixture("models/qwen3_untied"), &models.join("a_decoy"));
    let lost = reports(&set, &Options::default()).remove(0);
    assert!(lost.problems[0].contains("--models"), "{:?}", lost.problems);
    let options = Options {
        models: Some(models),
        ..Options::default()
    };
    let report = reports(&set, &options).remove(0);
    assert!(report.passes(), "{report:#?}");
    assert!(compare(&dir.path().join("nothing"), &options).is_err());
}

#[test]
fn the_program_says_so_in_its_exit_code() {
    let run = |args: &[&Path]| {
        let output = Command::new(env!("CARGO_BIN_EXE_reference"))
            .args(args)
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, text) = run(&[&fixture("sampling"), &fixture("nf4")]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("2 of 2 sets agree") && text.contains("dq.codes"),
        "{text}"
    );
    let (code, json) = run(&[Path::new("--json"), &fixture("sampling")]);
    let value: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, value["passes"].as_bool()), (Some(0), Some(true)));
    let dir = copy_of("gspo");
    rewrite(&dir.path().join("gspo.safetensors"), &Change::Drop("c00.new"));
    assert_eq!(run(&[dir.path()]).0, Some(1));
    assert_eq!(run(&[Path::new("/nonexistent")]).0, Some(2));
}
