//! Scenario files: one situation, and the invariant that must hold in it.

use super::{Churn, Fault, LinkModel, OrchestratorFault, Order, Outcome, Scenario};
use crate::quant::{BLOCK, SEGMENT};
use crate::ring::Layout;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// What a scenario's file must show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Invariant {
    /// Every close's state is that of the exact mean of its manifest's deltas.
    SumExact,
    /// A round closes with one state, and no member takes another for good.
    OneState,
    /// No round takes longer than its phases' deadlines together while a quorum lives.
    NotStuck,
    /// Every member sends what theory says, within 2 %.
    Bytes,
    /// A commit with its receipts is in the sum while its maker or a holder lives.
    NothingLost,
    /// A ring's view after its first does not sum again what was finished, and what closes is the exact mean.
    Kept,
}

/// Why a scenario's text is none.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// Not TOML, or a key that is wrong.
    #[error("the scenario does not parse: {0}")]
    Parse(#[from] toml::de::Error),
    /// A number outside its range.
    #[error("{key} is {got}; it must be {must}")]
    Range {
        /// The key.
        key: &'static str,
        /// Its value.
        got: String,
        /// What is allowed.
        must: &'static str,
    },
}

/// A scenario's file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    invariant: Invariant,
    #[serde(default = "one")]
    seed: u64,
    members: u32,
    #[serde(default = "one")]
    rounds: u64,
    /// How many of them must close; all, where it is not said.
    closes: Option<u64>,
    elements: usize,
    #[serde(default = "one")]
    scale: u64,
    #[serde(default)]
    wire: crate::job::spec::Wire,
    #[serde(default = "one")]
    redundancy: u64,
    #[serde(default = "flat_ring_max")]
    flat_ring_max: u32,
    #[serde(default)]
    order: Order,
    #[serde(default = "second")]
    train_ms: u64,
    #[serde(default = "day")]
    limit_s: u64,
    #[serde(default)]
    links: LinksFile,
    churn: Option<ChurnFile>,
    #[serde(default)]
    deadlines: DeadlinesFile,
    #[serde(default)]
    faults: Vec<FaultFile>,
    #[serde(default)]
    orchestrator_faults: Vec<OrchestratorFault>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LinksFile {
    latency_ms: u64,
    jitter_ms: u64,
    mbit: f64,
    loss: f64,
    regions: u32,
    spread_ms: u64,
}

