//! Progress on standard error: a bar on a terminal, a plain line now and then elsewhere.

use super::{output, pace};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How often a plain line is printed.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Shows how far something is.
pub(super) struct Bar {
    what: &'static str,
    /// Done before this program started.
    from: u64,
    total: u64,
    bar: Option<ProgressBar>,
    started: Instant,
    last_line: Instant,
}

impl Bar {
    pub(super) fn new(what: &'static str, total: u64) -> Self {
        Self::resumed(what, 0, total)
    }

    /// `from` of the total were done earlier.
    pub(super) fn resumed(what: &'static str, from: u64, total: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {prefix} {msg} ETA {eta}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = ProgressBar::new(total).with_style(style).with_prefix(what);
            bar.set_position(from);
            bar.reset_eta();
            bar
        });
        let now = Instant::now();
        Self {
            what,
            from,
            total,
            bar,
            started: now,
            last_line: now,
        }
    }

    /// `done` of the total are done; `message` says more.
    pub(super) fn at(&mut self, done: u64, message: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            bar.set_message(message.to_owned());
        } else if self.last_line.elapsed() >= LINE_EVERY || done == self.total {
            self.last_line = Instant::now();
            let eta = self.eta(done);
            output::complain(format!("{done}/{} {} {message}{eta}", self.total, self.what).trim_end());
        }
    }

    /// Prints something that stays.
    pub(super) fn aside(&self, message: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| output::complain(message)),
            None => output::complain(message),
        }
    }

    /// What is left at the mean pace so far, for a plain line.
    fn eta(&self, done: u64) -> String {
        let (new, left) = (done.saturating_sub(self.from), self.total.saturating_sub(done));
        match pace::time_left(new, left, self.started.elapsed()) {
            Some(time) if left > 0 => format!(" ETA {}", indicatif::HumanDuration(time)),
            _ => String::new(),
        }
    }

    /// Takes the bar away.
    pub(super) fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
