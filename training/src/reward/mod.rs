//! Reward functions (TRAINING "Reward functions"): each takes prompt, completion, answer and row and gives a finite
//! number, or a reason why not. A job's reward is the weighted sum of its functions.

#[cfg(unix)]
mod command;
pub mod math;
mod number;
mod schema;
mod text;

pub use number::{Number, last_number};

use gym_protocol::job::spec::RewardSpec;
use serde_json::Value;
use std::fmt::Debug;

/// The names a job file may use, in the order they are listed to people.
pub const KNOWN: [&str; 8] = [
    "exact",
    "numeric",
    "math",
    "boxed",
    "format",
    "length",
    "json_schema",
    "command",
];

/// Whether a job may run programs of its choice on this machine (`command`).
///
/// A job that comes from the network may not, unless whoever runs the machine says so: a program can do here whatever
/// its user can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Programs {
    /// `command` is an error.
    #[default]
    Refused,
    /// `command` runs its program.
    Allowed,
}

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
    /// `command`: the program does not start.
    #[error("the reward program does not start")]
    ProgramStart,
    /// `command`: no answer in time.
    #[error("the reward program took too long")]
    ProgramTimeout,
    /// `command`: it ended with an error or was killed.
    #[error("the reward program failed")]
    ProgramExit,
    /// `command`: it ended without an answer.
    #[error("the reward program gave no answer")]
    ProgramSilent,
    /// `command`: its answer is no number.
    #[error("the reward program's answer is no number")]
    ProgramGarbage,
    /// `command`: it gave more than one short line.
    #[error("the reward program wrote too much")]
    ProgramOutput,
    /// `command`: it answered null.
    #[error("the reward program answered null")]
    ProgramNull,
    /// `command`: its number is NaN or infinite.
    #[error("the reward program's number is not finite")]
    ProgramNotFinite,
}

/// One way to judge a completion.
pub trait RewardFunction: Send + Sync + Debug {
    /// The finite reward of `sample`, before its weight.
    ///
    /// # Errors
    /// Why there is none.
    fn score(&self, sample: &Sample<'_>) -> Result<f64, Unscored>;

    /// The same for a step's samples, one result each, in their order.
    fn score_batch(&self, samples: &[Sample<'_>]) -> Vec<Result<f64, Unscored>> {
        samples.iter().map(|sample| self.score(sample)).collect()
    }
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
    /// `command` where it is not allowed.
    #[error(
        "reward \"command\" runs {program:?} on this machine, and nobody here has allowed that; \
         set allow_reward_programs = true under [training] in the node's config.toml if you trust the job"
    )]
    ProgramRefused {
        /// What it would run.
        program: Vec<String>,
    },
    /// `command` on a system without process groups.
    #[error("reward \"command\" needs Linux or macOS")]
    ProgramUnsupported,
    /// A schema that cannot be checked.
    #[error("reward \"json_schema\": the schema cannot be used: {reason}")]
    Schema {
        /// Which keyword and why.
        reason: String,
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
    /// Builds the functions a job names; one that runs a program is refused.
    ///
    /// # Errors
    /// As [`Self::with_programs`].
    pub fn from_specs(specs: &[RewardSpec]) -> Result<Self, RewardConfigError> {
        Self::with_programs(specs, Programs::Refused)
    }

    /// Builds the functions a job names.
    ///
    /// # Errors
    /// An unknown name (the known ones are listed), a missing or needless key, a pattern or schema that cannot be used,
    /// a weight that is not finite, a program that is not allowed.
    pub fn with_programs(specs: &[RewardSpec], programs: Programs) -> Result<Self, RewardConfigError> {
        if specs.is_empty() {
            return Err(RewardConfigError::None);
        }
        let parts = specs
            .iter()
            .map(|spec| part(spec, programs))
            .collect::<Result<_, _>>()?;
        Ok(Self { parts })
    }

    /// The functions' names, for `rewards/<name>/mean`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|part| part.name.as_str())
    }

    /// Whether the answer is right: the first of `exact`, `numeric`, `math` and `boxed` gives 1; without any of them,
    /// the whole reward is above 0.
    #[must_use]
    pub fn is_right(&self, scored: &Scored) -> bool {
        let place = self
            .names()
            .position(|name| matches!(name, "exact" | "numeric" | "math" | "boxed"));
        match place {
            Some(place) => scored.parts.get(place) == Some(&Ok(1.0)),
            None => scored.total.is_ok_and(|total| total > 0.0),
        }
    }