impl Default for LinksFile {
    fn default() -> Self {
        Self {
            latency_ms: 100,
            jitter_ms: 10,
            mbit: 100.0,
            loss: 0.0,
            regions: 0,
            spread_ms: 0,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChurnFile {
    lost_every_hours: f64,
    return_after_s: Option<u64>,
    #[serde(default = "ten")]
    noticed_after_s: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct DeadlinesFile {
    train_s: u64,
    commit_s: u64,
    ring_floor_ms: u64,
    ring_cap_ms: u64,
    attest_s: u64,
}

impl Default for DeadlinesFile {
    fn default() -> Self {
        Self {
            train_s: 600,
            commit_s: 60,
            ring_floor_ms: 5_000,
            ring_cap_ms: 120_000,
            attest_s: 600,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
struct FaultFile {
    member: u32,
    #[serde(flatten)]
    fault: Fault,
}

fn one() -> u64 {
    1
}

fn ten() -> u64 {
    10
}

fn flat_ring_max() -> u32 {
    crate::genesis::Constants::default().flat_ring_max
}

fn second() -> u64 {
    1_000
}

fn day() -> u64 {
    86_400
}

/// Elements of a ring segment, of which `scale` stand for one: whole blocks.
fn segment(scale: u64) -> usize {
    let elements = SEGMENT / usize::try_from(scale).unwrap_or(usize::MAX).max(1);
    (elements / BLOCK).max(1) * BLOCK
}

/// Reads a scenario's file.
///
/// # Errors
/// The key that is wrong.
pub fn parse(text: &str) -> Result<(Scenario, Invariant), ScenarioError> {
    let f: File = toml::from_str(text)?;
    f.check()?;
    let mut faults: BTreeMap<u32, Vec<Fault>> = BTreeMap::new();
    for fault in &f.faults {
        faults.entry(fault.member).or_default().push(fault.fault);
    }
    let scenario = Scenario {
        seed: f.seed,
        members: f.members,
        elements: f.elements,
        segment: segment(f.scale),
        payload: super::Payload::Integers,
        scale: f.scale,
        job: f.job(),
        links: LinkModel {
            latency_ms: f.links.latency_ms,
            jitter_ms: f.links.jitter_ms,
            bytes_per_ms: (f.links.mbit * 125.0) as u64,
            loss_ppm: (f.links.loss * 1e6) as u32,
            regions: f.links.regions,
            spread_ms: f.links.spread_ms,
        },
        flat_ring_max: f.flat_ring_max,
        order: f.order,
        train_ms: f.train_ms,
        churn: f.churn.as_ref().map(|c| Churn {
            life_ms: (c.lost_every_hours * 3_600_000.0) as u64,
            return_after_ms: c.return_after_s.map(|s| s * 1000),
            noticed_after_ms: c.noticed_after_s * 1000,
        }),
        faults,
        orchestrator_faults: f.orchestrator_faults.clone(),
        limit_ms: f.limit_s * 1000,
        closes: f.closes.unwrap_or(f.rounds),
    };
    Ok((scenario, f.invariant))
}

impl File {
    fn check(&self) -> Result<(), ScenarioError> {
        let within = |ok: bool, key, got: String, must| {
            if ok {
                Ok(())
            } else {
                Err(ScenarioError::Range { key, got, must })
            }
        };
        within(
            (1..=4096).contains(&self.members),
            "members",
            self.members.to_string(),
            "1 to 4096",
        )?;
        let cells = u64::from(self.members).saturating_mul(self.elements as u64);
        within(
            (1..=1 << 28).contains(&cells),
            "elements",
            self.elements.to_string(),
            "at least 1, and at most 2^28 over all members: use scale for larger vectors",
        )?;
        within(
            (1..=1 << 20).contains(&self.scale),
            "scale",
            self.scale.to_string(),
            "1 to 2^20",
        )?;
        within(
            (1..=10_000).contains(&self.rounds),
            "rounds",
            self.rounds.to_string(),
            "1 to 10,000",
        )?;
        let closes = self.closes.unwrap_or(self.rounds);
        within(
            (1..=self.rounds).contains(&closes),
            "closes",
            closes.to_string(),
            "1 to the number of rounds",
        )?;
        within(
            self.redundancy <= 8,
            "redundancy",
            self.redundancy.to_string(),
            "at most 8",
        )?;
        let loss = self.links.loss;
        within(
            (0.0..0.9).contains(&loss),
            "links.loss",
            loss.to_string(),
            "0 to 0.9",
        )?;
        let mbit = self.links.mbit;
        within(
            (0.01..1e6).contains(&mbit),
            "links.mbit",
            mbit.to_string(),
            "0.01 to a million",
        )?;
        let hours = self.churn.as_ref().map_or(1.0, |c| c.lost_every_hours);
        within(
            (0.001..1e6).contains(&hours),
            "churn.lost_every_hours",
            hours.to_string(),
            "0.001 to a million",
        )?;
        let longest = [
            self.train_ms,
            self.limit_s,
            self.deadlines.train_s,
            self.deadlines.commit_s,
            self.deadlines.attest_s,
            self.links.latency_ms,
            self.links.jitter_ms,
            self.links.spread_ms,
        ];
        let most = longest.into_iter().max().unwrap_or(0);
        within(most <= 1 << 32, "a duration", most.to_string(), "at most 2^32")
    }

    /// The job's file: its rewards, model and questions are not read.
    fn job(&self) -> String {
        let d = &self.deadlines;
        let mut text = String::from(
            "name = \"sim\"\nmodel = \"m\"\ntrain = \"t\"\nheldout = \"h\"\nrewards = [{ name = \"numeric\" }]\n",
        );
        let wire = self.wire.name();
        let least = (u64::from(self.members) * 2).div_ceil(3);
        let _ = write!(
            text,
            "wire = \"{wire}\"\n[schedule]\nrounds = {}\nmin_workers = {least}\nmax_workers = {}\nredundancy = {}\n\
             aggregate_interval = 1\n[schedule.deadlines]\nrecruit_ms = 30000\ntrain_ms = {}\ncommit_ms = {}\n\
             ring_floor_ms = {}\nring_cap_ms = {}\nattest_ms = {}\n",
            self.rounds,
            self.members,
            self.redundancy,
            d.train_s * 1000,
            d.commit_s * 1000,
            d.ring_floor_ms,
            d.ring_cap_ms,
            d.attest_s * 1000,
        );
        text
    }
}

impl Invariant {
    /// What breaks it in an outcome, and whether the rounds that must close did; empty when it holds.
    #[must_use]
    pub fn broken(self, scenario: &Scenario, outcome: &Outcome) -> Vec<String> {
        let mut broken = match self {
            Self::SumExact => outcome.broken.sum.clone(),
            Self::OneState => outcome.broken.state.clone(),
            Self::NotStuck => outcome.broken.stuck.clone(),
            Self::NothingLost => outcome.broken.lost.clone(),
            Self::Bytes => bytes(scenario, outcome),
            Self::Kept => kept(outcome),
        };
        let (closed, must) = (outcome.closed, scenario.closes);
        if closed < must {
            broken.push(format!("{closed} of {must} rounds closed"));
        }
        broken
    }
}

fn kept(outcome: &Outcome) -> Vec<String> {
    let mut broken = outcome.broken.sum.clone();
    let later: Vec<_> = outcome.closes.iter().filter(|c| c.view > 0).collect();
    if later.is_empty() {
        broken.push("every round closed in its first view".into());
    }
    let again = later.iter().filter(|c| c.kept == 0);
    broken.extend(again.map(|c| format!("round {} summed everything again", c.round)));
    broken
}

fn bytes(scenario: &Scenario, outcome: &Outcome) -> Vec<String> {
    let layout = Layout::for_members(scenario.members, scenario.flat_ring_max);
    match outcome.bytes_ratio {
        Some(ratio) if (ratio - 1.0).abs() <= 0.02 => Vec::new(),
        Some(ratio) => vec![format!(
            "a member sent {ratio:.4} of what theory says ({layout:?})"
        )],
        None => vec!["no round closed in its first view".into()],
    }
}
