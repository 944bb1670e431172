//! Differences, collected by quantity.

use super::Kind;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// How a difference is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// |got − want|.
    Absolute,
    /// |got − want| over the largest |want| of its tensor.
    Relative,
    /// Places that differ.
    Exact,
}

/// The largest difference of one quantity.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// What is compared, as the set names it.
    pub quantity: String,
    /// How.
    pub measure: Measure,
    /// The largest difference, or the number of differing places. Infinite when a value is not finite.
    pub worst: f64,
    /// What is allowed.
    pub tolerance: f64,
    /// Where it is largest.
    pub place: String,
    /// Values compared.
    pub values: usize,
}

impl Check {
    /// Whether it is within its tolerance.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.worst <= self.tolerance && self.values > 0
    }
}

/// What came of one set.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The directory.
    pub dir: PathBuf,
    /// Its kind.
    pub kind: String,
    /// One entry a quantity.
    pub checks: Vec<Check>,
    /// What is missing, unknown or cannot be computed.
    pub problems: Vec<String>,
}

impl Report {
    /// Whether every quantity was there, known and within its tolerance.
    #[must_use]
    pub fn passes(&self) -> bool {
        !self.checks.is_empty() && self.problems.is_empty() && self.checks.iter().all(Check::passes)
    }
}

/// A quantity with its tolerance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quantity<'a> {
    pub(super) name: &'a str,
    pub(super) measure: Measure,
    pub(super) tolerance: f64,
}

impl<'a> Quantity<'a> {
    pub(super) fn absolute(name: &'a str, tolerance: f64) -> Self {
        Self {
            name,
            measure: Measure::Absolute,
            tolerance,
        }
    }

    pub(super) fn relative(name: &'a str, tolerance: f64) -> Self {
        Self {
            name,
            measure: Measure::Relative,
            tolerance,
        }
    }
}

/// The quantities of a set under comparison.
#[derive(Debug, Default)]
pub(super) struct Tally {
    checks: Vec<Check>,
    problems: Vec<String>,
}

impl Tally {
    /// Compares number by number; another count of numbers is a problem.
    pub(super) fn numbers(&mut self, what: Quantity<'_>, place: &str, got: &[f64], want: &[f64]) {
        if got.len() != want.len() {
            return self.problem(format!(
                "{} at {place}: {} values where the reference has {}",
                what.name,
                got.len(),
                want.len()
            ));
        }
        let scale = match what.measure {
            Measure::Relative => want
                .iter()
                .fold(0f64, |m, v| m.max(v.abs()))
                .max(f64::MIN_POSITIVE),
            Measure::Absolute | Measure::Exact => 1.0,
        };
        let differences = got.iter().zip(want).map(|(got, want)| {
            let difference = (got - want).abs() / scale;
            if difference.is_finite() {
                difference
            } else {
                f64::INFINITY
            }
        });
        let worst = differences.fold(0.0, f64::max);
        self.add(what, place, worst, got.len());
    }

    /// One number.
    pub(super) fn number(&mut self, what: Quantity<'_>, place: &str, got: f64, want: f64) {
        self.numbers(what, place, &[got], &[want]);
    }

    /// Values that must be equal.
    pub(super) fn exact<T: PartialEq>(&mut self, name: &str, place: &str, got: &[T], want: &[T]) {
        let differing = got.iter().zip(want).filter(|(a, b)| a != b).count();
        let missing = got.len().abs_diff(want.len());
        let what = Quantity {
            name,
            measure: Measure::Exact,
            tolerance: 0.0,
        };
        let before = self
            .checks
            .iter()
            .find(|c| c.quantity == name)
            .map_or(0.0, |c| c.worst);
        // Differing places are counted over the whole set.
        let worst = (differing + missing) as f64;
        let worst = if worst > 0.0 { worst + before } else { 0.0 };
        self.add(what, place, worst, got.len().max(want.len()));
    }

    pub(super) fn problem(&mut self, text: String) {
        self.problems.push(text);
    }

    pub(super) fn report(self, dir: &Path, kind: Kind) -> Report {
        Report {
            dir: dir.to_owned(),
            kind: kind.to_string(),
            checks: self.checks,
            problems: self.problems,
        }
    }

    fn add(&mut self, what: Quantity<'_>, place: &str, worst: f64, values: usize) {
        let known = self
            .checks
            .iter_mut()
            .find(|c| c.quantity == what.name && c.tolerance == what.tolerance);
        match known {
            Some(check) => {
                check.values += values;
                if worst > check.worst {
                    check.worst = worst;
                    place.clone_into(&mut check.place);
                }
            }
            None => self.checks.push(Check {
                quantity: what.name.to_owned(),
                measure: what.measure,
                worst,
                tolerance: what.tolerance,
                place: place.to_owned(),
                values,
            }),
        }
    }
}
