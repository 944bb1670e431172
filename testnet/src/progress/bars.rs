//! A bar for each worker and one for the whole.

use crate::board::{Board, Worker};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const WORKER: &str = "{prefix:12} {bar:24.cyan/blue} {pos:>2}/{len} {wide_msg}";
const WHOLE: &str = "{prefix:12} {bar:24.green/blue} {percent:>3} %  {elapsed}  {wide_msg}";
const STAGE: &str = "{spinner} {wide_msg}";
const TICK: Duration = Duration::from_millis(120);

/// Progress on a terminal.
pub(crate) struct Bars {
    all: MultiProgress,
    stage: ProgressBar,
    whole: Option<ProgressBar>,
    workers: BTreeMap<String, ProgressBar>,
    started: Instant,
}

impl Bars {
    pub(super) fn new() -> Self {
        let all = MultiProgress::new();
        let stage = all.add(ProgressBar::new_spinner().with_style(style(STAGE)));
        stage.enable_steady_tick(TICK);
        Self {
            all,
            stage,
            whole: None,
            workers: BTreeMap::new(),
            started: Instant::now(),
        }
    }

    pub(super) fn stage(&mut self, words: &str) {
        self.stage.set_message(words.to_owned());
    }

    /// A line above the bars.
    pub(super) fn note(&mut self, words: &str) {
        let _ = self.all.println(words);
    }

    pub(super) fn show(&mut self, board: &Board) {
        let (done, steps) = board.steps();
        let whole = match &self.whole {
            Some(whole) => whole,
            None => {
                self.started = Instant::now();
                let bar = ProgressBar::new(steps.max(1))
                    .with_style(style(WHOLE))
                    .with_prefix("all");
                self.whole.insert(self.all.add(bar))
            }
        };
        whole.set_length(steps.max(1));
        whole.set_position(done);
        whole.set_message(overall(board, eta(self.started.elapsed(), done, steps)));
        for (name, worker) in &board.workers {
            let bar = self.workers.entry(name.clone()).or_insert_with(|| {
                let bar = ProgressBar::new(1)
                    .with_style(style(WORKER))
                    .with_prefix(name.clone());
                self.all.add(bar)
            });
            bar.set_length(u64::from(board.interval));
            bar.set_position(u64::from(worker.step));
            bar.set_message(line(worker));
        }
    }

    pub(super) fn finish(&mut self) {
        self.stage.finish_and_clear();
        self.workers
            .values()
            .chain(&self.whole)
            .for_each(ProgressBar::abandon);
    }
}

/// The rest of the time if steps go on as they did.
pub(super) fn eta(elapsed: Duration, done: u64, all: u64) -> Option<Duration> {
    let left = all.checked_sub(done)?;
    (done > 0).then(|| Duration::from_secs_f64(elapsed.as_secs_f64() * left as f64 / done as f64))
}

/// A worker in a few words.
pub(super) fn line(worker: &Worker) -> String {
    let reward = worker.reward.map_or("-".to_owned(), |r| format!("{r:.3}"));
    format!(
        "round {}  reward {reward}  {:.0} tokens/s  {}",
        worker.round + 1,
        worker.tokens_per_second,
        worker.doing
    )
}

/// The job in a few words.
pub(super) fn overall(board: &Board, eta: Option<Duration>) -> String {
    let reward = board.reward().map_or("-".to_owned(), |r| format!("{r:.3}"));
    let eta = eta.map_or("-".to_owned(), |eta| format!("{} s", eta.as_secs()));
    format!(
        "{}/{} rounds closed  reward {reward}  ETA {eta}  {}",
        board.closed.len(),
        board.rounds,
        board.doing
    )
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_parse() {
        for template in [WORKER, WHOLE, STAGE] {
            ProgressStyle::with_template(template).unwrap();
        }
    }

    #[test]
    fn the_rest_follows_from_the_pace() {
        assert_eq!(eta(Duration::from_secs(10), 5, 20), Some(Duration::from_secs(30)));
        assert_eq!(eta(Duration::from_secs(10), 0, 20), None);
    }
}
