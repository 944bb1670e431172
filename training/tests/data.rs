//! Question files as their publishers write them, read as they come and judged by the reward that fits them.
#![allow(clippy::unwrap_used, reason = "test helpers fail by panicking")]

mod common;

use common::fixture;
use gym_protocol::job::spec::{ColumnsSpec, RewardSpec};
use gym_training::data::{DataError, Prompt, Question, read_questions};
use gym_training::reward::{Rewards, Sample};

fn read(file: &str, prompt: &str, answer: &str) -> Result<Vec<Question>, DataError> {
    let columns = ColumnsSpec {
        prompt: prompt.into(),
        answer: answer.into(),
    };
    read_questions(&fixture(&format!("data/{file}")), &columns)
}

/// The reward of `completion` for a question.
fn reward(name: &str, question: &Question, completion: &str) -> f64 {
    let rewards = Rewards::from_specs(&[RewardSpec::named(name)]).unwrap();
    let scored = rewards.score(&Sample {
        prompt: &question.prompt.text(),
        completion,
        completion_tokens: 1,
        answer: &question.answer,
        row: &question.raw,
    });
    scored.total.unwrap()
}

#[test]
fn gsm8k_runs_as_it_comes() {
    let lines = read("gsm8k.jsonl", "question", "answer").unwrap();
    assert_eq!(lines, read("gsm8k.parquet", "question", "answer").unwrap());
    assert_eq!(lines.len(), 2);
    assert_eq!(
        reward("numeric", &lines[0], "3 * 12 = 36, 36 - 7 = 29. So 29 marbles."),
        1.0
    );
    assert_eq!(reward("numeric", &lines[0], "36"), 0.0);
    assert_eq!(reward("numeric", &lines[1], "$2500"), 1.0);
    assert_eq!(reward("math", &lines[1], "\\boxed{2500}"), 1.0);
    // A completion in the file's own form, "... #### 29".
    for line in &lines {
        assert_eq!(reward("math", line, &line.answer), 1.0);
        assert_eq!(reward("numeric", line, &line.answer), 1.0);
    }
}

#[test]
fn math_and_math_500_run_as_they_come() {
    let questions = read("math.jsonl", "problem", "solution").unwrap();
    assert_eq!(reward("math", &questions[0], "It is $\\boxed{0.75}$."), 1.0);
    assert_eq!(reward("math", &questions[1], "\\boxed{\\sqrt{50}}"), 1.0);
    assert_eq!(reward("math", &questions[1], "\\boxed{7.07}"), 0.0);
    let questions = read("math500.jsonl", "problem", "answer").unwrap();
    assert_eq!(reward("math", &questions[0], "\\boxed{(3,\\pi/2)}"), 1.0);
    assert_eq!(questions[0].raw["level"], 2);
}

#[test]
fn dapo_math_runs_as_it_comes() {
    let questions = read("dapo.parquet", "prompt", "reward_model.ground_truth").unwrap();
    let Prompt::Messages(turns) = &questions[0].prompt else {
        panic!("{:?}", questions[0].prompt);
    };
    assert_eq!((turns.len(), turns[0].role.as_str()), (1, "user"));
    assert!(turns[0].content.contains("6 times 7"));
    assert_eq!(questions[0].answer, "42");
    assert_eq!(reward("math", &questions[0], "6 * 7 = 42\n\nAnswer: 42"), 1.0);
    assert_eq!(reward("math", &questions[1], "Answer: $31$"), 0.0);
    assert_eq!(
        questions[1].raw["reward_model"]["style"],
        "rule-lighteval/MATH_v2"
    );
}

#[test]
fn reasoning_gym_runs_as_it_comes() {
    let lines = read("reasoning_gym.jsonl", "question", "answer").unwrap();
    assert_eq!(lines[1].answer, "2");
    assert_eq!(reward("numeric", &lines[0], "4 - 6 = -2, -2 + 9 = 7"), 1.0);
    let parquet = read("reasoning_gym.parquet", "question", "answer").unwrap();
    assert_eq!(parquet[0].raw["metadata"]["difficulty"]["num_terms"], 3);
    assert_eq!(
        (&parquet[0].prompt, &parquet[1].answer),
        (&lines[0].prompt, &lines[1].answer)
    );
}

#[test]
fn a_missing_column_names_those_there_are_in_parquet_too() {
    let message = read("dapo.parquet", "question", "answer")
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("\"question\"") && message.contains("\"reward_model\""),
        "{message}"
    );
    let message = read("dapo.parquet", "prompt", "reward_model.truth")
        .unwrap_err()
        .to_string();
    assert!(message.contains("reward_model.truth"), "{message}");
}

#[test]
fn a_broken_parquet_file_is_an_error() {
    let whole = std::fs::read(fixture("data/dapo.parquet")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("q");
    let columns = ColumnsSpec {
        prompt: "prompt".into(),
        answer: "reward_model.ground_truth".into(),
    };
    let read_bytes = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        read_questions(&path, &columns)
    };
    assert_eq!(read_bytes(&whole).unwrap().len(), 2);
    std::panic::set_hook(Box::new(|_| ()));
    for cut in (4..whole.len()).step_by(37) {
        assert!(read_bytes(&whole[..cut]).is_err(), "cut at {cut}");
    }
    // A flipped byte may change a text; it must not bring the process down.
    for at in (4..whole.len()).step_by(7) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0xff;
        let _ = read_bytes(&damaged);
    }
}
