//! Progress in bytes on standard error: a bar with rate and time left on a terminal, a line now and then elsewhere.

use super::output;
use crate::content::command::Moved;
use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How often a plain line is printed.
const LINE_EVERY: Duration = Duration::from_secs(10);
const WITH_TOTAL: &str = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} ETA {eta}";
const WITHOUT: &str = "{spinner} {bytes} {bytes_per_sec}";

/// Shows how far a command is; nothing until it has moved.
pub(super) struct Bar {
    bar: Option<ProgressBar>,
    started: Instant,
    last_line: Instant,
}

impl Bar {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            bar: None,
            started: now,
            last_line: now,
        }
    }

    pub(super) fn at(&mut self, moved: Moved) {
        if std::io::stderr().is_terminal() {
            self.draw(moved);
        } else if self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            output::complain(&words(moved, self.started.elapsed()));
        }
    }

    fn draw(&mut self, moved: Moved) {
        let bar = self.bar.get_or_insert_with(|| ProgressBar::new(0));
        if bar.length() != Some(moved.total.unwrap_or(0)) {
            let template = if moved.total.is_some() {
                WITH_TOTAL
            } else {
                WITHOUT
            };
            bar.set_style(
                ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            bar.set_length(moved.total.unwrap_or(0));
        }
        bar.set_position(moved.bytes);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// How far it is, at the mean pace so far.
fn words(moved: Moved, elapsed: Duration) -> String {
    let rate = moved.bytes as f64 / elapsed.as_secs_f64().max(0.001);
    let done = HumanBytes(moved.bytes);
    match moved.total {
        Some(total) if rate > 0.0 => {
            let left = total.saturating_sub(moved.bytes) as f64 / rate;
            format!(
                "{done} of {}, {}/s, ETA {}",
                HumanBytes(total),
                HumanBytes(rate as u64),
                HumanDuration(Duration::from_secs_f64(left.min(1e9)))
            )
        }
        _ => format!("{done}, {}/s", HumanBytes(rate as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_rate_and_time_left() {
        let moved = Moved {
            bytes: 10 << 20,
            total: Some(40 << 20),
        };
        assert_eq!(
            words(moved, Duration::from_secs(10)),
            "10.00 MiB of 40.00 MiB, 1.00 MiB/s, ETA 30 seconds"
        );
        let open = Moved {
            bytes: 1 << 20,
            total: None,
        };
        assert_eq!(words(open, Duration::from_secs(1)), "1.00 MiB, 1.00 MiB/s");
    }
}
