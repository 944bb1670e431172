//! Reward programs in a step: what fails costs its own sample, never the run.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "test helpers fail by panicking")]

mod common;

use burn::tensor::Device;
use common::fixture;
use gym_protocol::job::spec::JobFile;
use gym_training::data::{Prompt, Question};
use gym_training::pretrain::write_tokenizer;
use gym_training::reward::Programs;
use gym_training::sampling::RolloutKey;
use gym_training::trainer::{Outcome, Plan, StepInput, StepReport, Trainer};
use std::path::Path;

/// One step of 16 completions under a program; it answers the completion's length in bytes unless told otherwise.
fn step(program: &str, programs: Programs) -> Result<(StepReport, bool), String> {
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("models/qwen3").join(file), dir.path().join(file)).unwrap();
    }
    write_tokenizer(dir.path()).unwrap();
    let named = r#"{"eos_token": "<|end|>"}"#;
    std::fs::write(dir.path().join("tokenizer_config.json"), named).unwrap();
    let script = dir.path().join("judge.sh");
    std::fs::write(&script, program).unwrap();
    let plan = Plan {
        programs,
        ..Plan::from(&JobFile::parse(&job(&script)).unwrap())
    };
    let question = |row: u64| Question {
        row,
        prompt: Prompt::Text(format!("{row} + 1 =")),
        answer: (row + 1).to_string(),
        raw: serde_json::json!({ "row": row }),
    };
    let train = (0..2).map(question).collect();
    let mut trainer = Trainer::new(plan, dir.path(), &Device::flex(), train).map_err(|e| e.to_string())?;
    let before = trainer.flat_adapter().to_vec();
    let report = trainer
        .step(&StepInput {
            rows: &[0, 1],
            key: &RolloutKey::offline(3),
            step: 0,
        })
        .map_err(|e| e.to_string())?;
    Ok((report, trainer.flat_adapter() != before.as_slice()))
}

fn job(script: &Path) -> String {
    format!(
        "name = \"t\"\nmodel = \"m\"\ntrain = \"a\"\nheldout = \"b\"\nuse_4bit = false\n\
         [[rewards]]\nname = \"command\"\nprogram = [\"/bin/sh\", {script:?}]\nsample_timeout_ms = 2000\n\
         [gspo]\nbeta = 0.0\nlearning_rate = 1e-2\ngroup_size = 8\n[lora]\nrank = 2\n\
         [rollout]\nmax_completion_length = 5\n[schedule]\nrounds = 1\n"
    )
}

/// Judges by the line's length, and by whether a digit is in the completion; `failure` is done for some.
fn judging(failure: &str) -> String {
    format!(
        "while read -r line; do case \"$line\" in *'\"completion\":\"'*[0-9]*'\",\"prompt\"'*) {failure};; \
         *) echo ${{#line}};; esac; done"
    )
}

#[test]
fn a_program_that_fails_on_some_completions_trains_on_the_others() {
    for failure in ["exit 1", "echo NaN", "true", "echo nonsense", "echo null"] {
        let (report, moved) = step(&judging(failure), Programs::Allowed).unwrap();
        let missing = report.rollouts.iter().filter(|r| r.reward.is_none()).count();
        assert!(
            missing > 0 && missing < 16,
            "{failure}: {missing} of 16 {:?}",
            report.rollouts.iter().map(|r| &r.text).collect::<Vec<_>>()
        );
        for rollout in &report.rollouts {
            let bad = rollout.text.contains(|c: char| c.is_ascii_digit());
            assert_eq!(rollout.reward.is_none(), bad, "{failure}: {:?}", rollout.text);
        }
        let counted: f64 = report
            .metrics
            .iter()
            .filter(|(name, _)| name.starts_with("rewards/unscored/"))
            .map(|(_, n)| n)
            .sum();
        assert_eq!(counted, missing as f64, "{failure}: {:?}", report.metrics);
        assert_eq!(report.outcome, Outcome::Updated);
        assert!(moved, "{failure}: the others still train");
    }
}

#[test]
fn a_program_that_is_gone_leaves_the_adapter_as_it_is() {
    let (report, moved) = step("exit 127", Programs::Allowed).unwrap();
    assert!(report.rollouts.iter().all(|r| r.reward.is_none()));
    assert!(!moved, "nothing was learned from nothing");
    assert!(
        report.metrics.values().all(|v| v.is_finite()),
        "{:?}",
        report.metrics
    );
}

#[test]
fn a_job_may_not_run_programs_by_itself() {
    let refused = step("echo 1", Programs::Refused).unwrap_err();
    assert!(refused.contains("allow_reward_programs"), "{refused}");
}
