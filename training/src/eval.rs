//! Held-out questions answered and judged: greedy accuracy (pass@1) and, with several samples each, pass@k.

use crate::data::Question;
use crate::generate::{Completion, Draw, Finish, GenerateConfig, GenerateError, Request, generate};
use crate::lora::Lora;
use crate::model::Decoder;
use crate::reward::{Rewards, Sample, Unscored};
use crate::sampling::{Filters, RolloutKey};
use crate::tokenizer::{EncodeError, TextTokenizer};

/// How questions are answered.
#[derive(Clone, Debug, PartialEq)]
pub struct EvalConfig {
    /// Completions a question.
    pub answers: Answers,
    /// Completions are cut here, in tokens, EOS included.
    pub max_completion_length: usize,
    /// Texts that end a completion.
    pub stop: Vec<String>,
    /// Completions that run together.
    pub max_rows: usize,
}

/// One greedy completion, or several drawn ones.
#[derive(Clone, Debug, PartialEq)]
pub enum Answers {
    /// The likeliest token each time: what a job's accuracy is.
    Greedy,
    /// `samples` completions under `filters`, from public noise of `seed`.
    Sampled {
        /// Completions a question, at least 1.
        samples: u32,
        /// Seed of the noise.
        seed: u64,
        /// Temperature and the like.
        filters: Filters,
    },
}

/// One judged completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The question's row.
    pub row: u64,
    /// What the model wrote.
    pub text: String,
    /// Its tokens, EOS included.
    pub tokens: usize,
    /// Why it ended.
    pub finish: Finish,
    /// The job's reward.
    pub reward: Result<f64, Unscored>,
    /// Whether the answer is right ([`Rewards::is_right`]).
    pub right: bool,
}

/// All answers of an evaluation, those of one question together, in the questions' order.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// One list a question.
    pub answers: Vec<Vec<Answer>>,
}

/// Why there is no evaluation.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// A question cannot be encoded or an answer decoded.
    #[error("row {row}: {source}")]
    Encode {
        /// The question's row.
        row: u64,
        /// The tokenizer's reason.
        source: EncodeError,
    },
    /// The model does not generate.
    #[error(transparent)]
    Generate(#[from] GenerateError),
}

/// Answers and judges every question. `progress` is told after each batch how many questions are done.
///
/// # Errors
/// A question the tokenizer refuses, a model whose logits are not finite.
pub fn evaluate(
    judge: &Judge<'_>,
    questions: &[Question],
    config: &EvalConfig,
    progress: &mut dyn FnMut(usize),
) -> Result<Evaluation, EvalError> {
    let mut order: Vec<(usize, Vec<u32>)> = Vec::with_capacity(questions.len());
    for (place, question) in questions.iter().enumerate() {
        let ids = judge.tokenizer.encode_prompt(&question.prompt);
        order.push((
            place,
            ids.map_err(|source| EvalError::Encode {
                row: question.row,
                source,
            })?,
        ));
    }
    // Prompts of like length together: little padding.
    order.sort_by_key(|(_, ids)| ids.len());
    let mut answers: Vec<Vec<Answer>> = questions.iter().map(|_| Vec::new()).collect();
    let mut done = 0;
    for part in order.chunks((config.max_rows / config.answers.count()).max(1)) {
        for ((place, _), completed) in part.iter().zip(judge.complete(questions, part, config)?) {
            answers[*place] = completed;
        }
        done += part.len();
        progress(done);
    }
    Ok(Evaluation { answers })
}

/// Who answers, and who judges.
#[derive(Clone, Copy, Debug)]
pub struct Judge<'a> {
    /// The base model.
    pub model: &'a Decoder,
    /// Its adapter.
    pub lora: Option<&'a Lora>,
    /// Its tokenizer.
    pub tokenizer: &'a TextTokenizer,
    /// The job's reward functions.
    pub rewards: &'a Rewards,
}

