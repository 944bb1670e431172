//! The program that children run.

use super::entry::{CHILD, ENTRY};
use crate::netlab::Space;
use anyhow::{Context, bail};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Variables of the user's own node must not reach these.
const NODE_VARIABLES: &str = "HANZOD_";

/// An executable for which `EXE node ARGS` is `hanzod ARGS`.
#[derive(Clone, Debug)]
pub struct Program {
    exe: PathBuf,
}

impl Program {
    /// This very program.
    ///
    /// # Errors
    /// When the system does not say where it is.
    pub fn current() -> anyhow::Result<Self> {
        Ok(Self {
            exe: std::env::current_exe().context("finding this program's own file")?,
        })
    }

    /// The `testnet` at `exe`.
    #[must_use]
    pub fn at(exe: &Path) -> Self {
        Self {
            exe: exe.to_path_buf(),
        }
    }

    /// Runs a command of the node's to its end and gives its standard output.
    ///
    /// # Errors
    /// When it fails, with its last error.
    pub fn run<S: AsRef<OsStr>>(&self, home: &Path, args: &[S]) -> anyhow::Result<String> {
        let done = self
            .command(home, args, None)
            .stdin(Stdio::null())
            .output()
            .context("starting the node's command")?;
        let words = String::from_utf8_lossy(&done.stderr);
        if !done.status.success() {
            // An error may be several lines long: a place in a file is shown.
            let error = words
                .rfind("error: ")
                .map_or(words.trim(), |at| words[at + 7..].trim());
            bail!(
                "{}",
                if error.is_empty() {
                    "it failed and did not say why"
                } else {
                    error
                }
            );
        }
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }

    /// A child that ends with this process: the caller gives it a pipe as standard input.
    pub(super) fn child<S: AsRef<OsStr>>(&self, home: &Path, args: &[S], space: Option<&Space>) -> Command {
        let mut command = self.command(home, args, space);
        command.env(CHILD, "1").stdin(Stdio::piped());
        command
    }

    /// A command of the node's, in a process group of its own: Ctrl-C at the terminal reaches the parent alone, which
    /// then ends its children in order.
    fn command<S: AsRef<OsStr>>(&self, home: &Path, args: &[S], space: Option<&Space>) -> Command {
        let mut command = match space {
            // `ip` becomes the node: the process that is started is the one to signal.
            Some(space) => {
                let mut ip = Command::new("ip");
                ip.args(["netns", "exec", &space.name]).arg(&self.exe);
                ip
            }
            None => Command::new(&self.exe),
        };
        command.arg(ENTRY).args(args).arg("--home").arg(home);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with(NODE_VARIABLES) {
                command.env_remove(name);
            }
        }
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command
    }
}
