//! Survival scenarios: real processes, one thing that goes wrong, and what must come of it.

mod assets;
mod inputs;
mod killed;
mod lab;
mod lying;
mod places;
mod silent;

use crate::args::FaultArgs;
use crate::folder::RunFolder;
use crate::interrupt::Interrupt;
use crate::node::Program;
use crate::output::{complain, line};
use anyhow::{Context, bail};
use std::time::Instant;

/// Where a scenario is played.
#[derive(Clone, Debug)]
pub struct Stage {
    /// What the nodes run.
    pub program: Program,
    /// Where their homes are.
    pub folder: RunFolder,
    /// Whether the user wants an end.
    pub interrupt: Interrupt,
}

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What must come of it.
    pub about: &'static str,
    play: fn(&Stage) -> anyhow::Result<()>,
}

/// Every scenario.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "killed-in-train",
        about: "a worker killed while it trains: the round closes without it, started again it is back",
        play: killed::in_train,
    },
    Scenario {
        name: "killed-in-commit",
        about: "a worker killed before its commit has receipts: the round closes without it, it comes back",
        play: killed::in_commit,
    },
    Scenario {
        name: "killed-in-reduce",
        about: "a worker killed in the ring: a holder contributes its committed delta, it comes back",
        play: killed::in_reduce,
    },
    Scenario {
        name: "killed-in-grid",
        about: "the same where four workers are summed in a grid of two by two",
        play: killed::in_grid,
    },
    Scenario {
        name: "silent-in-train",
        about: "a worker whose training never ends: the round closes without it",
        play: silent::in_train,
    },
    Scenario {
        name: "silent-in-reduce",
        about: "a worker that sends nothing in the ring: a holder contributes its committed delta",
        play: silent::in_reduce,
    },
    Scenario {
        name: "frozen",
        about: "a stopped process that goes on later: the job ends well",
        play: silent::frozen,
    },
    Scenario {
        name: "wrong-round",
        about: "chunks for the wrong round: refused, counted, said on both sides, the delta still summed",
        play: lying::wrong_round,
    },
    Scenario {
        name: "truncated",
        about: "truncated chunks: refused, counted, said on both sides, the delta still summed",
        play: lying::truncated,
    },
    Scenario {
        name: "bad-tag",
        about: "chunks with a bad tag: refused, counted, said on both sides, the delta still summed",
        play: lying::bad_tag,
    },
    Scenario {
        name: "nan-delta",
        about: "a delta with a NaN: left out, counted, said on both sides",
        play: lying::nan_delta,
    },
    Scenario {
        name: "other-state",
        about: "a state hash that differs: not signed, counted, said on both sides, the state is loaded anew",
        play: lying::other_state,
    },
    Scenario {
        name: "bad-job",
        about: "a typo, a missing tensor, a broken question line: told with place and remedy; the next job runs",
        play: inputs::bad_job,
    },
    Scenario {
        name: "place-taken",
        about: "a port or a home in use: told with what to do; the one who holds it goes on",
        play: places::taken,
    },
    Scenario {
        name: "full-disk",
        about: "no space left: told with place and remedy; what was stored is kept",
        play: places::full_disk,
    },
];

/// Plays the scenario `name`.
///
/// # Errors
/// When there is none, or what did not come as it must.
pub fn play(name: &str, stage: &Stage) -> anyhow::Result<()> {
    let found = ALL.iter().find(|s| s.name == name);
    let found =
        found.with_context(|| format!("there is no scenario {name}; testnet faults --list shows them"))?;
    (found.play)(stage).with_context(|| format!("scenario {name} in {}", stage.folder.root().display()))
}

/// `testnet faults`.
pub(crate) fn main(args: &FaultArgs) -> anyhow::Result<()> {
    if args.list {
        ALL.iter()
            .for_each(|s| line(&format!("{:18} {}", s.name, s.about)));
        return Ok(());
    }
    let interrupt = Interrupt::listen()?;
    let names: Vec<&str> = match args.names.as_slice() {
        [] => ALL.iter().map(|s| s.name).collect(),
        given => given.iter().map(String::as_str).collect(),
    };
    let folder = RunFolder::create(None)?;
    let mut failed = Vec::new();
    for name in names {
        interrupt.check()?;
        let folder = RunFolder::create(Some(&folder.root().join(name)))?;
        let stage = Stage {
            program: Program::current()?,
            folder,
            interrupt: interrupt.clone(),
        };
        let started = Instant::now();
        match play(name, &stage) {
            Ok(()) => line(&format!(
                "{name:18} ok     {:.1} s",
                started.elapsed().as_secs_f64()
            )),
            Err(error) => {
                line(&format!(
                    "{name:18} FAILED {:.1} s",
                    started.elapsed().as_secs_f64()
                ));
                complain(&format!("{error:#}"));
                failed.push(name);
            }
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}
