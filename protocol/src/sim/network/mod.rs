//! The world of one simulation: hosts, orchestrator, what is on its way, and what an observer notes.

mod audits;
mod lies;
mod of_members;
mod of_orchestrator;

use super::clock::{After, Clock, Due, Next};
use super::host::{self, Deltas, Fault, Host};
use super::keys::StandInKeys;
use super::links::{Wave, Wires};
use super::record::Record;
use super::trace::Trace;
use super::{ClosedRound, Outcome, Scenario, cid, hash, index_of, orchestrator_peer, peer};
use crate::buffers::Buffers;
use crate::ids::{Hash32, PeerBytes};
use crate::job::spec::JobSpec;
use crate::member::{self, Held, Sums};
use crate::message::{Body, Verified};
use crate::orchestrator::{self, Orchestrator};
use crate::ring::Scope;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How long the stand-in application of the mean takes.
const APPLY_US: u64 = 20_000;
/// How late a close is that comes after another view.
const LATE_US: u64 = 1_500_000;
/// How long the encoding of a commit takes.
const BUILD_US: u64 = 10_000;
/// How long a state, or a delta to check, takes to come.
const FETCH_US: u64 = 200_000;

/// The world of one simulation.
#[derive(Debug)]
pub(super) struct Network {
    clock: Clock,
    rng: StdRng,
    wires: Wires,
    hosts: Vec<Host>,
    orchestrator: Orchestrator,
    deltas: Deltas,
    manifests: BTreeMap<Hash32, Arc<Scope>>,
    /// Hashes of means that members said to hold, by manifest and chunk.
    means: BTreeMap<(Hash32, u32), Hash32>,
    /// Liars that a proof convinced members of, and whom.
    named: BTreeMap<u32, BTreeSet<u32>>,
    /// Bytes of the longest gossiped message, with the signatures that stand-ins leave out.
    largest_message: usize,
    /// How much later the orchestrator's next message goes out.
    late_us: u64,
    /// Every state by its hash, for fetches.
    states: BTreeMap<Hash32, Held>,
    closes: Vec<ClosedRound>,
    spec: JobSpec,
    samples: u64,
    scenario: Scenario,
    trace: Trace,
    record: Record,
    finished_at: Option<u64>,
    offences: BTreeMap<&'static str, u64>,
    deaths: u64,
    /// Payload a member sent in a round of one view, over what it should be: the farthest from 1.
    bytes_ratio: Option<f64>,
}

impl Network {
    pub(super) fn new(scenario: &Scenario, spec: JobSpec) -> Self {
        let job = cid(&[b"job", &scenario.seed.to_le_bytes()]);
        let genesis = hash(&[b"genesis"]);
        let buffers = Buffers::default();
        let host = |i| {
            let config = member::Config {
                me: peer(i),
                record: host::record(i),
                genesis,
                job: job.clone(),
                orchestrator: orchestrator_peer(),
                spec: spec.clone(),
                segment: scenario.segment,
                buffers: buffers.clone(),
                keys: Arc::new(StandInKeys(peer(i))),
                sums: Sums::True,
            };
            let faults = scenario.faults.get(&i).cloned().unwrap_or_default();
            Host::new(config, (scenario.elements, scenario.payload), faults)
        };
        let hosts: Vec<Host> = (0..scenario.members).map(host).collect();
        let mut actions = Vec::new();
        let config = orchestrator::Config {
            me: orchestrator_peer(),
            genesis,
            job,
            spec: spec.clone(),
            rows: 1_000,
            segment: scenario.segment,
            flat_ring_max: scenario.flat_ring_max,
        };
        let orchestrator = Orchestrator::new(config, &mut actions);
        let zero = host::zero();
        let mut network = Self {
            clock: Clock::new(hosts.len() + 1),
            rng: StdRng::seed_from_u64(scenario.seed),
            wires: Wires::new(scenario.links, scenario.members, scenario.scale, scenario.seed),
            hosts,
            orchestrator,
            deltas: Deltas::new(),
            manifests: BTreeMap::new(),
            means: BTreeMap::new(),
            named: BTreeMap::new(),
            largest_message: 0,
            late_us: 0,
            states: BTreeMap::from([(zero.state, zero.clone())]),
            closes: Vec::new(),
            samples: u64::from(spec.schedule.aggregate_interval)
                * u64::from(spec.gspo.prompts_per_step)
                * u64::from(spec.gspo.group_size),
            spec,
            scenario: scenario.clone(),
            trace: Trace::default(),
            record: Record::default(),
            finished_at: None,
            offences: BTreeMap::new(),
            deaths: 0,
            bytes_ratio: None,
        };
        network.orchestrator_actions(actions);
        for i in 0..scenario.members {
            network.orchestrator_in(0, orchestrator::Event::PeerSeen(peer(i)));
            let delay = network.wires.delay(i, i);
            network.member_in(delay, i, host::loaded(&zero));
            network.draw_death(i);
        }
        network
    }

