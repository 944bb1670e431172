//! A deterministic simulator: the members' and the orchestrator's machines over a virtual network and clock.
//!
//! Training, encoding and signing are stand-ins; everything that decides is the real machine. One seed, one trace.

mod clock;
mod file;
mod host;
mod keys;
mod links;
mod network;
mod record;
mod theory;
mod trace;

pub use file::{Invariant, ScenarioError, parse};
pub use host::{Fault, Host, OrchestratorFault};
pub use keys::StandInKeys;
pub use links::LinkModel;
pub use record::{Broken, RoundRecord};

use crate::cbor;
use crate::ids::{CidBytes, Hash32, PeerBytes};
use crate::job::spec::{JobFile, JobSpec, Resolved};
use crate::message::{Body, Verified};
use network::Network;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// What a simulation runs.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Seed of every random choice.
    pub seed: u64,
    /// Members.
    pub members: u32,
    /// Elements of the delta.
    pub elements: usize,
    /// Elements of a ring segment.
    pub segment: usize,
    /// What deltas are made of.
    pub payload: Payload,
    /// How many bytes on a link each simulated byte stands for: a large vector's times with a small one's memory.
    pub scale: u64,
    /// The job, as its TOML text; model and questions are not read.
    pub job: String,
    /// Links.
    pub links: LinkModel,
    /// More contributions are summed in a grid.
    pub flat_ring_max: u32,
    /// Whether members measure their links.
    pub order: Order,
    /// Least training time; up to half as long again is added at random.
    pub train_ms: u64,
    /// Members that are lost and come back, whatever they are doing.
    pub churn: Option<Churn>,
    /// Faults by member.
    pub faults: BTreeMap<u32, Vec<Fault>>,
    /// What the orchestrator does wrong.
    pub orchestrator_faults: Vec<OrchestratorFault>,
    /// Virtual milliseconds after which the run ends, finished or not.
    pub limit_ms: u64,
    /// Rounds that must close.
    pub closes: u64,
}

/// The numbers of a delta.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Payload {
    /// Integers whose sums are exact in any order.
    #[default]
    Integers,
    /// Fractions: the bits of their sums tell the order in which they were added.
    Fractions,
}

/// The order of the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// As in the roster: nobody measures.
    #[default]
    Roster,
    /// From the links that members measure.
    Measured,
}

/// Members lost at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Churn {
    /// Mean time until a member is lost, milliseconds.
    pub life_ms: u64,
    /// It comes back after so long.
    pub return_after_ms: Option<u64>,
    /// Its connections are found dead after so long; until then it is only silent.
    pub noticed_after_ms: u64,
}

impl Default for Scenario {
    /// Three members on good links; the job is empty and must be given.
    fn default() -> Self {
        Self {
            seed: 1,
            members: 3,
            elements: 1_000,
            segment: 300,
            payload: Payload::Integers,
            scale: 1,
            job: String::new(),
            links: LinkModel::default(),
            flat_ring_max: crate::genesis::Constants::default().flat_ring_max,
            order: Order::Roster,
            train_ms: 1_000,
            churn: None,
            faults: BTreeMap::new(),
            orchestrator_faults: Vec::new(),
            limit_ms: 3_600_000,
            closes: 1,
        }
    }
}

/// What a simulation ended in.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Rounds closed.
    pub closed: u64,
    /// State by member, at the end.
    pub states: Vec<Option<Hash32>>,
    /// For each close: round, view, members of the sum, signers.
    pub closes: Vec<ClosedRound>,
    /// Ring payload bytes sent, by member.
    pub ring_bytes: Vec<u64>,
    /// What a member sent in a round that closed in its first view, over what theory says: the farthest from 1.
    pub bytes_ratio: Option<f64>,
    /// Virtual microseconds it took.
    pub virtual_us: u64,
    /// Hash over every delivered event in order.
    pub trace: Hash32,
    /// Events.
    pub events: u64,
    /// Members that died.
    pub deaths: u64,
    /// Every try at a round.
    pub rounds: Vec<RoundRecord>,
    /// What did not hold.
    pub broken: Broken,
    /// Offences counted anywhere, by label.
    pub offences: BTreeMap<&'static str, u64>,
    /// Members whose lie about a sum was proven, and who came to the same.
    pub named: BTreeMap<u32, BTreeSet<u32>>,
    /// Bytes of the longest gossiped message.
    pub largest_message: usize,
}

impl Outcome {
    /// Whether every close's state was the exact mean of its manifest's deltas.
    #[must_use]
    pub fn sum_exact(&self) -> bool {
        self.broken.sum.is_empty() && !self.closes.is_empty()
    }
}

/// One closed round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedRound {
    /// The round.
    pub round: u64,
    /// The view it closed in.
    pub view: u32,
    /// Whose deltas are in the sum.
    pub summed: Vec<u32>,
    /// Attests in the certificate.
    pub signers: usize,
    /// Rows and columns, if it was a grid.
    pub grid: Option<(u32, u32)>,
    /// Chunks that an earlier view had finished.
    pub kept: usize,
}

/// Runs a scenario. `None` when its job text does not parse.
#[must_use]
pub fn run(scenario: &Scenario) -> Option<Outcome> {
    let spec = spec(&scenario.job)?;
    let mut network = Network::new(scenario, spec);
    network.run(scenario.limit_ms);
    Some(network.outcome())
}

fn spec(text: &str) -> Option<JobSpec> {
    let none = CidBytes::default();
    let file = JobFile::parse(text).ok()?;
    Some(file.resolve(Resolved {
        base: none.clone(),
        train: none.clone(),
        heldout: none,
    }))
}

/// A member's name.
fn peer(index: u32) -> PeerBytes {
    PeerBytes::new(format!("member-{index:05}").into_bytes()).unwrap_or_default()
}

fn orchestrator_peer() -> PeerBytes {
    PeerBytes::new(b"orchestrator".to_vec()).unwrap_or_default()
}

fn index_of(peer: &PeerBytes) -> Option<u32> {
    std::str::from_utf8(peer.as_bytes())
        .ok()?
        .strip_prefix("member-")?
        .parse()
        .ok()
}

fn hash(parts: &[&[u8]]) -> Hash32 {
    cbor::sha3_256(parts)
}

fn cid(parts: &[&[u8]]) -> CidBytes {
    cbor::dag_cid(&hash(parts).0)
}

/// Stands in for signing: the simulator's verifier accepts it because it made it.
fn signed(sender: &PeerBytes, body: Body, nested: Vec<Verified>) -> Option<Verified> {
    let encoded = body.encode().ok()?;
    Verified::own(sender.clone(), body, encoded, Vec::new(), Vec::new(), nested).ok()
}
