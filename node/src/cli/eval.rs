//! `hanzod eval`.

use super::Context;
use super::model::{DrawArgs, ModelArgs};
use super::progress::Bar;
use gym_protocol::job::spec::{ColumnsSpec, RewardSpec};
use gym_training::data::read_questions;
use gym_training::eval::{Answers, EvalConfig, Evaluation, Judge, evaluate};
use gym_training::reward::Rewards;
use gym_training::sampling::Filters;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The questions: JSON lines or Parquet
    #[arg(long, value_name = "FILE")]
    questions: PathBuf,
    /// How many of them, from the first [default: all]
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// What counts as right: exact, numeric, ...
    #[arg(long, default_value = "numeric", value_name = "NAME")]
    reward: String,
    /// The questions' column
    #[arg(long, default_value = "question", value_name = "NAME")]
    prompt_column: String,
    /// The reference answers' column
    #[arg(long, default_value = "answer", value_name = "NAME")]
    answer_column: String,
    #[command(flatten)]
    draw: DrawArgs,
}

pub(super) fn main(context: &Context, args: &Args) -> anyhow::Result<()> {
    args.draw.check()?;
    let columns = ColumnsSpec {
        prompt: args.prompt_column.clone(),
        answer: args.answer_column.clone(),
    };
    let mut questions = read_questions(&args.questions, &columns)?;
    questions.truncate(args.limit.unwrap_or(usize::MAX));
    let rewards = Rewards::from_specs(&[RewardSpec::named(&args.reward)])?;
    let model = args.model.load()?;
    let judge = Judge {
        model: &model.decoder,
        lora: model.lora.as_ref(),
        tokenizer: &model.tokenizer,
        rewards: &rewards,
    };
    let mut bar = Bar::new("questions", questions.len() as u64);
    let evaluation = evaluate(&judge, &questions, &config(&args.draw), &mut |done| {
        bar.at(done as u64, "")
    })?;
    bar.end();
    show(context, &evaluation, args.draw.samples);
    Ok(())
}

fn config(args: &DrawArgs) -> EvalConfig {
    let answers = if args.is_drawn() {
        let filters = Filters {
            temperature: args.temperature,
            ..Filters::default()
        };
        Answers::Sampled {
            samples: args.samples,
            seed: args.seed,
            filters,
        }
    } else {
        Answers::Greedy
    };
    EvalConfig {
        answers,
        max_completion_length: args.max_tokens as usize,
        stop: Vec::new(),
        max_rows: 128,
    }
}

fn show(context: &Context, evaluation: &Evaluation, samples: u32) {
    let value = json!({
        "questions": evaluation.answers.len(),
        "samples": samples,
        "accuracy": evaluation.accuracy(),
        "standard_error": evaluation.standard_error(),
        "pass_at": passes(evaluation, samples),
        "mean_reward": evaluation.mean_reward(),
        "mean_length": evaluation.mean_length(),
        "truncated": evaluation.truncated(),
    });
    context.output.show(&value, |_| {
        let passes = passes(evaluation, samples);
        let passes: Vec<String> = passes
            .iter()
            .map(|(k, share)| format!("pass@{k:<8} {:.1} %", share * 100.0))
            .collect();
        format!(
            "accuracy      {:.1} % ± {:.1} over {} questions\n{}\nmean length   {:.1} tokens, {:.1} % cut off",
            evaluation.accuracy() * 100.0,
            evaluation.standard_error() * 100.0,
            evaluation.answers.len(),
            passes.join("\n"),
            evaluation.mean_length(),
            evaluation.truncated() * 100.0,
        )
    });
}

/// pass@k for 1, 2, 4, … and all completions of a question.
fn passes(evaluation: &Evaluation, samples: u32) -> BTreeMap<u32, f64> {
    gym_training::eval::ks(samples)
        .filter_map(|k| Some((k, evaluation.pass_at(k)?)))
        .collect()
}
