//! Taking the network away from a child.

use std::process::{Child, Command};

/// How a program is kept from the network.
#[derive(Clone, Debug)]
pub(super) enum Isolation {
    /// New sockets but local ones are refused by a seccomp filter.
    #[cfg(target_os = "linux")]
    Seccomp(seccompiler::BpfProgram),
    /// It is not.
    None,
}

impl Isolation {
    /// What this machine offers, tried in a thread of its own; a warning when it is nothing.
    pub(super) fn probe() -> Self {
        match offered() {
            Ok(isolation) => isolation,
            Err(reason) => {
                tracing::warn!(%reason, "reward programs keep the network here");
                Self::None
            }
        }
    }

    /// Whether the network is taken away.
    #[cfg(test)]
    pub(super) fn is_effective(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Starts `command` so: from a thread that has given the network up, which its children inherit.
    pub(super) fn spawn(&self, command: &mut Command) -> std::io::Result<Child> {
        let start = || {
            self.apply().map_err(std::io::Error::other)?;
            command.spawn()
        };
        std::thread::scope(|scope| {
            let started = std::thread::Builder::new().spawn_scoped(scope, start)?;
            let panicked = |_| std::io::Error::other("the starting thread panicked");
            started.join().map_err(panicked)?
        })
    }

    #[cfg(target_os = "linux")]
    fn apply(&self) -> Result<(), String> {
        match self {
            Self::Seccomp(filter) => seccompiler::apply_filter(filter).map_err(|e| e.to_string()),
            Self::None => Ok(()),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn apply(&self) -> Result<(), String> {
        Ok(())
    }
}

#[cfg(target_os = "linux")]
fn offered() -> Result<Isolation, String> {
    let isolation = Isolation::Seccomp(filter().map_err(|e| e.to_string())?);
    std::thread::scope(|scope| {
        let tried = scope.spawn(|| isolation.apply()).join();
        tried.map_err(|_| "the trying thread panicked".to_owned())?
    })?;
    Ok(isolation)
}

#[cfg(not(target_os = "linux"))]
fn offered() -> Result<Isolation, String> {
    Err("only Linux has seccomp".to_owned())
}

/// socket(2) of any family but AF_UNIX, and io_uring, which opens sockets too, fail with EPERM.
#[cfg(target_os = "linux")]
fn filter() -> Result<seccompiler::BpfProgram, seccompiler::BackendError> {
    use seccompiler::{
        SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
        TargetArch,
    };
    const AF_UNIX: u64 = 1;
    const EPERM: u32 = 1;
    const SOCKET: i64 = if cfg!(target_arch = "x86_64") { 41 } else { 198 };
    const IO_URING_SETUP: i64 = 425;
    /// On x86-64 the x32 calls have the same architecture and this bit.
    const X32: i64 = 0x4000_0000;
    let foreign = SeccompRule::new(vec![SeccompCondition::new(
        0,
        SeccompCmpArgLen::Dword,
        SeccompCmpOp::Ne,
        AF_UNIX,
    )?])?;
    let rules = [
        (SOCKET, vec![foreign.clone()]),
        (IO_URING_SETUP, Vec::new()),
        (SOCKET | X32, vec![foreign]),
        (IO_URING_SETUP | X32, Vec::new()),
    ];
    SeccompFilter::new(
        rules.into_iter().collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(EPERM),
        TargetArch::try_from(std::env::consts::ARCH)?,
    )?
    .try_into()
}
