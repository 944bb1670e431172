//! The order of the slots from measured links (PROTOCOL section 6): the ring whose slowest edge is fastest.
//!
//! A greedy tour is improved by 2-opt until no exchange of two edges makes it shorter, then until none removes a slowest
//! edge, and shorter again below that edge. All choices are by index: equal costs give one order.

use super::Layout;

/// What it costs to send a segment from one member to another and back, the same both ways: row-major, `n` × `n`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs {
    n: usize,
    cost: Vec<u32>,
}

impl Costs {
    /// Costs of `n` members; `of(i, j)` is asked once for each i < j.
    #[must_use]
    pub fn new(n: usize, of: impl Fn(usize, usize) -> u32) -> Self {
        let mut cost = vec![0; n * n];
        for i in 0..n {
            for j in i + 1..n {
                let c = of(i, j);
                cost[i * n + j] = c;
                cost[j * n + i] = c;
            }
        }
        Self { n, cost }
    }

    fn of(&self, i: usize, j: usize) -> u64 {
        self.cost.get(i * self.n + j).copied().unwrap_or(0).into()
    }

    /// The slowest edge of a ring, and the sum of all.
    #[must_use]
    pub fn of_ring(&self, ring: &[usize]) -> (u64, u64) {
        edges(ring).fold((0, 0), |(slowest, sum), (a, b)| {
            let c = self.of(a, b);
            (slowest.max(c), sum + c)
        })
    }
}

fn edges(ring: &[usize]) -> impl Iterator<Item = (usize, usize)> {
    ring.iter().copied().zip(ring.iter().copied().cycle().skip(1))
}

/// Members in the order of a layout's entries: a ring, or rows that are arcs of one, turned so that columns are near.
#[must_use]
pub fn order(costs: &Costs, layout: Layout) -> Vec<usize> {
    let ring = best_ring(costs, greedy(costs));
    let Some(grid) = layout.grid() else { return ring };
    let mut rows: Vec<Vec<usize>> = Vec::new();
    let mut rest = ring.as_slice();
    for row in 0..grid.rows {
        let slots = row * grid.columns..(row + 1) * grid.columns;
        let there = slots.filter(|slot| layout.entry(*slot).is_some()).count();
        let (arc, after) = rest.split_at(there.min(rest.len()));
        rest = after;
        let arc = best_ring(costs, arc.to_vec());
        rows.push(match rows.last() {
            Some(before) => turned_to(costs, before, &arc),
            None => arc,
        });
    }
    rows.concat()
}

/// From the first member always to the nearest one left.
fn greedy(costs: &Costs) -> Vec<usize> {
    let mut left: Vec<usize> = (1..costs.n).collect();
    let mut ring: Vec<usize> = (0..costs.n.min(1)).collect();
    while let Some(last) = ring.last().copied() {
        let nearest = (0..left.len()).min_by_key(|i| (costs.of(last, left[*i]), left[*i]));
        let Some(nearest) = nearest else { break };
        ring.push(left.remove(nearest));
    }
    ring
}

fn best_ring(costs: &Costs, mut ring: Vec<usize>) -> Vec<usize> {
    two_opt(&mut ring, |old, new| new.0 + new.1 < old.0 + old.1, costs);
    loop {
        let (slowest, _) = costs.of_ring(&ring);
        let removes =
            |old: (u64, u64), new: (u64, u64)| old.0.max(old.1) == slowest && new.0.max(new.1) < slowest;
        let shorter =
            |old: (u64, u64), new: (u64, u64)| new.0.max(new.1) < slowest && new.0 + new.1 < old.0 + old.1;
        if !two_opt(&mut ring, removes, costs) {
            return ring;
        }
        two_opt(&mut ring, shorter, costs);
    }
}

/// Exchanges pairs of edges while `better(old pair, new pair)`; whether it did.
fn two_opt(ring: &mut [usize], better: impl Fn((u64, u64), (u64, u64)) -> bool, costs: &Costs) -> bool {
    let n = ring.len();
    let mut changed = false;
    let mut again = n > 3;
    while again {
        again = false;
        for i in 0..n - 1 {
            for j in i + 2..n {
                let (a, b, c, d) = (ring[i], ring[i + 1], ring[j], ring[(j + 1) % n]);
                if a == d {
                    continue;
                }
                let old = (costs.of(a, b), costs.of(c, d));
                let new = (costs.of(a, c), costs.of(b, d));
                if better(old, new) {
                    ring[i + 1..=j].reverse();
                    again = true;
                    changed = true;
                }
            }
        }
    }
    changed
}

