//! Where slots stand: in one ring, or in the rows and columns of a grid (PROTOCOL section 6).

use crate::message::Phase;
use serde::{Deserialize, Serialize};

/// Rows and columns of a grid. Slot `row · columns + column`; the first contributions fill it row by row.
///
/// Where there are fewer contributions than places, the last rows lack their last place each. Such a missing slot adds
/// zeros and is served by its successor, the first slot of its row: along the row nothing more travels, along the column
/// one share more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grid {
    /// Rows, at least 2.
    pub rows: u32,
    /// Slots of a row, at least 2.
    pub columns: u32,
}

impl Grid {
    /// The grid for `entries` contributions: the fewest hops, where a missing slot costs as much as one hop in `columns`.
    /// `None` for fewer than four.
    #[must_use]
    pub fn of(entries: u32) -> Option<Self> {
        let cost = |g: &Self| {
            let missing = u64::from(g.rows * g.columns > entries);
            // (rows + columns) · (1 + missing / columns), times a common multiple to stay in whole numbers.
            let hops = u64::from(g.rows + g.columns);
            u128::from(hops * (u64::from(g.columns) + missing)) * (1 << 40) / u128::from(g.columns)
        };
        let most = entries.min(4096) / 2;
        (2..=most)
            .map(|rows| Self {
                rows,
                columns: entries.div_ceil(rows),
            })
            .filter(|g| g.fits(entries))
            .min_by_key(|g| (cost(g), g.rows))
    }

    /// Whether the grid has a place for each of `entries`, and at most one missing slot a row.
    #[must_use]
    pub fn fits(&self, entries: u32) -> bool {
        let places = u64::from(self.rows) * u64::from(self.columns);
        let entries = u64::from(entries);
        self.rows >= 2
            && self.columns >= 2
            && places >= entries
            && places - entries <= u64::from(self.rows)
            && places <= u64::from(u32::MAX)
    }
}

/// The line a segment travels along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// The ring, or a row of the grid.
    Row,
    /// A column of the grid.
    Column,
}

impl Phase {
    /// The line its segments travel along.
    #[must_use]
    pub fn axis(self) -> Axis {
        match self {
            Self::ScaleReduce | Self::ScaleGather | Self::ScatterReduce | Self::AllGather => Axis::Row,
            Self::ColumnScaleReduce
            | Self::ColumnScaleGather
            | Self::ColumnScatterReduce
            | Self::ColumnAllGather => Axis::Column,
        }
    }
}

/// Slots and contributions of one manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    entries: u32,
    grid: Option<Grid>,
}

impl Layout {
    /// One ring of `entries` slots.
    #[must_use]
    pub fn flat(entries: u32) -> Self {
        Self { entries, grid: None }
    }

    /// A ring, or the given grid. `None` when the grid does not fit.
    #[must_use]
    pub fn new(entries: u32, grid: Option<Grid>) -> Option<Self> {
        grid.is_none_or(|g| g.fits(entries))
            .then_some(Self { entries, grid })
    }

    /// What the protocol asks for: a ring up to `flat_ring_max`, a grid above.
    #[must_use]
    pub fn for_members(entries: u32, flat_ring_max: u32) -> Self {
        let grid = (entries > flat_ring_max).then(|| Grid::of(entries)).flatten();
        Self { entries, grid }
    }

    /// The grid, if it is one.
    #[must_use]
    pub fn grid(&self) -> Option<Grid> {
        self.grid
    }

