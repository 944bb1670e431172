//! Rewards that compare or measure text: `exact`, `boxed`, `format`, `length`.

use super::{RewardConfigError, RewardFunction, Sample, Unscored, last_number, reference};
use regex::Regex;

/// 1 when the trimmed completion is the reference, character for character, else 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exact;

impl RewardFunction for Exact {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, Unscored> {
        Ok(one_if(sample.completion.trim() == wanted(sample)?))
    }
}

/// 1 when the last `\boxed{…}` of the completion holds the reference (spaces apart; numbers by value), else 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Boxed;

impl RewardFunction for Boxed {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, Unscored> {
        let wanted = wanted(sample)?;
        let wanted = last_boxed(wanted).unwrap_or(wanted);
        Ok(one_if(
            last_boxed(sample.completion).is_some_and(|given| same(given, wanted)),
        ))
    }
}

/// 1 when the pattern is found in the completion, else 0; `^` and `$` anchor it.
#[derive(Debug)]
pub(super) struct Format {
    pattern: Regex,
}

impl Format {
    pub(super) fn new(pattern: Option<&str>) -> Result<Self, RewardConfigError> {
        let pattern = pattern.ok_or(RewardConfigError::MissingKey {
            name: "format",
            key: "pattern",
            example: "pattern = '<answer>.*</answer>'",
        })?;
        let pattern = Regex::new(pattern).map_err(|source| RewardConfigError::Pattern {
            pattern: pattern.to_owned(),
            source,
        })?;
        Ok(Self { pattern })
    }
}

impl RewardFunction for Format {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, Unscored> {
        Ok(one_if(self.pattern.is_match(sample.completion)))
    }
}

/// 0 up to `max_length` tokens, then −(tokens − max)/max, never below −1.
#[derive(Debug)]
pub(super) struct Length {
    max_length: u32,
}

impl Length {
    pub(super) fn new(max_length: Option<u32>) -> Result<Self, RewardConfigError> {
        match max_length {
            Some(max_length) if max_length > 0 => Ok(Self { max_length }),
            Some(_) | None => Err(RewardConfigError::MissingKey {
                name: "length",
                key: "max_length",
                example: "max_length = 64",
            }),
        }
    }
}

impl RewardFunction for Length {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, Unscored> {
        let max = f64::from(self.max_length);
        let excess = (sample.completion_tokens as f64 - max).max(0.0);
        Ok(-(excess / max).min(1.0))
    }
}

fn wanted<'a>(sample: &Sample<'a>) -> Result<&'a str, Unscored> {
    match reference(sample.answer) {
        "" => Err(Unscored::ReferenceEmpty),
        wanted => Ok(wanted),
    }
}

fn one_if(right: bool) -> f64 {
    f64::from(u8::from(right))
}

/// What stands in the last `\boxed{…}`, braces balanced.
pub(super) fn last_boxed(text: &str) -> Option<&str> {
    const OPEN: &str = "\\boxed{";
    let inside = &text[text.rfind(OPEN)? + OPEN.len()..];
    let mut depth = 1_u32;
    for (at, c) in inside.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&inside[..at]);
        }
    }
    None
}

fn same(given: &str, wanted: &str) -> bool {
    let plain = |text: &str| -> String { text.chars().filter(|c| !c.is_whitespace()).collect() };
    plain(given) == plain(wanted)
        || (is_numeric(given) && is_numeric(wanted) && last_number(given) == last_number(wanted))
}

/// Nothing but one number: otherwise `x+2` would equal `y+2`.
fn is_numeric(text: &str) -> bool {
    let digits = text.trim().trim_start_matches(['-', '+', '−', '$']);
    digits.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && digits
            .chars()
            .all(|c| c.is_ascii_digit() || matches!(c, '.' | ',' | '/' | ' ' | '%'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn sample<'a>(completion: &'a str, answer: &'a str) -> Sample<'a> {
        Sample {
            prompt: "",
            completion,
            completion_tokens: completion.len(),
            answer,
            row: &Value::Null,
        }
    }

    #[test]
    fn exact_trims_and_compares() {
        assert_eq!(Exact.score(&sample(" obogaB\n", "obogaB")), Ok(1.0));
        assert_eq!(Exact.score(&sample("Bagobo", "obogaB")), Ok(0.0));
        assert_eq!(Exact.score(&sample("a", " ")), Err(Unscored::ReferenceEmpty));
    }

    #[test]
    fn boxed_takes_the_last_balanced_box() {
        let right = [
            ("\\boxed{1} then \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
            ("\\boxed{ 1,000 }", "1000"),
            ("\\boxed{0.50}", "1/2"),
            ("\\boxed{7}", "so \\boxed{7}"),
        ];
        for (completion, answer) in right {
            assert_eq!(Boxed.score(&sample(completion, answer)), Ok(1.0), "{completion}");
        }
        let wrong = [
            ("7", "7"),
            ("\\boxed{7", "7"),
            ("\\boxed{x+2}", "y+2"),
            ("\\boxed{}", "2"),
        ];
        for (completion, answer) in wrong {
            assert_eq!(Boxed.score(&sample(completion, answer)), Ok(0.0), "{completion}");
        }
    }

    #[test]
    fn format_finds_its_pattern() {
        let format = Format::new(Some("^<think>")).unwrap();
        assert_eq!(format.score(&sample("<think>a", "x")), Ok(1.0));
        assert_eq!(format.score(&sample("a<think>", "x")), Ok(0.0));
        assert!(
            Format::new(Some("("))
                .unwrap_err()
                .to_string()
                .contains("does not compile")
        );
    }

    #[test]
    fn length_takes_away_gradually() {
        let length = Length::new(Some(4)).unwrap();
        for (completion, reward) in [("abcd", 0.0), ("abcdef", -0.5), ("abcdefghijklm", -1.0)] {
            assert_eq!(length.score(&sample(completion, "x")), Ok(reward));
        }
        assert!(Length::new(Some(0)).is_err());
    }
}
