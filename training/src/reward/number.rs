//! `numeric`: the last number of the completion against the reference, as exact fractions.

use super::{RewardFunction, Sample, Unscored, reference};
use regex::{Captures, Regex};
use std::sync::LazyLock;

/// 1 when the completion's last number equals the reference's last number, else 0.
///
/// A completion without a number is wrong (0); a reference without one is a fault of the data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numeric;

impl RewardFunction for Numeric {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, Unscored> {
        let wanted = last_number(reference(sample.answer)).ok_or(Unscored::ReferenceHasNoNumber)?;
        let right = last_number(sample.completion) == Some(wanted);
        Ok(f64::from(u8::from(right)))
    }
}

/// A rational number in lowest terms with a positive denominator, so that equality is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Number {
    numerator: i128,
    denominator: i128,
}

impl Number {
    /// 0.
    pub(super) const ZERO: Self = Self::whole(0);
    /// 1.
    pub(super) const ONE: Self = Self::whole(1);

    pub(super) const fn whole(value: i128) -> Self {
        Self {
            numerator: value,
            denominator: 1,
        }
    }

    /// `None` when the denominator is 0 or a result does not fit.
    pub(super) fn new(numerator: i128, denominator: i128) -> Option<Self> {
        if denominator == 0 {
            return None;
        }
        let divisor = gcd(numerator.unsigned_abs(), denominator.unsigned_abs());
        let divisor = i128::try_from(divisor).ok()?.checked_mul(denominator.signum())?;
        Some(Self {
            numerator: numerator.checked_div(divisor)?,
            denominator: denominator.checked_div(divisor)?,
        })
    }

    pub(super) fn parts(self) -> (i128, i128) {
        (self.numerator, self.denominator)
    }

    pub(super) fn integer(self) -> Option<i128> {
        (self.denominator == 1).then_some(self.numerator)
    }

    pub(super) fn approximate(self) -> f64 {
        self.numerator as f64 / self.denominator as f64
    }

    pub(super) fn plus(self, other: Self) -> Option<Self> {
        let left = self.numerator.checked_mul(other.denominator)?;
        let right = other.numerator.checked_mul(self.denominator)?;
        Self::new(
            left.checked_add(right)?,
            self.denominator.checked_mul(other.denominator)?,
        )
    }

    pub(super) fn times(self, other: Self) -> Option<Self> {
        let numerator = self.numerator.checked_mul(other.numerator)?;
        Self::new(numerator, self.denominator.checked_mul(other.denominator)?)
    }

    pub(super) fn over(self, divisor: Self) -> Option<Self> {
        let numerator = self.numerator.checked_mul(divisor.denominator)?;
        let denominator = self.denominator.checked_mul(divisor.numerator)?;
        Self::new(numerator, denominator)
    }

    pub(super) fn negated(self) -> Self {
        Self {
            numerator: -self.numerator,
            ..self
        }
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

/// Digits with or without thousands separators, decimals, and an optional `/ denominator`.
const PATTERN: &str = r"(?x)
    (?<whole>\d{1,3}(?:,\d{3})+|\d+)? (?:\.(?<decimals>\d+))?
    (?: \s*/\s* (?<divisor>\d+) )?";

static NUMBER: LazyLock<Result<Regex, regex::Error>> = LazyLock::new(|| Regex::new(PATTERN));

/// The last number written in `text`: sign, thousands separators, decimals and `a/b` understood; currency and
/// units around it ignored. `None` when there is none, or none that fits 128 bits.
///
/// A minus sign right after a digit, a letter or a closing bracket is a subtraction: `12-7` ends in 7, `=-7` in −7.
#[must_use]
pub fn last_number(text: &str) -> Option<Number> {
    let regex = NUMBER.as_ref().ok()?;
    let found = regex.captures_iter(text).filter(|c| is_number(c)).last()?;
    let number = parse(&found)?;
    let start = found.get(0)?.start();
    Some(if is_negative(&text[..start]) {
        number.negated()
    } else {
        number
    })
}

/// The pattern also matches the empty string between characters.
fn is_number(found: &Captures<'_>) -> bool {
    found.name("whole").is_some() || found.name("decimals").is_some()
}

fn parse(found: &Captures<'_>) -> Option<Number> {
    let text = |name| found.name(name).map_or("", |m| m.as_str());
    let whole = text("whole").replace(',', "");
    let decimals = text("decimals").trim_end_matches('0');
    let digits = format!("0{whole}{decimals}");
    let scale = 10_i128.checked_pow(u32::try_from(decimals.len()).ok()?)?;
    let number = Number::new(digits.parse().ok()?, scale)?;
    match text("divisor") {
        "" => Some(number),
        divisor => number.over(Number::new(divisor.parse().ok()?, 1)?),
    }
}

fn is_negative(before: &str) -> bool {
    let before = before.trim_end_matches(['$', '€', '£']);
    let Some(rest) = before.strip_suffix(['-', '−']) else {
        return false;
    };
    !rest.ends_with(|c: char| c.is_alphanumeric() || matches!(c, ')' | ']' | '}'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn n(numerator: i128, denominator: i128) -> Option<Number> {
        Number::new(numerator, denominator)
    }

    #[test]
    fn the_pattern_compiles() {
        assert!(NUMBER.is_ok());
    }

    #[test]
    fn numbers_as_people_write_them() {
        let cases = [
            ("18", n(18, 1)),
            ("the answer is 1,234,567 dollars", n(1_234_567, 1)),
            ("$18.50.", n(37, 2)),
            ("-$5", n(-5, 1)),
            ("about 3/4 of it", n(3, 4)),
            ("6 / 8", n(3, 4)),
            (".5", n(1, 2)),
            ("5.000", n(5, 1)),
            ("12-7", n(7, 1)),
            ("x = −7", n(-7, 1)),
            ("33-66=-33+16=-17", n(-17, 1)),
            ("12+34=46 46-7=39 39", n(39, 1)),
            ("007", n(7, 1)),
            ("-0", n(0, 1)),
            ("50%", n(50, 1)),
            ("in 3 days, 12 km.", n(12, 1)),
            ("1/0", None),
            ("no number", None),
            ("", None),
            ("999999999999999999999999999999999999999999", None),
        ];
        for (text, number) in cases {
            assert_eq!(last_number(text), number, "{text}");
        }
    }

    #[test]
    fn the_reference_may_be_gsm8ks() {
        let row = serde_json::Value::Null;
        let sample = Sample {
            prompt: "",
            completion: "9 * 2 = <<9*2=18>>18",
            completion_tokens: 1,
            answer: "Janet sells 16 - 3 - 4 = 9 eggs.\n#### 18",
            row: &row,
        };
        assert_eq!(Numeric.score(&sample), Ok(1.0));
        assert_eq!(
            Numeric.score(&Sample {
                completion: "17",
                ..sample
            }),
            Ok(0.0)
        );
        assert_eq!(
            Numeric.score(&Sample {
                completion: "none",
                ..sample
            }),
            Ok(0.0)
        );
        let blank = Sample {
            answer: "#### many",
            ..sample
        };
        assert_eq!(Numeric.score(&blank), Err(Unscored::ReferenceHasNoNumber));
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in "\\PC*") {
            let _ = last_number(&text);
        }

        #[test]
        fn integers_come_back(value in any::<i64>()) {
            prop_assert_eq!(last_number(&format!("so: {value}")), n(i128::from(value), 1));
        }
    }
}
