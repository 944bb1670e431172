//! A chosen token and by how much it won.

/// A token chosen by less than this, in nats, may be another in another batch, where matrix products round otherwise.
/// Logits of one prompt differ by a few millionths between batches.
pub const NEAR_TIE: f64 = 1e-4;

/// The chosen token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The token.
    pub token: u32,
    /// Its score less the second best; infinite when there is no second.
    pub margin: f64,
}

impl Choice {
    /// The likeliest token; the lowest index on a tie. `None` for an empty row or one that holds a NaN throughout.
    #[must_use]
    pub fn greedy(scores: &[f64]) -> Option<Self> {
        let mut top = TopTwo::default();
        for (token, score) in scores.iter().enumerate() {
            top.add(token as u32, *score);
        }
        top.choice()
    }

    /// Whether it won by less than [`NEAR_TIE`].
    #[must_use]
    pub fn is_near_tie(&self) -> bool {
        self.margin < NEAR_TIE
    }
}

/// The best two of a row.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TopTwo {
    best: Option<(u32, f64)>,
    second: Option<f64>,
}

impl TopTwo {
    /// NaN is no score.
    pub(super) fn add(&mut self, token: u32, score: f64) {
        if score.is_nan() {
            return;
        }
        match self.best {
            Some((_, best)) if score <= best => {
                self.second = Some(self.second.map_or(score, |second| second.max(score)));
            }
            before => {
                self.second = before.map(|(_, best)| best);
                self.best = Some((token, score));
            }
        }
    }

    /// What a sum must exceed to be one of the two; `None` before two were added.
    pub(super) fn second(&self) -> Option<f64> {
        self.second
    }

    pub(super) fn choice(self) -> Option<Choice> {
        let (token, best) = self.best?;
        let margin = match self.second {
            // Two of −∞ have no difference.
            Some(second) if second > f64::NEG_INFINITY => best - second,
            _ => f64::INFINITY,
        };
        Some(Choice { token, margin })
    }
}
