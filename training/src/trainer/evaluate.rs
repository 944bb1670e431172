//! Held-out accuracy by greedy decoding.

use super::{Prepared, StepError, Trainer};
use crate::data::Question;
use crate::generate::{Draw, Finish, Request, generate};
use serde::Serialize;

/// Reward functions whose 1 means "right".
const CORRECTNESS: [&str; 3] = ["exact", "numeric", "boxed"];

/// Greedy pass@1 over some questions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvalReport {
    /// Questions asked.
    pub total: usize,
    /// Answered rightly: the first of the job's `exact`, `numeric` and `boxed` functions gives 1 (the weighted
    /// reward is at least 1 where a job has none of them).
    pub correct: usize,
    /// correct / total.
    pub accuracy: f64,
    /// Mean weighted reward over those that have one.
    pub mean_reward: f64,
    /// Mean completion length in tokens.
    pub mean_length: f64,
    /// Completions cut at the longest length.
    pub truncated: usize,
    /// One entry a question.
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
    /// Whether it is right.
    pub correct: bool,
}

impl Trainer {
    /// Answers `questions` greedily with the adapter as it stands.
    ///
    /// # Errors
    /// A question that cannot be encoded or is too long; logits that are not finite.
    pub fn evaluate(&self, questions: &[Question]) -> Result<EvalReport, StepError> {
        let prepared = questions.iter().map(|q| self.prepare(q.clone()));
        let prepared: Vec<Prepared> = prepared.collect::<Result<_, _>>()?;
        let requests: Vec<Request<'_>> = prepared
            .iter()
            .map(|q| Request {
                prompt: &q.tokens,
                draws: vec![Draw::Greedy],
            })
            .collect();
        let mut config = self.generate_config();
        config.filters = crate::sampling::Filters::default();
        let lora = self.learner.lora()?;
        let completions = generate(&self.learner.decoder, Some(&lora), &requests, &config)?;
        let judge = self.rewards.names().position(|n| CORRECTNESS.contains(&n));
        let mut report = EvalReport::empty(questions.len());
        for (question, completion) in prepared.iter().zip(completions.iter().flatten()) {
            let text = self.tokenizer.decode(&completion.tokens)?;
            let scored = self.score(question, &text, completion.tokens.len());
            let deciding = match judge {
                Some(i) => scored.parts.get(i).copied().unwrap_or(scored.total),
                None => scored.total,
            };
            report.mean_length += completion.tokens.len() as f64;
            report.truncated += usize::from(completion.finish == Finish::Length);
            report.answers.push(Answer {
                row: question.question.row,
                text,
                reward: scored.total.ok(),
                correct: deciding.is_ok_and(|score| score >= 1.0),
            });
        }
        Ok(report.summed())
    }
}

impl EvalReport {
    fn empty(total: usize) -> Self {
        Self {
            total,
            correct: 0,
            accuracy: 0.0,
            mean_reward: 0.0,
            mean_length: 0.0,
            truncated: 0,
            answers: Vec::with_capacity(total),
        }
    }

    fn summed(mut self) -> Self {
        let count = |n: usize| n.max(1) as f64;
        self.correct = self.answers.iter().filter(|a| a.correct).count();
        self.accuracy = self.correct as f64 / count(self.total);
        self.mean_length /= count(self.total);
        let rewards: Vec<f64> = self.answers.iter().filter_map(|a| a.reward).collect();
        self.mean_reward = rewards.iter().sum::<f64>() / count(rewards.len());
        self
    }
}
