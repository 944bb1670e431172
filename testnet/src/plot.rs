//! The reward plot: a line for each worker and their mean over rounds.

use crate::board::Board;
use gym_training::plot::{Labels, PlotError, Series, write_chart};
use std::collections::BTreeMap;
use std::path::Path;

const LABELS: Labels<'_> = Labels {
    title: "Reward while training",
    x: "local step",
    y: "mean reward of the step",
};

/// Draws the board's rewards into a PNG.
pub(crate) fn write(path: &Path, board: &Board) -> Result<(), PlotError> {
    write_chart(path, LABELS, &series(board))
}

fn series(board: &Board) -> Vec<Series> {
    let mut lines: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    let mut rounds: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    let interval = u64::from(board.interval).max(1);
    for point in &board.points {
        lines
            .entry(&point.worker)
            .or_default()
            .push((point.step as f64, point.reward));
        let (sum, count) = rounds.entry(point.step.saturating_sub(1) / interval).or_default();
        *sum += point.reward;
        *count += 1.0;
    }
    let middle = |round: u64| (round * interval) as f64 + (interval as f64 + 1.0) / 2.0;
    let mean = rounds
        .into_iter()
        .map(|(round, (sum, count))| (middle(round), sum / count))
        .collect();
    let workers = lines.into_iter().map(|(name, points)| Series {
        name: name.to_owned(),
        points,
    });
    workers
        .chain([Series {
            name: "mean of a round".to_owned(),
            points: mean,
        }])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::Point;

    #[test]
    fn a_rounds_mean_stands_in_its_middle() {
        let point = |worker: &str, step, reward| Point {
            worker: worker.to_owned(),
            step,
            reward,
        };
        let points = vec![point("a", 1, 0.0), point("b", 2, 1.0), point("a", 3, 1.0)];
        let board = Board {
            interval: 2,
            points,
            ..Board::default()
        };
        let lines = series(&board);
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[2].points, [(1.5, 0.5), (3.5, 1.0)]);
    }
}