    pub(super) fn run(&mut self, limit_ms: u64) {
        while self.finished_at.is_none() {
            match self.clock.next(limit_ms.saturating_mul(1000)) {
                Some(Next::Due(due)) => self.deliver(due),
                Some(Next::Tick(machine)) => self.tick(machine),
                None => break,
            }
        }
        let called = self.record.rounds.last().map_or(0, |r| r.called as usize);
        let alive = self.hosts.iter().filter(|h| h.alive).count();
        self.record
            .check_deadlines(self.clock.now(), &self.spec.schedule, 3 * alive > 2 * called);
    }

    fn tick(&mut self, machine: u32) {
        if machine as usize == self.hosts.len() {
            self.orchestrator_event(orchestrator::Event::Tick, After::Tick);
        } else {
            self.member_event(machine, member::Event::Tick, After::Tick);
        }
    }

    fn deliver(&mut self, due: Due) {
        match due {
            Due::Member(i, event) => self.member_event(i, *event, After::Event),
            Due::Orchestrator(event) => self.orchestrator_event(*event, After::Event),
            Due::Gossip(wave) => self.hear(*wave),
            Due::Lost(i) => {
                let noticed = self.scenario.churn.map_or(0, |c| c.noticed_after_ms * 1000);
                let back = self.scenario.churn.and_then(|c| c.return_after_ms);
                self.kill(i, noticed, back);
            }
            Due::Noticed(i) => self.notice(i),
            Due::Revive(i) => {
                self.trace.note(self.clock.now(), i, b"is back");
                self.hosts[i as usize].restart();
                self.orchestrator_event(orchestrator::Event::PeerSeen(peer(i)), After::Event);
                let held = self.orchestrator.held().clone();
                self.member_in(FETCH_US, i, host::loaded(&held));
                self.draw_death(i);
            }
        }
    }

    /// Gives a gossiped message to its next reader, and sends it on its way to the one after.
    fn hear(&mut self, mut wave: Wave) {
        let Some((_, reader)) = wave.left.pop() else {
            return;
        };
        let message = Box::new((*wave.message).clone());
        if let Some((at, _)) = wave.left.last() {
            self.clock.push_at(*at, Due::Gossip(Box::new(wave)));
        }
        if reader as usize == self.hosts.len() {
            self.observe(&message);
            self.orchestrator_event(orchestrator::Event::Message(message), After::Event);
        } else {
            self.member_event(reader, member::Event::Message(message), After::Event);
        }
    }

    /// What the orchestrator hears of commits.
    fn observe(&mut self, m: &Verified) {
        match &m.body {
            Body::Commitment(_) => self.record.on_commitment(index_of(&m.sender)),
            Body::Receipt(receipt) if self.deltas.contains_key(&receipt.cid) => {
                self.record.on_receipt(index_of(&m.sender), receipt);
            }
            Body::Job(_)
            | Body::Roster(_)
            | Body::Manifest(_)
            | Body::Attest(_)
            | Body::Close(_)
            | Body::Report(_)
            | Body::Ready(_)
            | Body::Cutoff(_)
            | Body::Reveal(_)
            | Body::Complaint(_)
            | Body::Status(_)
            | Body::Links(_)
            | Body::Proof(_)
            | Body::Holding(_)
            | Body::Receipt(_) => {}
        }
    }

    fn member_event(&mut self, i: u32, event: member::Event, after: After) {
        if !self.hosts[i as usize].alive {
            return;
        }
        self.trace.event(self.clock.now(), i, &event);
        let mut actions = Vec::new();
        let host = &mut self.hosts[i as usize];
        host.machine.handle(self.clock.time(), event, &mut actions);
        self.clock.set_deadline(i, host.machine.deadline(), after);
        for action in actions {
            let host = &self.hosts[i as usize];
            if !host.alive {
                return;
            }
            if host.dies_at(&action) {
                let (noticed, back) = (host.noticed_after(), host.revive_after());
                self.kill(i, noticed, back);
                return;
            }
            self.member_action(i, action);
        }
    }

