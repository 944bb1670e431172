//! Survival scenarios: real processes, one thing that goes wrong, and what must come of it.

mod assets;
mod inputs;
mod killed;
mod lab;
mod links;
mod lying;
mod partition;
mod places;
mod recovery;
mod sequencer;
mod several;
mod silent;
mod steps;

pub use recovery::{Recoveries, Recovery};

use crate::args::FaultArgs;
use crate::folder::RunFolder;
use crate::interrupt::Interrupt;
use crate::node::Program;
use crate::output::{complain, line};
use anyhow::{Context, bail};
use serde_json::{Value, json};
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
    /// What is measured on it.
    pub recoveries: Recoveries,
}

/// Where a scenario is played, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// On loopback; each is a test.
    Loopback,
    /// In network namespaces; continuous integration plays them.
    Quick,
    /// Anywhere; longer, for people.
    Long,
}

impl Set {
    /// The option that has it played, where it takes one.
    fn flag(self) -> Option<&'static str> {
        match self {
            Self::Loopback => None,
            Self::Quick => Some("--quick"),
            Self::Long => Some("--all"),
        }
    }
}

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What must come of it.
    pub about: &'static str,
    /// Where and when it is played.
    pub set: Set,
    play: fn(&Stage) -> anyhow::Result<()>,
}

