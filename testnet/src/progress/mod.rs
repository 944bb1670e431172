//! Progress on standard error: bars on a terminal, plain lines elsewhere.

mod bars;
mod lines;

use crate::board::Board;
use crate::event::{Event, Kind};
use bars::Bars;
use lines::Lines;
use std::io::IsTerminal;

/// Shows a run.
pub(crate) enum Progress {
    /// A terminal.
    Bars(Bars),
    /// A file or a pipe.
    Lines(Lines),
}

impl Progress {
    /// Bars when standard error is a terminal.
    pub(crate) fn new() -> Self {
        if std::io::stderr().is_terminal() {
            Self::Bars(Bars::new())
        } else {
            Self::Lines(Lines::new())
        }
    }

    /// A new stage of the run, in words.
    pub(crate) fn stage(&mut self, words: &str) {
        match self {
            Self::Bars(bars) => bars.stage(words),
            Self::Lines(lines) => lines.say(words),
        }
    }

    /// An event was taken by the board.
    pub(crate) fn event(&mut self, board: &Board, node: &str, event: &Event) {
        if let Some(words) = worth_a_line(board, node, event) {
            match self {
                Self::Bars(bars) => bars.note(&words),
                Self::Lines(lines) => lines.say(&words),
            }
        }
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, board: &Board) {
        match self {
            Self::Bars(bars) => bars.show(board),
            Self::Lines(lines) => lines.show(board),
        }
    }

    /// Nothing more is shown.
    pub(crate) fn finish(&mut self) {
        if let Self::Bars(bars) = self {
            bars.finish();
        }
    }
}

/// Few things are said above the bars: what went wrong, and each closed round where there are no bars.
fn worth_a_line(board: &Board, node: &str, event: &Event) -> Option<String> {
    match &event.kind {
        Kind::Offence {
            peer,
            offence,
            detail,
        } => Some(format!("{node}: {}: {offence}: {detail}", short(peer))),
        Kind::Closed(closed)
            if board
                .closed
                .get(&closed.round)
                .is_some_and(|c| c.left_out.is_empty()) =>
        {
            None
        }
        Kind::Closed(closed) if node.starts_with("orchestrator") => {
            let out = closed
                .left_out
                .iter()
                .map(|l| format!("{} ({})", short(&l.member), l.reason));
            Some(format!(
                "round {} closed without {}",
                closed.round + 1,
                out.collect::<Vec<_>>().join(", ")
            ))
        }
        Kind::Finished { standing, why } if standing != "done" && node.starts_with("orchestrator") => {
            Some(format!(
                "the job ended: {standing}: {}",
                why.as_deref().unwrap_or("no reason given")
            ))
        }
        Kind::Closed(_)
        | Kind::Finished { .. }
        | Kind::Notice { .. }
        | Kind::Doing { .. }
        | Kind::Round { .. }
        | Kind::Step { .. }
        | Kind::Report { .. }
        | Kind::Other => None,
    }
}

/// The end of a peer id: their beginnings are all alike.
pub(crate) fn short(peer: &str) -> &str {
    peer.get(peer.len().saturating_sub(6)..).unwrap_or(peer)
}
