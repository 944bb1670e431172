//! Sampling noise as a pure function of public numbers (PROTOCOL section 7, item 2).

use super::choice::{Choice, TopTwo};
use super::philox::{Key, derive_key, philox, unit};
use sha3::{Digest, Sha3_256};

/// The public numbers that a round's rollouts of one member share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutKey {
    /// The job's CID; empty off the network.
    pub job: Vec<u8>,
    /// The round's beacon.
    pub beacon: [u8; 32],
    /// The member's place in the roster.
    pub roster_index: u32,
}

impl RolloutKey {
    /// The key off the network: no job, beacon = SHA3-256(u64 seed), index 0.
    #[must_use]
    pub fn offline(seed: u64) -> Self {
        Self {
            job: Vec::new(),
            beacon: Sha3_256::digest(seed.to_le_bytes()).into(),
            roster_index: 0,
        }
    }

    /// The noise of one completion: the `sample`-th of question `row` in local step `step`.
    #[must_use]
    pub fn noise(&self, step: u32, row: u64, sample: u32) -> Noise {
        let key = derive_key(&[
            b"gym/noise/v1",
            &self.job,
            &self.beacon,
            &self.roster_index.to_le_bytes(),
            &step.to_le_bytes(),
            &row.to_le_bytes(),
            &sample.to_le_bytes(),
        ]);
        Noise { key }
    }
}

/// Gumbel noise for every (completion position, token) of one completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noise {
    key: Key,
}

/// No noise exceeds another by this much: −ln(−ln u) lies between −2.853 and 17.329, u being bounded.
pub const GUMBEL_SPAN: f64 = 20.3;

impl Noise {
    /// Noise under a key that is already derived.
    #[must_use]
    pub fn from_key(key: Key) -> Self {
        Self { key }
    }

    /// The noise of the four tokens 4·block … 4·block + 3.
    #[must_use]
    pub fn block(&self, block: u32, position: u32) -> [f64; 4] {
        philox([block, position, 0, 0], self.key).map(|word| gumbel(unit(word)))
    }

    /// arg max over tokens of `scores[v] + g(v)`; the lowest index on a tie. `scores` are logits divided by the
    /// temperature; a filtered token is −∞. `None` when no score is finite.
    #[must_use]
    pub fn choose(&self, scores: &[f64], position: u32) -> Option<u32> {
        self.choice(scores, position).map(|choice| choice.token)
    }

    /// The same with its margin.
    ///
    /// Tokens more than [`GUMBEL_SPAN`] below the best score cannot win, so their noise is not computed; nor are the
    /// logarithms of a u so small that even the best score would come third with it.
    #[must_use]
    pub fn choice(&self, scores: &[f64], position: u32) -> Option<Choice> {
        let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if !best.is_finite() {
            return None;
        }
        let mut top = TopTwo::default();
        let mut least = 0.0;
        for (block, group) in scores.chunks(4).enumerate() {
            if group.iter().all(|s| best - s > GUMBEL_SPAN) {
                continue;
            }
            let words = philox([block as u32, position, 0, 0], self.key);
            for (i, (score, word)) in group.iter().zip(words).enumerate() {
                let u = unit(word);
                if u >= least {
                    top.add((block * 4 + i) as u32, score + gumbel(u));
                    least = top.second().map_or(0.0, |second| least_reaching(second - best));
                }
            }
        }
        top.choice()
    }
}

/// A u below which −ln(−ln u) is surely less than `noise`, rounding included.
fn least_reaching(noise: f64) -> f64 {
    (-(-noise).exp()).exp() * (1.0 - 1e-9)
}

/// −ln(−ln u).
#[must_use]
pub fn gumbel(u: f64) -> f64 {
    -(-u.ln()).ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::units;

    /// Every sum computed.
    fn exhaustive(noise: Noise, scores: &[f64], position: u32) -> Option<Choice> {
        let mut top = TopTwo::default();
        for (token, score) in scores.iter().enumerate() {
            let g = noise.block(token as u32 / 4, position)[token % 4];
            top.add(token as u32, score + g);
        }
        top.choice()
    }

    #[test]
    fn what_is_skipped_could_not_have_won() {
        let key = RolloutKey::offline(3);
        for (sample, spread) in [0.0, 0.1, 2.0, 30.0].into_iter().cycle().take(400).enumerate() {
            let noise = key.noise(1, sample as u64, 0);
            let stream = derive_key(&[&sample.to_le_bytes()]);
            let mut scores: Vec<f64> = units(stream, 203).map(|u| u * spread).collect();
            scores[sample % 203] = f64::NEG_INFINITY;
            let position = sample as u32 / 7;
            assert_eq!(
                noise.choice(&scores, position),
                exhaustive(noise, &scores, position)
            );
        }
    }
}
