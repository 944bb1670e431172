//! One run of a program: input in, lines out, by a deadline.

use super::super::Unscored;
use super::isolate::Isolation;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// The longest answer: a number needs no more.
const MAX_LINE: usize = 1024;
/// How much of a failed program's last words is logged.
const MAX_ERROR: usize = 2048;
/// How often the end of a program is looked for.
const POLL: Duration = Duration::from_millis(2);
/// How long output is waited for after a program has ended: a child of its own may hold the pipe.
const AFTER_EXIT: Duration = Duration::from_millis(200);
/// Variables that a program keeps.
const ENVIRONMENT: [&str; 8] = [
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
];

/// What to run and what to expect.
pub(super) struct Task<'a> {
    pub(super) program: &'a [String],
    pub(super) isolation: &'a Isolation,
    pub(super) input: Vec<u8>,
    /// Lines that a good run writes.
    pub(super) answers: usize,
    pub(super) deadline: Instant,
}

/// One result a line; an error when the run as a whole is not good.
pub(super) fn run(task: &Task<'_>) -> Result<Vec<Result<f64, Unscored>>, Unscored> {
    let mut running = Running::start(task)?;
    let outcome = running.answers(task);
    running.end();
    if let Err(reason) = &outcome {
        tracing::debug!(%reason, stderr = %running.last_words(), "a reward program failed");
    }
    outcome
}

/// A program under way with the threads at its pipes. Those end when their pipe does.
struct Running {
    child: Child,
    group: Option<Pid>,
    output: Receiver<Vec<u8>>,
    errors: Receiver<Vec<u8>>,
}

impl Running {
    fn start(task: &Task<'_>) -> Result<Self, Unscored> {
        let failed = |_| Unscored::ProgramStart;
        let mut child = task
            .isolation
            .spawn(&mut command(task.program))
            .map_err(|error| {
                tracing::warn!(program = ?task.program, %error, "a reward program does not start");
                Unscored::ProgramStart
            })?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let (to_output, output) = sync_channel(4);
        let (to_errors, errors) = sync_channel(1);
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let running = Self {
            child,
            group,
            output,
            errors,
        };
        let input = task.input.clone();
        let thread = std::thread::Builder::new;
        // A program may end before it has read everything; that is its own affair.
        thread()
            .spawn(move || stdin.map(|mut stdin| stdin.write_all(&input)))
            .map_err(failed)?;
        thread()
            .spawn(move || read_chunks(stdout, |chunk| to_output.send(chunk.to_vec()).is_ok()))
            .map_err(failed)?;
        thread()
            .spawn(move || {
                let mut kept = Vec::new();
                read_chunks(stderr, |chunk| {
                    kept.extend_from_slice(&chunk[..chunk.len().min(MAX_ERROR - kept.len())]);
                    true
                });
                let _ = to_errors.send(kept);
            })
            .map_err(failed)?;
        Ok(running)
    }

    fn answers(&self, task: &Task<'_>) -> Result<Vec<Result<f64, Unscored>>, Unscored> {
        let mut lines = Lines::new(task.answers);
        let mut deadline = task.deadline;
        let mut ended = None;
        loop {
            if lines.is_complete() && ended.is_none() {
                ended = Some(self.wait(task.deadline)?);
                deadline = deadline.min(Instant::now() + AFTER_EXIT);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(chunk) => lines.add(&chunk)?,
                Err(RecvTimeoutError::Timeout) if ended.is_some() => break,
                Err(RecvTimeoutError::Timeout) => return Err(Unscored::ProgramTimeout),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let good = match ended {
            Some(good) => good,
            None => self.wait(task.deadline)?,
        };
        if !good {
            return Err(Unscored::ProgramExit);
        }
        lines.finish()
    }

    /// Whether the program ended well. It stays a zombie until [`Self::end`], so that its group's id is nobody else's.
    fn wait(&self, deadline: Instant) -> Result<bool, Unscored> {
        let group = self.group.ok_or(Unscored::ProgramStart)?;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        loop {
            match waitid(WaitId::Pid(group), options) {
                Ok(Some(status)) => return Ok(status.exit_status() == Some(0)),
                Ok(None) if Instant::now() >= deadline => return Err(Unscored::ProgramTimeout),
                Ok(None) => std::thread::sleep(POLL),
                Err(_) => return Err(Unscored::ProgramExit),
            }
        }
    }

    /// Kills the group, then takes the program's exit.
    fn end(&mut self) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }

    fn last_words(&self) -> String {
        let kept = self.errors.recv_timeout(AFTER_EXIT).unwrap_or_default();
        String::from_utf8_lossy(&kept).trim().to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Reaped already, or not at all if a thread could not be made.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

fn command(program: &[String]) -> Command {
    let mut command = Command::new(&program[0]);
    let kept = ENVIRONMENT
        .iter()
        .filter_map(|key| Some((key, std::env::var_os(key)?)));
    command
        .args(&program[1..])
        .env_clear()
        .envs(kept)
        .env("PYTHONUNBUFFERED", "1")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Gives what is read to `take` until it wants no more or the pipe ends.
fn read_chunks(pipe: Option<impl Read>, mut take: impl FnMut(&[u8]) -> bool) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = pipe.read(&mut buffer) {
        if !take(&buffer[..length]) {
            return;
        }
    }
}

/// Answers as they come; never more than wanted, never a long one.
struct Lines {
    wanted: usize,
    answers: Vec<Result<f64, Unscored>>,
    rest: Vec<u8>,
}

impl Lines {
    fn new(wanted: usize) -> Self {
        Self {
            wanted,
            answers: Vec::new(),
            rest: Vec::new(),
        }
    }

    fn is_complete(&self) -> bool {
        self.answers.len() == self.wanted
    }

    fn add(&mut self, chunk: &[u8]) -> Result<(), Unscored> {
        for byte in chunk {
            if *byte != b'\n' {
                self.rest.push(*byte);
                if self.rest.len() > MAX_LINE {
                    return Err(Unscored::ProgramOutput);
                }
                continue;
            }
            if self.is_complete() {
                return Err(Unscored::ProgramOutput);
            }
            self.take()?;
        }
        Ok(())
    }

    /// The answers, the last line's end being optional.
    fn finish(mut self) -> Result<Vec<Result<f64, Unscored>>, Unscored> {
        if !self.rest.iter().all(u8::is_ascii_whitespace) {
            if self.is_complete() {
                return Err(Unscored::ProgramOutput);
            }
            self.take()?;
        }
        if self.is_complete() {
            Ok(self.answers)
        } else {
            Err(Unscored::ProgramSilent)
        }
    }

    fn take(&mut self) -> Result<(), Unscored> {
        let line = std::mem::take(&mut self.rest);
        let text = std::str::from_utf8(&line)
            .map_err(|_| Unscored::ProgramGarbage)?
            .trim();
        let answer = match serde_json::from_str::<Option<f64>>(text) {
            Ok(Some(value)) if value.is_finite() => Ok(value),
            Ok(None) => Err(Unscored::ProgramNull),
            _ if is_not_finite(text) => Err(Unscored::ProgramNotFinite),
            _ => return Err(Unscored::ProgramGarbage),
        };
        self.answers.push(answer);
        Ok(())
    }
}

/// What Python, JavaScript and C write for such numbers, or one too large: 1e999.
fn is_not_finite(text: &str) -> bool {
    text.parse::<f64>().is_ok_and(|value| !value.is_finite())
}
