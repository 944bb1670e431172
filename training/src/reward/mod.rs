//! Reward functions (TRAINING "Reward functions"): each takes prompt, completion, answer and row and gives a finite
//! number, or a reason why not. A job's reward is the weighted sum of its functions.

mod number;
mod text;

pub use number::{Number, last_number};

use gym_protocol::job::spec::RewardSpec;
use serde_json::Value;
use std::fmt::Debug;

/// The names a job file may use, in the order they are listed to people.
pub const KNOWN: [&str; 5] = ["exact", "numeric", "boxed", "format", "length"];

/// What a reward function sees of one completion.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// The question as text.
    pub prompt: &'a str,
    /// What the model wrote, special tokens left out.
    pub completion: &'a str,
    /// Tokens of the completion, EOS included.
    pub completion_tokens: usize,
    /// The reference answer as the file has it.
    pub answer: &'a str,
    /// The question's whole line.
    pub row: &'a Value,
}

/// Why a completion has no reward. Counted by reason; the sample leaves its group's mean and trains nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Unscored {
    /// The reference answer has no number to compare with.
    #[error("the reference answer holds no number")]
    ReferenceHasNoNumber,
    /// The reference answer is empty.
    #[error("the reference answer is empty")]
    ReferenceEmpty,
    /// The weighted sum overflowed.
    #[error("the weighted sum is not finite")]
    NotFinite,
}

/// One way to judge a completion.
pub trait RewardFunction: Send + Sync + Debug {
    /// The finite reward of `sample`, before its weight.
    ///
    /// # Errors
    /// Why there is none.
    fn score(&self, sample: &Sample<'_>) -> Result<f64, Unscored>;
}

/// A job's reward functions with their weights.
#[derive(Debug)]
pub struct Rewards {
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    name: String,
    weight: f64,
    function: Box<dyn RewardFunction>,
}

/// The judgement of one completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// Σ weight · part, or the first reason why a part has no number.
    pub total: Result<f64, Unscored>,
    /// Each function's own number, unweighted, in the order of [`Rewards::names`].
    pub parts: Vec<Result<f64, Unscored>>,
}

/// Why a job's rewards cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum RewardConfigError {
    /// A name that is none of ours.
    #[error("there is no reward function {name:?}; known are {}", KNOWN.join(", "))]
    Unknown {
        /// The name.
        name: String,
    },
    /// The list is empty.
    #[error("the job names no reward function; known are {}", KNOWN.join(", "))]
    None,
    /// A function lacks its setting.
    #[error("reward {name:?} needs {key}, for example {example}")]
    MissingKey {
        /// The function.
        name: &'static str,
        /// The absent key.
        key: &'static str,
        /// How to write it.
        example: &'static str,
    },
    /// A key that the function does not use.
    #[error("reward {name:?} takes no {key}; remove it")]
    UnusedKey {
        /// The function.
        name: String,
        /// The key.
        key: &'static str,
    },
    /// A weight that is not finite.
    #[error("reward {name:?} has weight {weight}; it must be a finite number")]
    Weight {
        /// The function.
        name: String,
        /// Its weight.
        weight: f64,
    },
    /// A regular expression that does not compile.
    #[error("reward \"format\": the pattern {pattern:?} does not compile: {source}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The reason.
        source: regex::Error,
    },
}

impl Rewards {
    /// Builds the functions a job names.
    ///
    /// # Errors
    /// An unknown name (the known ones are listed), a missing or needless key, a pattern that does not compile, a
    /// weight that is not finite.
    pub fn from_specs(specs: &[RewardSpec]) -> Result<Self, RewardConfigError> {
        if specs.is_empty() {
            return Err(RewardConfigError::None);
        }
        let parts = specs.iter().map(part).collect::<Result<_, _>>()?;
        Ok(Self { parts })
    }

    /// The functions' names, for `rewards/<name>/mean`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|part| part.name.as_str())
    }

    /// Whether the answer is right: the first of `exact`, `numeric` and `boxed` gives 1; without any of them, the
    /// whole reward is above 0.
    #[must_use]
    pub fn is_right(&self, scored: &Scored) -> bool {
        let place = self
            .names()
            .position(|name| matches!(name, "exact" | "numeric" | "boxed"));
        match place {
            Some(place) => scored.parts.get(place) == Some(&Ok(1.0)),
            None => scored.total.is_ok_and(|total| total > 0.0),
        }
    }

    /// Judges one completion.
    #[must_use]
    pub fn score(&self, sample: &Sample<'_>) -> Scored {
        let parts: Vec<_> = self
            .parts
            .iter()
            .map(|part| part.function.score(sample))
            .collect();
        let total = self
            .parts
            .iter()
            .zip(&parts)
            .try_fold(0.0, |sum, (part, score)| {
                score.map(|score| sum + part.weight * score)
            })
            .and_then(|sum: f64| {
                if sum.is_finite() {
                    Ok(sum)
                } else {
                    Err(Unscored::NotFinite)
                }
            });
        Scored { total, parts }
    }
}

