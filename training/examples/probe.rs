//! `probe MODEL QUESTIONS [COUNT]`: greedy and sampled accuracy of a base model, by the way it answers.

use burn::tensor::Device;
use gym_protocol::job::spec::{ColumnsSpec, RewardSpec};
use gym_training::data::read_questions;
use gym_training::eval::{Answers, EvalConfig, Evaluation, Judge, evaluate};
use gym_training::model::Decoder;
use gym_training::reward::Rewards;
use gym_training::sampling::Filters;
use gym_training::tokenizer::TextTokenizer;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, questions, rest @ ..] = arguments.as_slice() else {
        return Err("usage: probe MODEL QUESTIONS [COUNT]".into());
    };
    let mut questions = read_questions(Path::new(questions), &ColumnsSpec::default())?;
    questions.truncate(rest.first().map_or(Ok(512), |n| n.parse())?);
    let numeric: RewardSpec = serde_json::from_str(r#"{"name":"numeric"}"#)?;
    let judge = Judge {
        model: &Decoder::load(Path::new(model), &Device::flex())?,
        lora: None,
        tokenizer: &TextTokenizer::load(Path::new(model))?,
        rewards: &Rewards::from_specs(&[numeric])?,
    };
    let sampled = Answers::Sampled {
        samples: 4,
        seed: 1,
        filters: Filters::default(),
    };
    for (name, answers) in [("greedy", Answers::Greedy), ("T = 1", sampled)] {
        let config = EvalConfig {
            answers,
            max_completion_length: 32,
            stop: Vec::new(),
            max_rows: 64,
        };
        report(name, &evaluate(&judge, &questions, &config, &mut |_| ())?);
    }
    Ok(())
}

fn report(name: &str, evaluation: &Evaluation) {
    eprintln!(
        "{name}: accuracy {:.3} ± {:.3}, pass@k {:.3}, {:.1} tokens, {:.3} truncated",
        evaluation.accuracy(),
        evaluation.standard_error(),
        evaluation.pass_at(4).unwrap_or(evaluation.accuracy()),
        evaluation.mean_length(),
        evaluation.truncated()
    );
    let (running, direct): (Vec<_>, Vec<_>) = evaluation
        .answers
        .iter()
        .flatten()
        .partition(|a| a.text.starts_with('\n'));
    for (style, answers) in [("running", running), ("direct", direct)] {
        let right = answers.iter().filter(|a| a.right).count();
        eprintln!("  {style}: {right} of {} right", answers.len());
        for answer in answers.iter().take(3) {
            eprintln!("    row {} {:?} {}", answer.row, answer.text, answer.right);
        }
    }
}