/// Every scenario.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "killed-in-train",
        about: "a worker killed while it trains: the round closes without it, started again it is back",
        set: Set::Loopback,
        play: killed::in_train,
    },
    Scenario {
        name: "killed-in-commit",
        about: "a worker killed before its commit has receipts: the round closes without it, it comes back",
        set: Set::Loopback,
        play: killed::in_commit,
    },
    Scenario {
        name: "killed-in-reduce",
        about: "a worker killed in the ring: a holder contributes its committed delta, it comes back",
        set: Set::Loopback,
        play: killed::in_reduce,
    },
    Scenario {
        name: "killed-in-grid",
        about: "the same where four workers are summed in a grid of two by two",
        set: Set::Loopback,
        play: killed::in_grid,
    },
    Scenario {
        name: "silent-in-train",
        about: "a worker whose training never ends: the round closes without it",
        set: Set::Loopback,
        play: silent::in_train,
    },
    Scenario {
        name: "silent-in-reduce",
        about: "a worker that sends nothing in the ring: a holder contributes its committed delta",
        set: Set::Loopback,
        play: silent::in_reduce,
    },
    Scenario {
        name: "frozen",
        about: "a stopped process that goes on later: the job ends well",
        set: Set::Loopback,
        play: silent::frozen,
    },
    Scenario {
        name: "wrong-round",
        about: "chunks for the wrong round: refused, counted, said on both sides, the delta still summed",
        set: Set::Loopback,
        play: lying::wrong_round,
    },
    Scenario {
        name: "truncated",
        about: "truncated chunks: refused, counted, said on both sides, the delta still summed",
        set: Set::Loopback,
        play: lying::truncated,
    },
    Scenario {
        name: "bad-tag",
        about: "chunks with a bad tag: refused, counted, said on both sides, the delta still summed",
        set: Set::Loopback,
        play: lying::bad_tag,
    },
    Scenario {
        name: "nan-delta",
        about: "a delta with a NaN: left out, counted, said on both sides",
        set: Set::Loopback,
        play: lying::nan_delta,
    },
    Scenario {
        name: "other-state",
        about: "a state hash that differs: not signed, counted, said on both sides, the state is loaded anew",
        set: Set::Loopback,
        play: lying::other_state,
    },
    Scenario {
        name: "false-sum",
        about: "a sum that is false, and signed: found before the close, named by all, redone by a holder",
        set: Set::Loopback,
        play: lying::false_sum,
    },
    Scenario {
        name: "bad-job",
        about: "a typo, a missing tensor, a broken question line: told with place and remedy; the next job runs",
        set: Set::Loopback,
        play: inputs::bad_job,
    },
    Scenario {
        name: "place-taken",
        about: "a port or a home in use: told with what to do; the one who holds it goes on",
        set: Set::Loopback,
        play: places::taken,
    },
    Scenario {
        name: "full-disk",
        about: "no space left: told with place and remedy; what was stored is kept",
        set: Set::Loopback,
        play: places::full_disk,
    },
    Scenario {
        name: "two-manifests",
        about: "an orchestrator that signs two manifests of one view: counted, said, the round closes once",
        set: Set::Loopback,
        play: sequencer::two_manifests,
    },
    Scenario {
        name: "late-close",
        about: "a close that comes after the view has risen: void, said, all go on from one state",
        set: Set::Loopback,
        play: sequencer::late_close,
    },
    Scenario {
        name: "far",
        about: "100 ms each way: every delta is in every sum",
        set: Set::Quick,
        play: links::far,
    },
    Scenario {
        name: "lossy",
        about: "2 % of packets lost: every delta is in every sum",
        set: Set::Quick,
        play: links::lossy,
    },
    Scenario {
        name: "narrow",
        about: "20 Mbit/s up and down: every delta is in every sum",
        set: Set::Quick,
        play: links::narrow,
    },
    Scenario {
        name: "unheard",
        about: "a worker in the ring whose packets are lost: a holder contributes for it, healed it is back",
        set: Set::Quick,
        play: partition::unheard,
    },
    Scenario {
        name: "deaf",
        about: "a worker in the ring that nothing reaches: a holder contributes for it, healed it is back",
        set: Set::Long,
        play: partition::deaf,
    },
    Scenario {
        name: "halves",
        about: "two of four workers cut off: no round closes until it heals, then all hold one state",
        set: Set::Quick,
        play: partition::halves,
    },
    Scenario {
        name: "killed-in-phases",
        about: "a worker killed once in each phase from reveal to attest: its delta is in every sum",
        set: Set::Quick,
        play: steps::some,
    },
    Scenario {
        name: "killed-at-each-step",
        about: "a worker killed at each step of each phase: in the sum once its commit has receipts, left out before",
        set: Set::Long,
        play: steps::each,
    },
    Scenario {
        name: "two-of-seven",
        about: "two of seven workers killed in the ring at once, redundancy 2: both deltas are in the sum",
        set: Set::Quick,
        play: several::two_of_seven,
    },
    Scenario {
        name: "slowed",
        about: "a worker slowed 50 times in the ring: a holder contributes for it, later it is back",
        set: Set::Quick,
        play: several::slow,
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
    let chosen = args.chosen();
    if let Some(name) = args.unknown().next() {
        bail!("there is no scenario {name}; testnet faults --list shows them");
    }
    if args.list {
        list(&chosen, args.json);
        return Ok(());
    }
    let interrupt = Interrupt::listen()?;
    let folder = RunFolder::create(None)?;
    let mut results = Vec::new();
    for name in chosen.iter().map(|s| s.name) {
        interrupt.check()?;
        let stage = Stage {
            program: Program::current()?,
            folder: RunFolder::create(Some(&folder.root().join(name)))?,
            interrupt: interrupt.clone(),
            recoveries: Recoveries::default(),
        };
        results.push(Played::of(name, &stage));
    }
    if args.json {
        line(&Value::from_iter(results.iter().map(Played::to_json)).to_string());
    }
    let failed: Vec<&str> = results
        .iter()
        .filter(|r| r.error.is_some())
        .map(|r| r.name.as_str())
        .collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Says which there are, and what it takes to have them played.
fn list(chosen: &[&Scenario], json: bool) {
    if json {
        let row = |s: &&Scenario| json!({ "name": s.name, "about": s.about, "with": s.set.flag() });
        line(&chosen.iter().map(row).collect::<Value>().to_string());
        return;
    }
    for s in chosen {
        let with = s.set.flag().map_or(String::new(), |flag| format!(" ({flag})"));
        line(&format!("{:20} {}{with}", s.name, s.about));
    }
}

/// A scenario that was played.
struct Played {
    name: String,
    seconds: f64,
    error: Option<String>,
    recoveries: Vec<Recovery>,
}

impl Played {
    /// Plays it and tells how it went.
    fn of(name: &str, stage: &Stage) -> Self {
        let started = Instant::now();
        let error = play(name, stage).err().map(|error| format!("{error:#}"));
        let played = Self {
            name: name.to_owned(),
            seconds: started.elapsed().as_secs_f64(),
            error,
            recoveries: stage.recoveries.all(),
        };
        let word = if played.error.is_none() { "ok" } else { "FAILED" };
        complain(&format!("{name:20} {word:6} {:.1} s", played.seconds));
        played.recoveries.iter().for_each(|r| complain(&r.line()));
        played.error.iter().for_each(|e| complain(e));
        played
    }

    fn to_json(&self) -> Value {
        let recoveries: Vec<Value> = self.recoveries.iter().map(Recovery::to_json).collect();
        json!({
            "name": self.name,
            "ok": self.error.is_none(),
            "error": self.error,
            "seconds": self.seconds,
            "recoveries": recoveries,
        })
    }
}