    /// Judges one completion.
    #[must_use]
    pub fn score(&self, sample: &Sample<'_>) -> Scored {
        self.sum(
            self.parts
                .iter()
                .map(|part| part.function.score(sample))
                .collect(),
        )
    }

    /// Judges a step's completions, one judgement each, in their order.
    #[must_use]
    pub fn score_batch(&self, samples: &[Sample<'_>]) -> Vec<Scored> {
        let columns: Vec<Vec<Result<f64, Unscored>>> = self
            .parts
            .iter()
            .map(|part| part.function.score_batch(samples))
            .collect();
        (0..samples.len())
            .map(|i| self.sum(columns.iter().map(|column| column[i]).collect()))
            .collect()
    }

    fn sum(&self, parts: Vec<Result<f64, Unscored>>) -> Scored {
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

fn part(spec: &RewardSpec, programs: Programs) -> Result<Part, RewardConfigError> {
    if !spec.weight.is_finite() {
        return Err(RewardConfigError::Weight {
            name: spec.name.clone(),
            weight: spec.weight,
        });
    }
    let function = function(spec, programs)?;
    refuse_unused(spec)?;
    Ok(Part {
        name: spec.name.clone(),
        weight: spec.weight,
        function,
    })
}

fn function(spec: &RewardSpec, programs: Programs) -> Result<Box<dyn RewardFunction>, RewardConfigError> {
    Ok(match spec.name.as_str() {
        "exact" => Box::new(text::Exact),
        "numeric" => Box::new(number::Numeric),
        "math" => Box::new(math::Math),
        "boxed" => Box::new(text::Boxed),
        "format" => Box::new(text::Format::new(spec.pattern.as_deref())?),
        "length" => Box::new(text::Length::new(spec.max_length)?),
        "json_schema" => Box::new(schema::JsonSchema::new(spec.schema.as_deref())?),
        "command" => program(spec, programs)?,
        _ => {
            return Err(RewardConfigError::Unknown {
                name: spec.name.clone(),
            });
        }
    })
}

#[cfg(unix)]
fn program(spec: &RewardSpec, programs: Programs) -> Result<Box<dyn RewardFunction>, RewardConfigError> {
    let function = command::Program::new(spec)?;
    match programs {
        Programs::Allowed => Ok(Box::new(function)),
        Programs::Refused => Err(RewardConfigError::ProgramRefused {
            program: spec.program.clone().unwrap_or_default(),
        }),
    }
}

#[cfg(not(unix))]
fn program(_: &RewardSpec, _: Programs) -> Result<Box<dyn RewardFunction>, RewardConfigError> {
    Err(RewardConfigError::ProgramUnsupported)
}

/// A setting that does nothing is a mistake of the person who wrote it.
fn refuse_unused(spec: &RewardSpec) -> Result<(), RewardConfigError> {
    let unused = |key| {
        Err(RewardConfigError::UnusedKey {
            name: spec.name.clone(),
            key,
        })
    };
    let settings = [
        ("pattern", spec.pattern.is_some(), "format"),
        ("max_length", spec.max_length.is_some(), "length"),
        ("schema", spec.schema.is_some(), "json_schema"),
        ("program", spec.program.is_some(), "command"),
        ("sample_timeout_ms", spec.sample_timeout_ms.is_some(), "command"),
        ("batch_timeout_ms", spec.batch_timeout_ms.is_some(), "command"),
    ];
    match settings.iter().find(|(_, set, user)| *set && spec.name != *user) {
        Some((key, ..)) => unused(key),
        None => Ok(()),
    }
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
        RewardSpec::named(name)
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
            message.contains("numerical") && message.contains("exact, numeric, math"),
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
    fn a_program_runs_only_where_it_is_allowed() {
        let command = RewardSpec {
            program: Some(vec![
                "/bin/sh".into(),
                "-c".into(),
                "cat > /dev/null; echo 1".into(),
            ]),
            ..spec("command")
        };
        let message = Rewards::from_specs(std::slice::from_ref(&command))
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("/bin/sh") && message.contains("allow_reward_programs"),
            "{message}"
        );
        let rewards = Rewards::with_programs(&[command], Programs::Allowed).unwrap();
        let scored = rewards.score_batch(&[sample("a", "b"), sample("c", "d")]);
        assert_eq!(scored.len(), 2);
        assert_eq!(scored[1].total, Ok(1.0));
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
