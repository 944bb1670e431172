//! Progress in bytes on standard error: a bar with rate and time left on a terminal, a line now and then elsewhere.

use super::{output, pace};
use crate::content::command::Moved;
use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How often a plain line is printed.
const LINE_EVERY: Duration = Duration::from_secs(10);
const WITH_TOTAL: &str = "{bar:30} {msg}";
const WITHOUT: &str = "{spinner} {msg}";

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
        let bar = self
            .bar
            .get_or_insert_with(|| ProgressBar::no_length().with_style(style(None)));
        if bar.length() != moved.total {
            bar.set_style(style(moved.total));
            match moved.total {
                Some(total) => bar.set_length(total),
                None => bar.unset_length(),
            }
        }
        bar.tick();
        bar.set_position(moved.bytes);
        bar.set_message(words(moved, self.started.elapsed()));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style(total: Option<u64>) -> ProgressStyle {
    let template = if total.is_some() { WITH_TOTAL } else { WITHOUT };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// How far it is, at the mean pace so far of what was not here before.
fn words(moved: Moved, elapsed: Duration) -> String {
    if moved.bytes == 0 && moved.total.is_none() {
        return format!("looking for peers that have it, {} s", elapsed.as_secs());
    }
    let new = moved.bytes.saturating_sub(moved.held);
    let done = HumanBytes(moved.bytes);
    let speed = HumanBytes(pace::rate(new, elapsed) as u64);
    let Some(total) = moved.total else {
        return format!("{done}, {speed}/s");
    };
    let eta = pace::time_left(new, total.saturating_sub(moved.bytes), elapsed)
        .map_or(String::new(), |left| format!(", ETA {}", HumanDuration(left)));
    format!("{done} of {}, {speed}/s{eta}", HumanBytes(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_rate_and_time_left() {
        let moved = Moved {
            bytes: 10 << 20,
            total: Some(40 << 20),
            held: 0,
        };
        assert_eq!(
            words(moved, Duration::from_secs(10)),
            "10.00 MiB of 40.00 MiB, 1.00 MiB/s, ETA 30 seconds"
        );
        // What was here when it began did not come now.
        let resumed = Moved {
            bytes: 31 << 20,
            held: 30 << 20,
            ..moved
        };
        assert_eq!(
            words(resumed, Duration::from_secs(10)),
            "31.00 MiB of 40.00 MiB, 102.40 KiB/s, ETA 2 minutes"
        );
        let all_held = Moved {
            held: 31 << 20,
            ..resumed
        };
        assert_eq!(
            words(all_held, Duration::from_secs(10)),
            "31.00 MiB of 40.00 MiB, 0 B/s"
        );
        assert_eq!(
            words(Moved::default(), Duration::from_secs(12)),
            "looking for peers that have it, 12 s"
        );
        let open = Moved {
            bytes: 1 << 20,
            ..Moved::default()
        };
        assert_eq!(words(open, Duration::from_secs(1)), "1.00 MiB, 1.00 MiB/s");
    }
}
