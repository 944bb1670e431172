//! Drawing and judging a step's completions.

use super::ready::Prepared;
use super::{StepError, StepInput, Trainer};
use crate::generate::{Draw, Finish, GenerateConfig, Request, generate};
use crate::lora::Lora;
use crate::reward::{Sample, Scored};
use serde::Serialize;

/// One completion with its judgement: what the worker commits to (PROTOCOL section 7).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rollout {
    /// The question's row.
    pub row: u64,
    /// Which of the group's completions.
    pub sample: u32,
    /// Token ids, EOS included.
    pub tokens: Vec<u32>,
    /// The sampler's log-probability of each token.
    pub log_probs: Vec<f32>,
    /// Weighted reward; `None` when it could not be had.
    pub reward: Option<f64>,
    /// The completion as text.
    pub text: String,
    /// Cut at the longest length instead of ended by EOS.
    pub truncated: bool,
}

/// A step's completions, groups in a row, with what the metrics need.
pub(super) struct Rollouts {
    pub(super) all: Vec<Rollout>,
    pub(super) scores: Vec<Scored>,
    /// Mean over tokens of the sampler's entropy.
    pub(super) entropy: f64,
    /// Tokens chosen by a hair.
    pub(super) near_ties: u64,
}

impl Trainer {
    pub(super) fn generate_config(&self) -> GenerateConfig {
        GenerateConfig {
            filters: (&self.plan.rollout).into(),
            max_new_tokens: self.plan.rollout.max_completion_length as usize,
            eos: self.tokenizer.eos_ids().to_vec(),
            stop: self.tokenizer.stop_strings(&self.plan.rollout.stop),
            pad: self.tokenizer.pad_id(),
            max_rows: self.learner.limits.rollout_rows,
        }
    }

    #[tracing::instrument(level = "debug", name = "rollout", skip_all)]
    pub(super) fn roll_out<'a>(&'a self, lora: &Lora, input: &StepInput<'_>) -> Result<Drawn<'a>, StepError> {
        let group = self.plan.gspo.group_size;
        let questions: Vec<&Prepared> = input
            .rows
            .iter()
            .map(|row| self.question(*row))
            .collect::<Result<_, _>>()?;
        let samples: Vec<u32> = (0..group).collect();
        // A group that does not fit at once is drawn in parts.
        let part = (group as usize).min(self.learner.limits.rollout_rows.max(1));
        let noise = |row: u64, sample: &u32| Draw::Noise(input.key.noise(input.step, row, *sample));
        let parts = |q: &'a Prepared| {
            samples.chunks(part).map(move |samples| Request {
                prompt: &q.tokens,
                draws: samples.iter().map(|s| noise(q.question.row, s)).collect(),
            })
        };
        let requests: Vec<Request<'_>> = questions.iter().flat_map(|q| parts(q)).collect();
        let mut drawn = generate(
            self.sampler.as_ref().unwrap_or(&self.learner.decoder),
            Some(lora),
            &requests,
            &self.generate_config(),
        )?
        .into_iter()
        .flatten();
        let completions = questions
            .iter()
            .map(|_| drawn.by_ref().take(samples.len()).collect())
            .collect();
        Ok(Drawn {
            questions,
            completions,
        })
    }

    #[tracing::instrument(level = "debug", name = "reward", skip_all)]
    pub(super) fn judge(&self, drawn: &Drawn<'_>) -> Result<Rollouts, StepError> {
        let mut out = Rollouts {
            all: Vec::new(),
            scores: Vec::new(),
            entropy: 0.0,
            near_ties: 0,
        };
        let mut tokens = 0usize;
        let drawn: Vec<_> = drawn
            .questions
            .iter()
            .zip(&drawn.completions)
            .flat_map(|(question, group)| group.iter().enumerate().map(move |(i, c)| (*question, i, c)))
            .collect();
        let texts = drawn
            .iter()
            .map(|(_, _, completion)| self.tokenizer.decode(&completion.tokens))
            .collect::<Result<Vec<_>, _>>()?;
        let samples: Vec<Sample<'_>> = drawn
            .iter()
            .zip(&texts)
            .map(|((question, _, completion), text)| sample_of(question, text, completion.tokens.len()))
            .collect();
        out.scores = self.rewards.score_batch(&samples);
        for (((question, sample, completion), text), scored) in drawn.iter().zip(&texts).zip(&out.scores) {
            tokens += completion.tokens.len();
            out.near_ties += u64::from(completion.near_ties);
            out.entropy += completion.entropy * completion.tokens.len() as f64;
            out.all.push(Rollout {
                row: question.question.row,
                sample: *sample as u32,
                tokens: completion.tokens.clone(),
                log_probs: completion.log_probs.clone(),
                reward: scored.total.ok(),
                text: text.clone(),
                truncated: completion.finish == Finish::Length,
            });
        }
        out.entropy /= tokens.max(1) as f64;
        Ok(out)
    }
}

fn sample_of<'a>(question: &'a Prepared, completion: &'a str, completion_tokens: usize) -> Sample<'a> {
    Sample {
        prompt: &question.text,
        completion,
        completion_tokens,
        answer: &question.question.answer,
        row: &question.question.raw,
    }
}

/// Completions before judgement.
pub(super) struct Drawn<'a> {
    pub(super) questions: Vec<&'a Prepared>,
    completions: Vec<Vec<crate::generate::Completion>>,
}