fn part(spec: &RewardSpec) -> Result<Part, RewardConfigError> {
    if !spec.weight.is_finite() {
        return Err(RewardConfigError::Weight {
            name: spec.name.clone(),
            weight: spec.weight,
        });
    }
    let function = function(spec)?;
    refuse_unused(spec)?;
    Ok(Part {
        name: spec.name.clone(),
        weight: spec.weight,
        function,
    })
}

fn function(spec: &RewardSpec) -> Result<Box<dyn RewardFunction>, RewardConfigError> {
    Ok(match spec.name.as_str() {
        "exact" => Box::new(text::Exact),
        "numeric" => Box::new(number::Numeric),
        "boxed" => Box::new(text::Boxed),
        "format" => Box::new(text::Format::new(spec.pattern.as_deref())?),
        "length" => Box::new(text::Length::new(spec.max_length)?),
        _ => {
            return Err(RewardConfigError::Unknown {
                name: spec.name.clone(),
            });
        }
    })
}

/// A setting that does nothing is a mistake of the person who wrote it.
fn refuse_unused(spec: &RewardSpec) -> Result<(), RewardConfigError> {
    let unused = |key| {
        Err(RewardConfigError::UnusedKey {
            name: spec.name.clone(),
            key,
        })
    };
    if spec.pattern.is_some() && spec.name != "format" {
        return unused("pattern");
    }
    if spec.max_length.is_some() && spec.name != "length" {
        return unused("max_length");
    }
    Ok(())
}

/// The reference proper: what follows GSM8K's `####`, or the whole answer, trimmed.
#[must_use]
pub fn reference(answer: &str) -> &str {
    answer.rsplit("####").next().unwrap_or(answer).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str) -> RewardSpec {
        RewardSpec {
            name: name.into(),
            weight: 1.0,
            pattern: None,
            max_length: None,
        }
    }

    fn sample<'a>(completion: &'a str, answer: &'a str) -> Sample<'a> {
        Sample {
            prompt: "q",
            completion,
            completion_tokens: 4,
            answer,
            row: &Value::Null,
        }
    }

    #[test]
    fn unknown_names_list_the_known() {
        let message = Rewards::from_specs(&[spec("numerical")]).unwrap_err().to_string();
        assert!(
            message.contains("numerical") && message.contains("exact, numeric, boxed"),
            "{message}"
        );
    }

    #[test]
    fn needless_and_missing_keys_are_named() {
        let needless = RewardSpec {
            pattern: Some("a".into()),
            ..spec("numeric")
        };
        assert!(
            Rewards::from_specs(&[needless])
                .unwrap_err()
                .to_string()
                .contains("takes no pattern")
        );
        assert!(
            Rewards::from_specs(&[spec("format")])
                .unwrap_err()
                .to_string()
                .contains("pattern")
        );
        assert!(
            Rewards::from_specs(&[spec("length")])
                .unwrap_err()
                .to_string()
                .contains("max_length")
        );
        assert!(matches!(Rewards::from_specs(&[]), Err(RewardConfigError::None)));
    }

    #[test]
    fn the_sum_is_weighted() {
        let length = RewardSpec {
            weight: 0.5,
            max_length: Some(2),
            ..spec("length")
        };
        let rewards = Rewards::from_specs(&[spec("numeric"), length]).unwrap();
        let scored = rewards.score(&sample("it is 18", "#### 18"));
        assert_eq!(scored.parts, [Ok(1.0), Ok(-1.0)]);
        assert_eq!(scored.total, Ok(0.5));
        assert!(rewards.is_right(&scored) && !rewards.is_right(&rewards.score(&sample("17", "18"))));
        assert_eq!(rewards.names().collect::<Vec<_>>(), ["numeric", "length"]);
    }

    #[test]
    fn one_missing_part_leaves_no_total() {
        let rewards = Rewards::from_specs(&[spec("exact"), spec("numeric")]).unwrap();
        let scored = rewards.score(&sample("blue", "blue"));
        assert_eq!(scored.parts[0], Ok(1.0));
        assert_eq!(scored.total, Err(Unscored::ReferenceHasNoNumber));
    }

    #[test]
    fn a_sum_that_overflows_is_no_reward() {
        let huge = RewardSpec {
            weight: f64::MAX,
            ..spec("exact")
        };
        let rewards = Rewards::from_specs(&[huge.clone(), huge]).unwrap();
        assert_eq!(rewards.score(&sample("a", "a")).total, Err(Unscored::NotFinite));
    }
}