impl Judge<'_> {
    fn complete(
        &self,
        questions: &[Question],
        part: &[(usize, Vec<u32>)],
        config: &EvalConfig,
    ) -> Result<Vec<Vec<Answer>>, EvalError> {
        let requests: Vec<Request<'_>> = part
            .iter()
            .map(|(place, ids)| Request {
                prompt: ids,
                draws: config.answers.draws(questions[*place].row),
            })
            .collect();
        let generation = GenerateConfig {
            filters: config.answers.filters(),
            max_new_tokens: config.max_completion_length,
            eos: self.tokenizer.eos_ids().to_vec(),
            stop: self.tokenizer.stop_strings(&config.stop),
            pad: self.tokenizer.pad_id(),
            max_rows: config.max_rows,
        };
        let completions = generate(self.model, self.lora, &requests, &generation)?;
        let answered: Vec<(&Question, &Completion)> = part
            .iter()
            .zip(&completions)
            .flat_map(|((place, _), group)| group.iter().map(|c| (&questions[*place], c)))
            .collect();
        let mut judged = self.judge(&answered)?.into_iter();
        Ok(completions
            .iter()
            .map(|group| judged.by_ref().take(group.len()).collect())
            .collect())
    }

    fn judge(&self, answered: &[(&Question, &Completion)]) -> Result<Vec<Answer>, EvalError> {
        let texts = answered
            .iter()
            .map(|(question, completion)| {
                let text = self.tokenizer.decode(&completion.tokens);
                text.map_err(|source| EvalError::Encode {
                    row: question.row,
                    source,
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let prompts: Vec<String> = answered.iter().map(|(q, _)| q.prompt.text()).collect();
        let samples: Vec<Sample<'_>> = answered
            .iter()
            .zip(texts.iter().zip(&prompts))
            .map(|((question, completion), (text, prompt))| Sample {
                prompt,
                completion: text,
                completion_tokens: completion.tokens.len(),
                answer: &question.answer,
                row: &question.raw,
            })
            .collect();
        let scored = self.rewards.score_batch(&samples);
        let answer =
            |(((question, completion), text), scored): (((&Question, &Completion), &String), _)| Answer {
                row: question.row,
                tokens: completion.tokens.len(),
                finish: completion.finish,
                right: self.rewards.is_right(&scored),
                reward: scored.total,
                text: text.clone(),
            };
        Ok(answered
            .iter()
            .map(|(q, c)| (*q, *c))
            .zip(&texts)
            .zip(scored)
            .map(answer)
            .collect())
    }
}

impl Answers {
    fn count(&self) -> usize {
        match self {
            Self::Greedy => 1,
            Self::Sampled { samples, .. } => (*samples).max(1) as usize,
        }
    }

    fn draws(&self, row: u64) -> Vec<Draw> {
        match self {
            Self::Greedy => vec![Draw::Greedy],
            Self::Sampled { samples, seed, .. } => {
                let key = RolloutKey::offline(*seed);
                (0..*samples)
                    .map(|sample| Draw::Noise(key.noise(0, row, sample)))
                    .collect()
            }
        }
    }

    fn filters(&self) -> Filters {
        match self {
            Self::Greedy => Filters::default(),
            Self::Sampled { filters, .. } => filters.clone(),
        }
    }
}

impl Evaluation {
    /// Share of right completions, 0 to 1; 0 when there are none.
    #[must_use]
    pub fn accuracy(&self) -> f64 {
        mean(self.all().map(|a| f64::from(u8::from(a.right))))
    }

    /// Standard error of a greedy accuracy p over n questions: √(p(1 − p)/n).
    #[must_use]
    pub fn standard_error(&self) -> f64 {
        let p = self.accuracy();
        (p * (1.0 - p) / self.answers.len().max(1) as f64).sqrt()
    }

    /// pass@k, the chance that one of k completions is right: mean over questions of 1 − C(n − c, k)/C(n, k) for c
    /// right ones of n, which is unbiased (Chen et al. 2021). `None` where a question has fewer than k completions.
    #[must_use]
    pub fn pass_at(&self, k: u32) -> Option<f64> {
        let one = |group: &Vec<Answer>| {
            let right = group.iter().filter(|a| a.right).count();
            pass_at(group.len(), right, k as usize)
        };
        let each: Option<Vec<f64>> = self.answers.iter().map(one).collect();
        each.map(|each| mean(each.into_iter()))
    }

    /// Right completions.
    #[must_use]
    pub fn correct(&self) -> usize {
        self.all().filter(|a| a.right).count()
    }

    /// Mean reward of the completions that have one.
    #[must_use]
    pub fn mean_reward(&self) -> f64 {
        mean(self.all().filter_map(|a| a.reward.ok()))
    }

    /// Mean tokens a completion.
    #[must_use]
    pub fn mean_length(&self) -> f64 {
        mean(self.all().map(|a| a.tokens as f64))
    }

    /// Share of completions cut at the length limit.
    #[must_use]
    pub fn truncated(&self) -> f64 {
        mean(
            self.all()
                .map(|a| f64::from(u8::from(a.finish == Finish::Length))),
        )
    }

    fn all(&self) -> impl Iterator<Item = &Answer> {
        self.answers.iter().flatten()
    }
}

/// The k for which pass@k of `samples` completions is shown: 1, 2, 4, … and all.
pub fn ks(samples: u32) -> impl Iterator<Item = u32> {
    let powers = (0..32).map(|e| 1u32 << e).take_while(move |k| *k < samples);
    powers.chain([samples.max(1)])
}

/// 1 − C(n − c, k)/C(n, k) = 1 − Π_{i = n−c+1..n} (1 − k/i).
fn pass_at(n: usize, c: usize, k: usize) -> Option<f64> {
    if k == 0 || k > n {
        return None;
    }
    let none_right: f64 = (n - c + 1..=n)
        .map(|i| 1.0 - k.min(i) as f64 / i as f64)
        .product();
    Some(1.0 - none_right)
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), v| (sum + v, count + 1));
    sum / f64::from(count.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pretrain::{PretrainConfig, run};
    use burn::tensor::Device;
    use gym_protocol::job::spec::ColumnsSpec;
    use std::io::Write;

    fn answer(right: bool) -> Answer {
        Answer {
            row: 0,
            text: String::new(),
            tokens: 2,
            finish: Finish::Eos,
            reward: Ok(f64::from(u8::from(right))),
            right,
        }
    }

    #[test]
    fn figures_are_what_their_names_say() {
        let evaluation = Evaluation {
            answers: vec![
                vec![answer(true), answer(false)],
                vec![answer(false), answer(false)],
            ],
        };
        assert_eq!((evaluation.accuracy(), evaluation.correct()), (0.25, 1));
        assert_eq!(
            (evaluation.pass_at(1), evaluation.pass_at(2)),
            (Some(0.25), Some(0.5))
        );
        assert_eq!((evaluation.pass_at(3), evaluation.pass_at(0)), (None, None));
        assert!((evaluation.standard_error() - (0.25_f64 * 0.75 / 2.0).sqrt()).abs() < 1e-12);
        assert_eq!((evaluation.mean_reward(), evaluation.truncated()), (0.25, 0.0));
    }

    /// Against the count of all subsets, and (the point of the formula) as the mean over them.
    #[test]
    fn pass_at_k_counts_subsets() {
        for n in 1..8u32 {
            for (c, k) in (0..=n).flat_map(|c| (1..=n).map(move |k| (c, k))) {
                let subsets = (0..1u32 << n).filter(|s| s.count_ones() == k);
                let hits = subsets.clone().filter(|s| s & ((1 << c) - 1) != 0).count();
                let want = hits as f64 / subsets.count() as f64;
                let got = pass_at(n as usize, c as usize, k as usize).unwrap();
                assert!((got - want).abs() < 1e-12, "{n} {c} {k}: {got} {want}");
            }
        }
    }

    /// A model that has learnt nothing still answers; answers come in the questions' order whatever the batches.
    #[test]
    fn batches_change_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let config: PretrainConfig = toml::from_str(
            "seed = 1\n[shape]\nlayers = 1\nhidden = 16\nheads = 2\nkv_heads = 1\nhead_dim = 8\nmlp = 16\n\
             [[stages]]\nsteps = 2\nbatch = 4\nrunning_share = 0.5\n",
        )
        .unwrap();
        run(&config, dir.path(), &mut |_| ()).unwrap();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for i in 0..6 {
            let text = "1 + ".repeat(6 - i);
            writeln!(file, "{{\"question\":\"{text}{i} =\",\"answer\":{i}}}").unwrap();
        }
        let questions = crate::data::read_questions(file.path(), &ColumnsSpec::default()).unwrap();
        let specs: Vec<gym_protocol::job::spec::RewardSpec> =
            serde_json::from_str(r#"[{"name":"numeric"}]"#).unwrap();
        let judge = Judge {
            model: &Decoder::load(dir.path(), &Device::flex()).unwrap(),
            lora: None,
            tokenizer: &TextTokenizer::load(dir.path()).unwrap(),
            rewards: &Rewards::from_specs(&specs).unwrap(),
        };
        let with_rows = |max_rows| {
            let config = EvalConfig {
                answers: Answers::Sampled {
                    samples: 2,
                    seed: 5,
                    filters: Filters::default(),
                },
                max_completion_length: 6,
                stop: Vec::new(),
                max_rows,
            };
            evaluate(&judge, &questions, &config, &mut |_| ()).unwrap()
        };
        let (one, all) = (with_rows(2), with_rows(64));
        assert_eq!(one, all);
        assert!(
            all.answers
                .iter()
                .enumerate()
                .all(|(row, group)| group.len() == 2 && group[0].row == row as u64)
        );
    }
}
