//! The corpus: sums in the exact form of reasoning-gym's chain_sum, made here from other seeds, answered in two ways.

use super::vocabulary::INSTRUCTION;
use crate::data::{Prompt, Question, content_hash};
use crate::sampling::{derive_key, units};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Which sums are asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QuestionConfig {
    /// Fewest terms.
    pub min_terms: u32,
    /// Most terms.
    pub max_terms: u32,
    /// Fewest digits a term; one question's terms all have the same number.
    pub min_digits: u32,
    /// Most digits a term.
    pub max_digits: u32,
}

impl Default for QuestionConfig {
    fn default() -> Self {
        Self {
            min_terms: 3,
            max_terms: 4,
            min_digits: 1,
            max_digits: 2,
        }
    }
}

/// How a question is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A space and the answer.
    Direct,
    /// A new line and every partial sum: `33-66=-33+16=-17`.
    Running,
}

/// A question and what is to follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// The prompt, in chain_sum's words.
    pub question: String,
    /// The completion, without its end token.
    pub completion: String,
    /// How it answers.
    pub style: Style,
}

/// All examples, each a function of seed, step and place.
#[derive(Debug)]
pub struct Corpus {
    seed: u64,
    questions: QuestionConfig,
    excluded: BTreeSet<[u8; 32]>,
}

impl Corpus {
    /// A corpus that holds none of `excluded`.
    #[must_use]
    pub fn new(seed: u64, questions: QuestionConfig, excluded: &[Question]) -> Self {
        Self {
            seed,
            questions,
            excluded: excluded.iter().map(|q| content_hash(&q.prompt)).collect(),
        }
    }

    /// The example at `place` of `step`'s batch; one in 1/`running_share` is a running sum.
    #[must_use]
    pub fn example(&self, step: u64, place: u64, running_share: f64) -> Example {
        let mut attempt = 0;
        loop {
            let (style, sum) = self.draw(step, place, attempt, running_share);
            let question = sum.question();
            if !self
                .excluded
                .contains(&content_hash(&Prompt::Text(question.clone())))
            {
                let completion = sum.completion(style);
                return Example {
                    question,
                    completion,
                    style,
                };
            }
            attempt += 1;
        }
    }

    fn draw(&self, step: u64, place: u64, attempt: u64, running_share: f64) -> (Style, Sum) {
        let numbers = [self.seed, step, place, attempt].map(u64::to_le_bytes);
        let key = derive_key(&[b"gym/corpus/v1", numbers.as_flattened()]);
        let mut noise = units(key, 3 + 2 * self.questions.max_terms as usize);
        let mut unit = || noise.next().unwrap_or(0.5);
        let style = if unit() < running_share {
            Style::Running
        } else {
            Style::Direct
        };
        let terms = between(
            unit(),
            self.questions.min_terms.into(),
            self.questions.max_terms.into(),
        );
        let digits = between(
            unit(),
            self.questions.min_digits.into(),
            self.questions.max_digits.into(),
        );
        let (low, high) = range(digits);
        let first = between(unit(), low, high);
        let rest = (1..terms).map(|_| {
            let operator = if unit() < 0.5 {
                Operator::Plus
            } else {
                Operator::Minus
            };
            (operator, between(unit(), low, high))
        });
        let rest = rest.collect();
        (style, Sum { first, rest })
    }
}

/// An integer of `low..=high` from a number between 0 and 1.
fn between(unit: f64, low: i64, high: i64) -> i64 {
    low + (unit * (high - low + 1) as f64) as i64
}

/// chain_sum's values of so many digits: 0 to 9, 10 to 99, …
fn range(digits: i64) -> (i64, i64) {
    let power = 10_i64.pow(u32::try_from(digits).unwrap_or(1));
    (if digits == 1 { 0 } else { power / 10 }, power - 1)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Plus,
    Minus,
}

impl Operator {
    fn apply(self, a: i64, b: i64) -> i64 {
        match self {
            Self::Plus => a + b,
            Self::Minus => a - b,
        }
    }

    fn sign(self) -> char {
        match self {
            Self::Plus => '+',
            Self::Minus => '-',
        }
    }
}

#[derive(Debug)]
struct Sum {
    first: i64,
    rest: Vec<(Operator, i64)>,
}

impl Sum {
    fn question(&self) -> String {
        let mut text = format!("{INSTRUCTION} {}", self.first);
        for (operator, term) in &self.rest {
            // Writing to a String cannot fail.
            let _ = write!(text, " {} {term}", operator.sign());
        }
        text + " ="
    }

    fn completion(&self, style: Style) -> String {
        let mut sum = self.first;
        let mut running = format!("\n{sum}");
        for (operator, term) in &self.rest {
            sum = operator.apply(sum, *term);
            let _ = write!(running, "{}{term}={sum}", operator.sign());
        }
        match style {
            Style::Direct => format!(" {sum}"),
            Style::Running => running,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reward::{Rewards, Sample};
    use serde_json::Value;

    fn corpus(excluded: &[Question]) -> Corpus {
        Corpus::new(1, QuestionConfig::default(), excluded)
    }

    #[test]
    fn sums_are_written_as_chain_sum_writes_them() {
        let sum = Sum {
            first: 33,
            rest: vec![(Operator::Minus, 66), (Operator::Plus, 16)],
        };
        let question = "State the final answer to the following arithmetic problem: 33 - 66 + 16 =";
        assert_eq!(sum.question(), question);
        assert_eq!(sum.completion(Style::Direct), " -17");
        assert_eq!(sum.completion(Style::Running), "\n33-66=-33+16=-17");
    }

    #[test]
    fn both_styles_earn_the_reward_and_come_in_their_share() {
        let specs: Vec<gym_protocol::job::spec::RewardSpec> =
            serde_json::from_str(r#"[{"name":"numeric"}]"#).unwrap();
        let rewards = Rewards::from_specs(&specs).unwrap();
        let mut running = 0;
        for place in 0..2000 {
            let example = corpus(&[]).example(7, place, 0.3);
            let answer = example.completion.rsplit(['=', ' ']).next().unwrap();
            let sample = Sample {
                prompt: &example.question,
                completion: &example.completion,
                completion_tokens: 1,
                answer,
                row: &Value::Null,
            };
            assert_eq!(rewards.score(&sample).total, Ok(1.0), "{example:?}");
            running += usize::from(example.style == Style::Running);
        }
        assert!((530..670).contains(&running), "{running}");
    }

    #[test]
    fn excluded_questions_never_come() {
        let all = |corpus: &Corpus| -> BTreeSet<String> {
            (0..3000)
                .map(|place| corpus.example(0, place, 0.5).question)
                .collect()
        };
        let free = all(&corpus(&[]));
        let excluded: Vec<Question> = free
            .iter()
            .step_by(3)
            .map(|text| Question {
                row: 0,
                prompt: Prompt::Text(text.clone()),
                answer: String::new(),
                raw: Value::Null,
            })
            .collect();
        let rest = all(&corpus(&excluded));
        assert!(excluded.iter().all(|q| !rest.contains(&q.prompt.text())));
        assert!(rest.len() > 1000);
    }

    #[test]
    fn an_example_is_a_function_of_its_numbers() {
        assert_eq!(corpus(&[]).example(5, 6, 0.5), corpus(&[]).example(5, 6, 0.5));
        assert_ne!(corpus(&[]).example(5, 6, 0.5), corpus(&[]).example(6, 5, 0.5));
    }
}
