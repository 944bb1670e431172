//! A deterministic simulator: the members' and the orchestrator's machines over a virtual network and clock.
//!
//! Training, encoding and signing are stand-ins; everything that decides is the real machine. One seed, one trace.

mod host;
mod network;

pub use host::{Fault, Host};
pub use network::{LinkModel, Network};

use crate::cbor;
use crate::ids::{CidBytes, Hash32, PeerBytes};
use crate::job::spec::{JobFile, JobSpec, Resolved};
use crate::message::{Body, Verified};
use crate::time::Time;
use sha3::{Digest, Sha3_256};
use std::collections::BTreeMap;

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
    /// The job, as its TOML text; model and questions are not read.
    pub job: String,
    /// Links.
    pub links: LinkModel,
    /// Faults by member.
    pub faults: BTreeMap<u32, Vec<Fault>>,
    /// Virtual milliseconds after which the run ends, finished or not.
    pub limit_ms: u64,
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
    /// Virtual milliseconds it took.
    pub virtual_ms: u64,
    /// Hash over every delivered event in order.
    pub trace: Hash32,
    /// Whether every close's state was the replay of its manifest.
    pub sums_exact: bool,
    /// Offences counted anywhere, by label.
    pub offences: BTreeMap<&'static str, u64>,
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

/// A running hash of what happened.
#[derive(Debug, Default)]
struct Trace(Sha3_256);

impl Trace {
    fn add(&mut self, now: Time, what: &str) {
        self.0.update(now.0.to_le_bytes());
        self.0.update(what.as_bytes());
    }

    fn hash(&self) -> Hash32 {
        Hash32(self.0.clone().finalize().into())
    }
}
