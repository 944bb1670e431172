//! Plain lines: one for each stage and closed round, and a sign of life between them.

use super::bars::{eta, line, overall};
use crate::board::Board;
use crate::output::complain;
use std::time::{Duration, Instant};

/// The longest silence while workers work.
const EVERY: Duration = Duration::from_secs(15);

/// Progress in a file or pipe.
pub(crate) struct Lines {
    started: Instant,
    training: Option<Instant>,
    said: Instant,
    closed: usize,
}

impl Lines {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            started: now,
            training: None,
            said: now,
            closed: 0,
        }
    }

    pub(super) fn say(&mut self, words: &str) {
        self.said = Instant::now();
        complain(&format!(
            "{:>6.1} s  {words}",
            self.started.elapsed().as_secs_f64()
        ));
    }

    pub(super) fn show(&mut self, board: &Board) {
        let since = self.training.get_or_insert_with(Instant::now).elapsed();
        let (done, steps) = board.steps();
        if board.closed.len() > self.closed {
            self.closed = board.closed.len();
            self.say(&overall(board, eta(since, done, steps)));
        } else if self.said.elapsed() >= EVERY {
            for (name, worker) in &board.workers {
                self.say(&format!(
                    "{name}: step {}/{}  {}",
                    worker.step,
                    board.interval,
                    line(worker)
                ));
            }
        }
    }
}
