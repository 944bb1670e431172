//! Progress on standard error: a bar on a terminal, a plain line now and then elsewhere.

use super::output;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How often a plain line is printed.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Shows how far something is.
pub(super) struct Bar {
    what: &'static str,
    total: u64,
    bar: Option<ProgressBar>,
    last_line: Instant,
}

impl Bar {
    pub(super) fn new(what: &'static str, total: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {prefix} {msg} ETA {eta}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(total).with_style(style).with_prefix(what)
        });
        Self {
            what,
            total,
            bar,
            last_line: Instant::now(),
        }
    }

    /// `done` of the total are done; `message` says more.
    pub(super) fn at(&mut self, done: u64, message: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            bar.set_message(message.to_owned());
        } else if self.last_line.elapsed() >= LINE_EVERY || done == self.total {
            self.last_line = Instant::now();
            output::complain(format!("{done}/{} {} {message}", self.total, self.what).trim_end());
        }
    }

    /// Takes the bar away.
    pub(super) fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
