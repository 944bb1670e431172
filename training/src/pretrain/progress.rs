//! Showing a run: a bar with the time left on a terminal, a plain line now and then elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// What is known after a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Steps done.
    pub step: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// Nats a completion token.
    pub loss: f64,
    /// Global norm before clipping.
    pub gradient_norm: f64,
    /// Rate of this step.
    pub learning_rate: f64,
    /// Tokens seen, padding left out.
    pub tokens: u64,
    /// Tokens a second since this process began.
    pub tokens_per_second: f64,
}

/// Draws progress on standard error.
pub fn observer() -> Box<dyn FnMut(&Progress)> {
    if std::io::stderr().is_terminal() {
        Box::new(bar())
    } else {
        Box::new(lines)
    }
}

fn bar() -> impl FnMut(&Progress) {
    const TEMPLATE: &str = "{bar:30} {pos}/{len} {msg} ETA {eta}";
    let style = ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(0).with_style(style);
    move |p| {
        bar.set_length(p.steps);
        bar.set_position(p.step);
        bar.set_message(format!("loss {:.3} {:.0} tok/s", p.loss, p.tokens_per_second));
        if p.step == p.steps {
            bar.finish();
        }
    }
}

fn lines(p: &Progress) {
    if p.step.is_multiple_of(50) || p.step == p.steps {
        let left = (p.steps - p.step) as f64 * p.tokens as f64 / p.step as f64 / p.tokens_per_second;
        eprintln!(
            "step {}/{} loss {:.4} norm {:.2} rate {:.1e} {:.0} tok/s, {:.0} s left",
            p.step, p.steps, p.loss, p.gradient_norm, p.learning_rate, p.tokens_per_second, left
        );
    }
}
