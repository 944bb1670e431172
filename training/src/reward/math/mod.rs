//! `math`: equivalence of answers written in LaTeX or plainly.
//!
//! An answer is cleaned of spacing and aliases, parsed into exact rational arithmetic over variables, roots and
//! functions, and compared. 1/2, 0.5 and \frac{1}{2} are one number, 0.333 and 1/3 are not; √12 is 2√3, (x+1)² is
//! x²+2x+1. Points, intervals, sets, matrices and relations are compared part by part, words without regard to case.
//! Units after a number, degrees and currency do not count; 50 % is 50, and 0.5.

mod clean;
mod extract;
mod fraction;
mod parse;
mod poly;
#[cfg(test)]
mod tests;
mod token;
mod value;

use super::{RewardFunction, Sample, Unscored, last_number, reference};

/// 1 when the completion's answer equals the reference's, else 0.
///
/// The answer of a completion is the inside of its last `\boxed{…}` (of several joined by "and", all), else what follows its last
/// "answer is" or "####", else its last formula, else its last line (of which the last number counts when the reference is
/// one); or the whole completion is the reference, line by line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Math;

impl RewardFunction for Math {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, Unscored> {
        let wanted = extract::wanted(reference(sample.answer));
        if wanted.trim().is_empty() {
            return Err(Unscored::ReferenceEmpty);
        }
        let given = extract::answer(sample.completion);
        let right =
            equal(&given, &wanted) || ends_in(&given, &wanted) || sample.completion.trim() == wanted.trim();
        Ok(f64::from(u8::from(right)))
    }
}

/// Whether two answers say the same.
#[must_use]
pub fn equal(given: &str, wanted: &str) -> bool {
    let (given, wanted) = (clean::clean(given), clean::clean(wanted));
    if given.is_empty() || wanted.is_empty() {
        return false;
    }
    given == wanted || parse::parse(&given).equals(&parse::parse(&wanted))
}

/// "so there are 18 eggs" against 18: a sentence is read as its last number.
fn ends_in(given: &str, wanted: &str) -> bool {
    let cleaned = clean::clean(wanted);
    let plain = !cleaned.is_empty()
        && cleaned
            .chars()
            .all(|c| c.is_ascii_digit() || matches!(c, '.' | ',' | '-' | '/'));
    let sentence = given.split_whitespace().count() > 2
        && given.contains(|c: char| c.is_alphabetic())
        && !given.contains('\\');
    plain && sentence && last_number(&cleaned).is_some() && last_number(given) == last_number(&cleaned)
}
