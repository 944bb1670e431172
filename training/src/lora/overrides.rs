//! Layers whose rank or scale is not the adapter's own (PEFT's `rank_pattern`, `alpha_pattern`, `use_rslora`).

use super::LoraError;
use gym_protocol::job::spec::LoraSpec;
use regex::Regex;

/// What an adapter's configuration says beside one rank and alpha for all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// Rank by regular expression over module paths.
    pub ranks: Vec<(String, u32)>,
    /// Alpha likewise.
    pub alphas: Vec<(String, f64)>,
    /// How alpha and rank make a scale.
    pub scaling: Scaling,
}

/// How alpha and rank make the scale of the adapter's product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scaling {
    /// alpha/r.
    #[default]
    ByRank,
    /// alpha/√r: rank-stabilised LoRA (Kalajdzievski 2023).
    ByRootOfRank,
}

/// Overrides ready to look layers up in.
pub(super) struct Lookup {
    rank: u32,
    alpha: f64,
    ranks: Vec<(Regex, u32)>,
    alphas: Vec<(Regex, f64)>,
    scaling: Scaling,
}

impl Lookup {
    pub(super) fn new(spec: &LoraSpec, overrides: &Overrides) -> Result<Self, LoraError> {
        Ok(Self {
            rank: spec.rank,
            alpha: spec.alpha,
            ranks: compile("rank_pattern", &overrides.ranks)?,
            alphas: compile("alpha_pattern", &overrides.alphas)?,
            scaling: overrides.scaling,
        })
    }

    /// Rank and scale of a layer.
    pub(super) fn of(&self, path: &str) -> (usize, f64) {
        let rank = first(&self.ranks, path).unwrap_or(self.rank);
        let alpha = first(&self.alphas, path).unwrap_or(self.alpha);
        let by = match self.scaling {
            Scaling::ByRank => f64::from(rank),
            Scaling::ByRootOfRank => f64::from(rank).sqrt(),
        };
        (rank as usize, alpha / by)
    }
}

/// As PEFT matches them: the whole path, or its end after a dot.
fn compile<T: Copy>(key: &'static str, patterns: &[(String, T)]) -> Result<Vec<(Regex, T)>, LoraError> {
    let one = |(pattern, value): &(String, T)| match Regex::new(&format!(r"^(.*\.)?({pattern})$")) {
        Ok(regex) => Ok((regex, *value)),
        Err(e) => Err(LoraError::Pattern {
            key,
            pattern: pattern.clone(),
            reason: e.to_string(),
        }),
    };
    patterns.iter().map(one).collect()
}

fn first<T: Copy>(patterns: &[(Regex, T)], path: &str) -> Option<T> {
    patterns
        .iter()
        .find(|(regex, _)| regex.is_match(path))
        .map(|(_, value)| *value)
}