    /// A member stops. Its connections are found dead `noticed` microseconds later.
    fn kill(&mut self, i: u32, noticed: u64, back_ms: Option<u64>) {
        let host = &mut self.hosts[i as usize];
        if !host.alive {
            return;
        }
        self.trace.note(self.clock.now(), i, b"dies");
        self.deaths += 1;
        host.alive = false;
        host.faults.retain(|f| {
            !matches!(
                f,
                Fault::DieInTrain(_)
                    | Fault::DieBeforeCommit(_)
                    | Fault::DieInReveal(_)
                    | Fault::DieInReduce(_)
                    | Fault::DieAtSegment(..)
                    | Fault::DieInApply(_)
            )
        });
        self.clock.set_deadline(i, None, After::Event);
        if noticed == 0 {
            self.notice(i);
        } else {
            self.clock.push_in(noticed, Due::Noticed(i));
        }
        if let Some(ms) = back_ms {
            self.clock.push_in(ms * 1000, Due::Revive(i));
        }
    }

    fn notice(&mut self, i: u32) {
        if self.hosts[i as usize].alive {
            return;
        }
        let others = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
        for other in 0..others {
            let delay = self.wires.delay(i, other);
            self.member_in(delay, other, member::Event::PeerLost(peer(i)));
        }
        let delay = self.wires.delay(i, others);
        self.orchestrator_in(delay, orchestrator::Event::PeerLost(peer(i)));
    }

    /// Lifetimes are exponential: a member that has lived long lives on as long as a new one.
    fn draw_death(&mut self, i: u32) {
        if let Some(churn) = self.scenario.churn {
            let draw: f64 = self.rng.random();
            let life = -(1.0 - draw).ln() * churn.life_ms as f64 * 1000.0;
            self.clock.push_in(life as u64, Due::Lost(i));
        }
    }

    fn gossip(&mut self, from: u32, m: Verified) {
        self.largest_message = self.largest_message.max(on_the_wire(&m));
        let mut at = self.clock.now();
        if from as usize == self.hosts.len() && self.late_us > 0 {
            // A close comes first, what follows it after it.
            at += self.late_us;
            self.late_us = if matches!(m.body, Body::Close(_)) {
                2 * LATE_US
            } else {
                0
            };
        }
        let wave = self.wires.gossip(at, from, m);
        if let Some((at, _)) = wave.left.last() {
            self.clock.push_at(*at, Due::Gossip(Box::new(wave)));
        }
    }

    fn link(&mut self, from: u32, to: &PeerBytes, bytes: u64, event: member::Event) {
        if let Some(to) = index_of(to) {
            let at = self.wires.send(self.clock.now(), from, to, bytes);
            self.clock.push_at(at, Due::Member(to, Box::new(event)));
        }
    }

    fn member_in(&mut self, us: u64, i: u32, event: member::Event) {
        self.clock.push_in(us, Due::Member(i, Box::new(event)));
    }

    fn orchestrator_in(&mut self, us: u64, event: orchestrator::Event) {
        self.clock.push_in(us, Due::Orchestrator(Box::new(event)));
    }

    pub(super) fn outcome(self) -> Outcome {
        let mut offences = self.offences;
        for h in &self.hosts {
            for (label, n) in &h.offences {
                *offences.entry(label).or_default() += n;
            }
        }
        let states = self.hosts.iter();
        Outcome {
            closed: self.orchestrator.held().closed,
            states: states
                .map(|h| h.machine.held().filter(|_| h.alive).map(|held| held.state))
                .collect(),
            closes: self.closes,
            ring_bytes: self.hosts.iter().map(|h| h.ring_bytes).collect(),
            bytes_ratio: self.bytes_ratio,
            virtual_us: self.finished_at.unwrap_or(self.clock.now()),
            trace: self.trace.hash(),
            events: self.trace.events(),
            deaths: self.deaths,
            rounds: self.record.rounds,
            broken: self.record.broken,
            offences,
            named: self.named,
            largest_message: self.largest_message,
        }
    }
}

/// Bytes of a message between nodes: there it and the attests within it are signed.
fn on_the_wire(m: &Verified) -> usize {
    const ED25519: usize = 64;
    const MLDSA: usize = 4_627;
    let signatures = |m: &Verified| ED25519 + if m.body.kind().signed_by_both() { MLDSA } else { 0 };
    m.envelope.len() + signatures(m) + m.nested.iter().map(signatures).sum::<usize>()
}
