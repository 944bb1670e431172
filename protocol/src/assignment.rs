//! Which questions a member draws in a round (PROTOCOL section 5): nobody can compute them before the beacon is known.

use crate::cbor::sha3_256;
use crate::ids::{CidBytes, Hash32, Rank};

/// The questions of a round in the order its beacon gives them: by SHA3-256(job ‖ beacon ‖ u64 row).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundRows {
    order: Vec<u64>,
}

impl RoundRows {
    /// Orders `rows` questions; `job` is the job's id.
    #[must_use]
    pub fn new(job: &CidBytes, beacon: &Hash32, rows: u64) -> Self {
        let key = |row: u64| sha3_256(&[job.as_bytes(), &beacon.0, &row.to_le_bytes()]);
        let mut keyed: Vec<(Hash32, u64)> = (0..rows).map(|row| (key(row), row)).collect();
        keyed.sort_unstable();
        Self {
            order: keyed.into_iter().map(|(_, row)| row).collect(),
        }
    }

    /// The rows that member `k` of `members` draws, without end: places k, k + N, …, counted around the set, so that
    /// no two members draw one row while the set lasts. Empty when there are no rows or no members.
    pub fn of_member(&self, k: Rank, members: u32) -> impl Iterator<Item = u64> + '_ {
        let some = !self.order.is_empty() && members > 0;
        let (first, step, rows) = (u64::from(k.0), u64::from(members), self.order.len().max(1) as u64);
        let draws = if some { u64::MAX } else { 0 };
        (0..draws).map(move |i| self.order[place(first, i, step, rows)])
    }
}

fn place(first: u64, draw: u64, step: u64, rows: u64) -> usize {
    ((u128::from(first) + u128::from(draw) * u128::from(step)) % u128::from(rows)) as usize
}

/// Rounds that pass over the questions `epochs` times: ⌈epochs·questions / (workers·interval·prompts per step)⌉, at
/// least 1. Zero counts are taken as 1.
#[must_use]
pub fn rounds_for_epochs(
    epochs: f64,
    questions: u64,
    workers: u32,
    interval: u32,
    prompts_per_step: u32,
) -> u64 {
    let per_round = [workers, interval, prompts_per_step]
        .into_iter()
        .map(|n| f64::from(n.max(1)));
    let rounds = epochs * questions as f64 / per_round.product::<f64>();
    (rounds.ceil() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn rows(n: u64, beacon: u8) -> RoundRows {
        RoundRows::new(&CidBytes::new(vec![1, 2, 3]).unwrap(), &Hash32([beacon; 32]), n)
    }

    #[test]
    fn the_order_is_that_of_the_hashes() {
        let key = |row: u64| {
            let bytes = [&[1, 2, 3][..], &[9; 32], &row.to_le_bytes()].concat();
            cbor_hash(&bytes)
        };
        let order = rows(50, 9).order;
        assert!(order.windows(2).all(|w| key(w[0]) < key(w[1])));
        assert_eq!(order.iter().copied().collect::<BTreeSet<_>>(), (0..50).collect());
        assert_ne!(order, rows(50, 8).order);
    }

    fn cbor_hash(bytes: &[u8]) -> Hash32 {
        crate::cbor::object_hash(bytes)
    }

    #[test]
    fn members_share_nothing_while_the_set_lasts() {
        for members in [1, 2, 3, 4, 7] {
            let rows = rows(50, 1);
            let each = 50 / members as usize;
            let drawn: Vec<u64> = (0..members)
                .flat_map(|k| rows.of_member(Rank(k), members).take(each).collect::<Vec<_>>())
                .collect();
            let distinct: BTreeSet<_> = drawn.iter().collect();
            assert_eq!(distinct.len(), drawn.len(), "{members} members");
        }
    }

    #[test]
    fn the_set_is_cycled() {
        let rows = rows(5, 1);
        let drawn: Vec<u64> = rows.of_member(Rank(1), 2).take(7).collect();
        let places = [1, 3, 0, 2, 4, 1, 3];
        assert_eq!(drawn, places.map(|p| rows.order[p]));
        assert_eq!(
            rows.of_member(Rank(9), 12).take(1).collect::<Vec<_>>(),
            [rows.order[4]],
            "fewer rows than members"
        );
    }

    #[test]
    fn no_rows_or_members_draw_nothing() {
        assert_eq!(rows(0, 1).of_member(Rank(0), 2).count(), 0);
        assert_eq!(rows(5, 1).of_member(Rank(0), 0).count(), 0);
    }

    #[test]
    fn epochs_are_whole_rounds() {
        assert_eq!(rounds_for_epochs(1.0, 2000, 4, 8, 4), 16);
        assert_eq!(rounds_for_epochs(1.0, 2001, 4, 8, 4), 16);
        assert_eq!(rounds_for_epochs(1.0, 2049, 4, 8, 4), 17);
        assert_eq!(rounds_for_epochs(0.5, 2000, 4, 8, 4), 8);
        assert_eq!(rounds_for_epochs(1e-9, 1, 64, 50, 4), 1);
    }
}