    /// Slots, missing ones included.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.grid.map_or(self.entries, |g| g.rows * g.columns)
    }

    /// Contributions.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// The contribution at a slot; `None` where one is missing.
    #[must_use]
    pub fn entry(&self, slot: u32) -> Option<u32> {
        let Some(g) = self.grid else {
            return (slot < self.entries).then_some(slot);
        };
        let (row, column) = (slot / g.columns, slot % g.columns);
        let short = self.missing_before(g, row);
        let is_short = row < g.rows && self.missing_before(g, row + 1) > short;
        let there = row < g.rows && !(is_short && column + 1 == g.columns);
        there.then(|| slot - short)
    }

    /// The contribution whose server also serves this slot: its own, or the successor's.
    #[must_use]
    pub fn served_as(&self, slot: u32) -> Option<u32> {
        self.entry(slot)
            .or_else(|| self.entry(self.next(slot, Axis::Row)))
    }

    /// Missing slots in the rows before `row`: the last rows are the short ones.
    fn missing_before(&self, g: Grid, row: u32) -> u32 {
        let full = g.rows - (g.rows * g.columns - self.entries);
        row.saturating_sub(full)
    }

    /// The slot after.
    #[must_use]
    pub fn next(&self, slot: u32, axis: Axis) -> u32 {
        self.step(slot, axis, Direction::Forth)
    }

    /// The slot before.
    #[must_use]
    pub fn before(&self, slot: u32, axis: Axis) -> u32 {
        self.step(slot, axis, Direction::Back)
    }

    fn step(&self, slot: u32, axis: Axis, direction: Direction) -> u32 {
        let Some(g) = self.grid else {
            return direction.turn(slot, self.entries);
        };
        let (row, column) = (slot / g.columns, slot % g.columns);
        match axis {
            Axis::Row => row * g.columns + direction.turn(column, g.columns),
            Axis::Column => direction.turn(row, g.rows) * g.columns + column,
        }
    }

    /// The lines there are.
    #[must_use]
    pub fn axes(&self) -> &'static [Axis] {
        match self.grid {
            None => &[Axis::Row],
            Some(_) => &[Axis::Row, Axis::Column],
        }
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Forth,
    Back,
}

impl Direction {
    fn turn(self, i: u32, n: u32) -> u32 {
        let i = i.checked_rem(n).unwrap_or(0);
        match self {
            Self::Forth if i + 1 >= n => 0,
            Self::Forth => i + 1,
            Self::Back => i.checked_sub(1).unwrap_or(n.saturating_sub(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_are_near_square_and_prefer_none_missing() {
        let shape = |n| Grid::of(n).map(|g| (g.rows, g.columns));
        assert_eq!(shape(3), None);
        assert_eq!(shape(4), Some((2, 2)));
        assert_eq!(shape(100), Some((10, 10)));
        assert_eq!(shape(1000), Some((25, 40)));
        let (a, b) = shape(997).unwrap();
        assert!(a * b >= 997 && a + b <= 66, "{a} × {b}");
    }

    #[test]
    fn every_contribution_has_one_slot_and_every_slot_a_server() {
        for n in 4..400 {
            let layout = Layout::for_members(n, 3);
            let g = layout.grid().unwrap();
            assert!(g.fits(n), "{n}: {g:?}");
            let at: Vec<u32> = (0..layout.slots()).filter_map(|s| layout.entry(s)).collect();
            assert_eq!(at, (0..n).collect::<Vec<_>>(), "{n}: {g:?}");
            for slot in 0..layout.slots() {
                assert!(layout.served_as(slot).is_some(), "{n}: {g:?} slot {slot}");
                for axis in layout.axes() {
                    assert_eq!(layout.before(layout.next(slot, *axis), *axis), slot);
                }
            }
            assert_eq!(layout.entry(layout.slots()), None);
        }
    }

    #[test]
    fn a_grid_that_does_not_fit_is_refused() {
        let grid = |rows, columns| Some(Grid { rows, columns });
        assert!(Layout::new(10, grid(3, 4)).is_some());
        assert!(Layout::new(13, grid(3, 4)).is_none(), "too small");
        assert!(Layout::new(8, grid(3, 4)).is_none(), "two missing in a row");
        assert!(Layout::new(4, grid(1, 4)).is_none());
        assert!(Layout::new(7, grid(u32::MAX, u32::MAX)).is_none());
        assert!(Layout::new(7, None).is_some());
    }
}