/// The row turned, or reversed and turned, so that its members are near those of the row before.
fn turned_to(costs: &Costs, before: &[usize], row: &[usize]) -> Vec<usize> {
    let reversed: Vec<usize> = row.iter().rev().copied().collect();
    let turns = [row, &reversed].into_iter().flat_map(|way| {
        (0..way.len()).map(move |k| {
            let mut turned = way.to_vec();
            turned.rotate_left(k);
            turned
        })
    });
    let distance = |turned: &Vec<usize>| -> (u64, u64) {
        let columns = before.iter().zip(turned).map(|(a, b)| costs.of(*a, *b));
        columns.fold((0, 0), |(sum, slowest), c| (sum + c, slowest.max(c)))
    };
    turns.min_by_key(distance).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    /// Members on a plane in clusters, as continents have them.
    fn world(n: usize, clusters: usize, seed: u64) -> Costs {
        let mut rng = StdRng::seed_from_u64(seed);
        let centre: Vec<(f64, f64)> = (0..clusters).map(|_| (rng.random(), rng.random())).collect();
        let at: Vec<(f64, f64)> = (0..n)
            .map(|_| {
                let (x, y) = centre[rng.random_range(0..clusters)];
                (x + 0.05 * rng.random::<f64>(), y + 0.05 * rng.random::<f64>())
            })
            .collect();
        Costs::new(n, |i, j| {
            ((at[i].0 - at[j].0).hypot(at[i].1 - at[j].1) * 1e5) as u32
        })
    }

    #[test]
    fn four_members_in_a_line_are_not_crossed() {
        let costs = Costs::new(4, |i, j| (j - i) as u32 * 10);
        let ring = order(&costs, Layout::flat(4));
        assert_eq!(
            costs.of_ring(&ring).0,
            20,
            "0 2 3 1 has no edge over 20: {ring:?}"
        );
    }

    #[test]
    fn a_measured_order_beats_an_arbitrary_one() {
        let costs = world(200, 5, 1);
        let (slowest, sum) = costs.of_ring(&order(&costs, Layout::flat(200)));
        let arbitrary: Vec<usize> = (0..200).collect();
        let (slowest_before, sum_before) = costs.of_ring(&arbitrary);
        assert!(
            slowest <= slowest_before && sum * 4 < sum_before,
            "{slowest} {sum} of {slowest_before} {sum_before}"
        );
    }

    #[test]
    fn rows_of_a_grid_are_near() {
        let (n, layout) = (100, Layout::for_members(100, 64));
        let costs = world(n, 5, 2);
        let entries = order(&costs, layout);
        let sum = |entries: &[usize]| -> u64 { entries.chunks(10).map(|row| costs.of_ring(row).1).sum() };
        let arbitrary: Vec<usize> = (0..n).collect();
        assert!(sum(&entries) * 3 < sum(&arbitrary));
    }

    proptest! {
        #[test]
        fn every_member_is_in_the_order_once(n in 0usize..90, seed in 0u64..100, flat_ring_max in 3u32..100) {
            let costs = world(n, 3, seed);
            let layout = Layout::for_members(n as u32, flat_ring_max);
            let mut entries = order(&costs, layout);
            prop_assert_eq!(&entries, &order(&costs, layout), "the same again");
            entries.sort_unstable();
            prop_assert_eq!(entries, (0..n).collect::<Vec<_>>());
        }

        #[test]
        fn no_exchange_of_two_edges_removes_a_slowest_one(n in 4usize..40, seed in 0u64..100) {
            let costs = world(n, 4, seed);
            let ring = order(&costs, Layout::flat(n as u32));
            let (slowest, _) = costs.of_ring(&ring);
            for i in 0..n {
                for j in i + 1..n {
                    let mut other = ring.clone();
                    other[i..=j].reverse();
                    let count = |r: &[usize]| edges(r).filter(|(a, b)| costs.of(*a, *b) >= slowest).count();
                    prop_assert!(count(&other) >= count(&ring));
                }
            }
        }
    }
}
