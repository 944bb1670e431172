//! A member's process as the benchmark holds it: orders in, answers out, each with a deadline.

use super::words::{Answer, Order};
use anyhow::{Context, bail};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

/// How long a member may take to answer.
const ANSWER: Duration = Duration::from_secs(300);

/// A member's process; it ends with this value.
pub(super) struct Member {
    slot: u32,
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
}

impl Member {
    /// Starts this very program as a member, through a command of the caller's if there is one.
    pub(super) fn start(slot: u32, through: Option<&str>) -> anyhow::Result<Self> {
        let exe = std::env::current_exe().context("finding this program's own file")?;
        let words: Vec<String> = through
            .unwrap_or_default()
            .split_whitespace()
            .map(|w| super::numbered(w, slot))
            .collect();
        let mut command = match words.split_first() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(exe);
                command
            }
            None => Command::new(exe),
        };
        let mut child = command
            .args(["bench", "member"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting member {slot}"))?;
        let (Some(orders), Some(out)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("member {slot} has no pipes");
        };
        let (sender, answers) = sync_channel(4);
        std::thread::Builder::new()
            .name("answers".into())
            .spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self {
            slot,
            child,
            orders,
            answers,
        })
    }

    /// Gives an order.
    pub(super) fn order(&mut self, order: &Order) -> anyhow::Result<()> {
        let line = serde_json::to_string(order)?;
        writeln!(self.orders, "{line}").with_context(|| format!("member {} is gone", self.slot))?;
        self.orders.flush()?;
        Ok(())
    }

    /// The answer to it.
    pub(super) fn answer(&mut self) -> anyhow::Result<Answer> {
        let slot = self.slot;
        match self.answers.recv_timeout(ANSWER) {
            Ok(line) => {
                let answer = serde_json::from_str(&line)?;
                if let Answer::Failed(why) = answer {
                    bail!("member {slot}: {why}");
                }
                Ok(answer)
            }
            Err(RecvTimeoutError::Timeout) => bail!("member {slot} did not answer within {ANSWER:?}"),
            Err(RecvTimeoutError::Disconnected) => bail!("member {slot} ended"),
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
