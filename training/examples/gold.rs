//! Whether a question file and a reward fit together: every reference answer is judged as the completion of its own
//! question, once as it stands and once in a box.
//!
//! ```text
//! cargo run -p gym-training --example gold -- FILE PROMPT_COLUMN ANSWER_COLUMN REWARD
//! ```
#![allow(clippy::print_stdout, reason = "prints to people")]

use gym_protocol::job::spec::{ColumnsSpec, RewardSpec};
use gym_training::data::{Question, read_questions};
use gym_training::reward::{Rewards, Sample};
use std::error::Error;
use std::path::Path;

/// Questions shown that are not judged right.
const SHOWN: usize = 40;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, prompt, answer, reward] = args.as_slice() else {
        return Err("usage: gold FILE PROMPT_COLUMN ANSWER_COLUMN REWARD".into());
    };
    let columns = ColumnsSpec {
        prompt: prompt.clone(),
        answer: answer.clone(),
    };
    let questions = read_questions(Path::new(file), &columns)?;
    let rewards = Rewards::from_specs(&[RewardSpec::named(reward)])?;
    let mut right = [0; 2];
    let mut shown = 0;
    for question in &questions {
        let short = question.answer.rsplit("#### ").next().unwrap_or_default();
        let completions = [question.answer.clone(), format!("So it is $\\boxed{{{short}}}$.")];
        let judged = completions.map(|completion| judge(&rewards, question, &completion));
        for (count, judged) in right.iter_mut().zip(&judged) {
            *count += u32::from(*judged == Ok(1.0));
        }
        if judged.iter().any(|judged| *judged != Ok(1.0)) && shown < SHOWN {
            shown += 1;
            println!("row {}: {:?}: {judged:?}", question.row, question.answer);
        }
    }
    let [plain, boxed] = right;
    println!(
        "{} questions; right as it stands {plain}, in a box {boxed}",
        questions.len()
    );
    Ok(())
}

fn judge(rewards: &Rewards, question: &Question, completion: &str) -> Result<f64, String> {
    let sample = Sample {
        prompt: &question.prompt.text(),
        completion,
        completion_tokens: 1,
        answer: &question.answer,
        row: &question.raw,
    };
    rewards.score(&sample).total.map_err(|why| format!("{why:?}"))
}
