//! Held-out accuracy by greedy decoding, with the adapter as it stands.

use super::{StepError, Trainer};
use crate::data::Question;
use crate::eval::{self, Answers, EvalConfig, Evaluation, Judge};
use crate::generate::Finish;
use serde::Serialize;

/// Greedy pass@1 over some questions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvalReport {
    /// Questions asked.
    pub total: usize,
    /// Answered rightly.
    pub correct: usize,
    /// correct / total.
    pub accuracy: f64,
    /// Mean weighted reward over those that have one.
    pub mean_reward: f64,
    /// Mean completion length in tokens.
    pub mean_length: f64,
    /// Completions cut at the longest length.
    pub truncated: usize,
    /// One entry a question, in the questions' order.
    pub answers: Vec<Answer>,
}

/// One question's completion.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// The question's row in its file.
    pub row: u64,
    /// What the model wrote.
    pub text: String,
    /// Weighted reward; `None` when it could not be had.
    pub reward: Option<f64>,
    /// Whether it is right, by the job's reward functions.
    pub correct: bool,
}

impl Trainer {
    /// Answers `questions` greedily.
    ///
    /// # Errors
    /// A question that cannot be encoded; logits that are not finite.
    pub fn evaluate(&self, questions: &[Question]) -> Result<EvalReport, StepError> {
        let lora = self.learner.lora()?;
        let judge = Judge {
            model: &self.learner.decoder,
            lora: Some(&lora),
            tokenizer: &self.tokenizer,
            rewards: &self.rewards,
        };
        let config = EvalConfig {
            answers: Answers::Greedy,
            max_completion_length: self.plan.rollout.max_completion_length as usize,
            stop: self.plan.rollout.stop.clone(),
            max_rows: self.learner.limits.rollout_rows,
        };
        Ok(report(&eval::evaluate(&judge, questions, &config, &mut |_| ())?))
    }
}

fn report(evaluation: &Evaluation) -> EvalReport {
    let all = || evaluation.answers.iter().flatten();
    let answer = |a: &eval::Answer| Answer {
        row: a.row,
        text: a.text.clone(),
        reward: a.reward.ok(),
        correct: a.right,
    };
    EvalReport {
        total: evaluation.answers.len(),
        correct: all().filter(|a| a.right).count(),
        accuracy: evaluation.accuracy(),
        mean_reward: evaluation.mean_reward(),
        mean_length: evaluation.mean_length(),
        truncated: all().filter(|a| a.finish == Finish::Length).count(),
        answers: all().map(answer).collect(),
    }
}
