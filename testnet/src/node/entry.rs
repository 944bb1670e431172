//! The child's side: the node's own `main`, and what makes it end with its parent.

use rustix::process::{Signal, getpid, kill_process};
use std::ffi::OsString;
use std::io::{self, Read};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

/// The first argument that makes this program a node.
pub const ENTRY: &str = "node";
/// Set by a parent that holds the other end of the child's standard input.
pub(super) const CHILD: &str = "GYM_TESTNET_CHILD";
/// How long a node may take to stop by itself once its parent is gone.
const GRACE: Duration = Duration::from_secs(5);

/// `hanzod ARGS` in this process.
#[must_use]
pub fn entry(args: &[OsString]) -> ExitCode {
    if std::env::var_os(CHILD).is_some() {
        end_with_parent();
    }
    let name = OsString::from("hanzod");
    hanzod::main_from(std::iter::once(&name).chain(args))
}

/// Two cords, so that none is left behind: the kernel's, which also ends a stopped process, and the parent's pipe,
/// which works where the kernel has none.
fn end_with_parent() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let _ = thread::Builder::new().name("parent".into()).spawn(|| {
        wait_for_end(&mut io::stdin().lock());
        let _ = kill_process(getpid(), Signal::TERM);
        thread::sleep(GRACE);
        std::process::exit(1);
    });
}

fn wait_for_end(pipe: &mut impl Read) {
    let mut sink = [0; 64];
    loop {
        match pipe.read(&mut sink) {
            Ok(0) => return,
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
