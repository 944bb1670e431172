//! The virtual network and clock: a queue of events by time, links with latency, bandwidth and loss.

use super::host::{self, Deltas, Fault, Host};
use super::{ClosedRound, Outcome, Scenario, Trace, cid, hash, index_of, orchestrator_peer, peer, signed};
use crate::ids::{Hash32, PeerBytes};
use crate::job::spec::JobSpec;
use crate::member::{self, Held};
use crate::message::{Body, Manifest, Offence, Verified};
use crate::orchestrator::{self, Orchestrator};
use crate::ring::{Part, replay};
use crate::time::Time;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

/// How links behave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkModel {
    /// Least one-way delay.
    pub latency_ms: u64,
    /// Added at random, uniformly.
    pub jitter_ms: u64,
    /// Bytes a millisecond that a member can send.
    pub bytes_per_ms: u64,
}

impl Default for LinkModel {
    fn default() -> Self {
        Self {
            latency_ms: 20,
            jitter_ms: 10,
            bytes_per_ms: 12_500,
        }
    }
}

#[derive(Clone, Debug)]
enum Due {
    Member(u32, Box<member::Event>),
    Orchestrator(Box<orchestrator::Event>),
    Revive(u32),
}

/// The world of one simulation.
#[derive(Debug)]
pub struct Network {
    now: Time,
    queue: BTreeMap<(Time, u64), Due>,
    serial: u64,
    rng: StdRng,
    links: LinkModel,
    /// When each member's uplink is free again.
    uplinks: Vec<Time>,
    /// When the last message on a (from, to) link arrives: links are FIFO.
    arrivals: BTreeMap<(u32, u32), Time>,
    hosts: Vec<Host>,
    orchestrator: Orchestrator,
    deltas: Deltas,
    manifests: BTreeMap<Hash32, Manifest>,
    /// Every state by its number of closed rounds and hash, for fetches.
    states: BTreeMap<Hash32, Held>,
    closes: Vec<ClosedRound>,
    sums_exact: bool,
    spec: JobSpec,
    samples: u64,
    segment: usize,
    trace: Trace,
    finished_at: Option<Time>,
    offences: BTreeMap<&'static str, u64>,
}

/// How long the stand-in training and application take, before jitter.
const TRAIN_MS: u64 = 1_000;
const APPLY_MS: u64 = 20;

impl Network {
    pub(super) fn new(scenario: &Scenario, spec: JobSpec) -> Self {
        let job = cid(&[b"job", &scenario.seed.to_le_bytes()]);
        let genesis = hash(&[b"genesis"]);
        let hosts = (0..scenario.members)
            .map(|i| {
                let config = member::Config {
                    me: peer(i),
                    record: host::record(i),
                    genesis,
                    job: job.clone(),
                    orchestrator: orchestrator_peer(),
                    spec: spec.clone(),
                    segment: scenario.segment,
                };
                let faults = scenario.faults.get(&i).cloned().unwrap_or_default();
                Host::new(config, scenario.elements, faults)
            })
            .collect();
        let mut actions = Vec::new();
        let config = orchestrator::Config {
            me: orchestrator_peer(),
            genesis,
            job,
            spec: spec.clone(),
            rows: 1_000,
        };
        let orchestrator = Orchestrator::new(config, &mut actions);
        let samples = u64::from(spec.schedule.aggregate_interval)
            * u64::from(spec.gspo.prompts_per_step)
            * u64::from(spec.gspo.group_size);
        let zero = host::zero();
        let mut network = Self {
            now: Time(0),
            queue: BTreeMap::new(),
            serial: 0,
            rng: StdRng::seed_from_u64(scenario.seed),
            links: scenario.links,
            uplinks: vec![Time(0); scenario.members as usize],
            arrivals: BTreeMap::new(),
            hosts,
            orchestrator,
            deltas: Deltas::new(),
            manifests: BTreeMap::new(),
            states: BTreeMap::from([(zero.state, zero.clone())]),
            closes: Vec::new(),
            sums_exact: true,
            spec,
            samples,
            segment: scenario.segment,
            trace: Trace::default(),
            finished_at: None,
            offences: BTreeMap::new(),
        };
        network.orchestrator_actions(actions);
        for i in 0..scenario.members {
            let delay = network.delay();
            network.member_in(delay, i, host::loaded(&zero));
        }
        network
    }

    pub(super) fn run(&mut self, limit_ms: u64) {
        while self.finished_at.is_none() {
            let next = self.next_time();
            let Some(next) = next.filter(|t| t.0 <= limit_ms) else {
                break;
            };
            self.now = next;
            match self
                .queue
                .first_entry()
                .filter(|e| e.key().0 <= next)
                .map(|e| e.remove())
            {
                Some(due) => self.deliver(due),
                None => self.tick(),
            }
        }
    }

    fn next_time(&self) -> Option<Time> {
        let queued = self.queue.keys().next().map(|(t, _)| *t);
        let members = self
            .hosts
            .iter()
            .filter(|h| h.alive)
            .filter_map(|h| h.machine.deadline());
        let deadlines = members
            .chain(self.orchestrator.deadline())
            .map(|(t, _)| t.max(self.now))
            .min();
        match (queued, deadlines) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn tick(&mut self) {
        for i in 0..self.hosts.len() {
            let due = self.hosts[i]
                .machine
                .deadline()
                .is_some_and(|(t, _)| t <= self.now);
            if due && self.hosts[i].alive {
                self.member_event(i as u32, member::Event::Tick);
            }
        }
        if self.orchestrator.deadline().is_some_and(|(t, _)| t <= self.now) {
            self.orchestrator_event(orchestrator::Event::Tick);
        }
        // A machine whose deadline stays in the past would stop the clock: the next event moves it on.
        self.now = self.now.plus(1);
    }

    fn deliver(&mut self, due: Due) {
        match due {
            Due::Member(i, event) => {
                if self.hosts[i as usize].alive {
                    self.trace.add(self.now, &format!("{i} {}", label(&event)));
                    self.member_event(i, *event);
                }
            }
            Due::Orchestrator(event) => self.orchestrator_event(*event),
            Due::Revive(i) => {
                self.hosts[i as usize].restart();
                self.orchestrator_event(orchestrator::Event::PeerSeen(peer(i)));
                let held = self.orchestrator.held().clone();
                self.member_in(200, i, host::loaded(&held));
            }
        }
    }

    fn member_event(&mut self, i: u32, event: member::Event) {
        let mut actions = Vec::new();
        self.hosts[i as usize]
            .machine
            .handle(self.now, event, &mut actions);
        for action in actions {
            if !self.hosts[i as usize].alive {
                return;
            }
            if self.hosts[i as usize].dies_at(&action) {
                self.kill(i);
                return;
            }
            self.member_action(i, action);
        }
    }

    fn kill(&mut self, i: u32) {
        self.trace.add(self.now, &format!("{i} dies"));
        let host = &mut self.hosts[i as usize];
        host.alive = false;
        host.faults.retain(|f| {
            !matches!(
                f,
                Fault::DieInTrain(_) | Fault::DieBeforeCommit(_) | Fault::DieInReduce(_)
            )
        });
        let revive = host.revive_after();
        for other in 0..self.hosts.len() as u32 {
            let delay = self.delay();
            self.member_in(delay, other, member::Event::PeerLost(peer(i)));
        }
        let delay = self.delay();
        self.push(
            delay,
            Due::Orchestrator(Box::new(orchestrator::Event::PeerLost(peer(i)))),
        );
        if let Some(ms) = revive {
            self.push(ms, Due::Revive(i));
        }
    }

    fn member_action(&mut self, i: u32, action: member::Action) {
        use member::Action;
        match action {
            Action::Publish(body) => {
                if let Some(m) = signed(&peer(i), body, Vec::new()) {
                    self.gossip(Some(i), &m);
                }
            }
            Action::Fetch(held) => {
                let answer = match self.states.get(&held.state) {
                    Some(state) => member::Event::Synced(state.clone()),
                    None => member::Event::FetchFailed("no such state".into()),
                };
                self.member_in(200, i, answer);
            }
            Action::Train { round, roster, .. } => {
                let delta = self.hosts[i as usize].train(round.0);
                let jitter = self.rng.random_range(0..TRAIN_MS / 2);
                let samples = self.samples;
                self.member_in(
                    TRAIN_MS + jitter,
                    i,
                    member::Event::Trained {
                        roster,
                        delta,
                        samples,
                    },
                );
            }
            Action::BuildCommit {
                round,
                roster,
                parent,
                delta,
            } => {
                let cid = self.hosts[i as usize].build_commit(round.0, parent, &delta, &mut self.deltas);
                let salt = hash(&[b"salt", &i.to_le_bytes(), &roster.0]);
                self.member_in(10, i, member::Event::CommitBuilt { roster, cid, salt });
            }
            Action::SendReplica {
                to,
                roster,
                cid,
                salt,
                ..
            } => {
                let outcome = host::inspect(&self.deltas, &cid, self.samples);
                let bytes = outcome.as_ref().map_or(0, |f| f.delta.len() as u64 * 4);
                let event = member::Event::Replica {
                    from: peer(i),
                    roster,
                    salt,
                    cid,
                    outcome,
                };
                self.link(i, &to, bytes, event);
            }
            Action::SendSegment { to, header, payload } => self.send_segment(i, &to, header, payload),
            Action::Apply { manifest, mean, .. } => self.apply(i, manifest, &mean),
            Action::Promote(_) | Action::AbandonTraining | Action::Notice(_) | Action::Finished(_) => {}
            Action::Penalise { offence, .. } => self.hosts[i as usize].count(offence),
        }
    }

    fn send_segment(
        &mut self,
        i: u32,
        to: &PeerBytes,
        mut header: crate::message::LinkHeader,
        mut payload: Vec<u8>,
    ) {
        let host = &mut self.hosts[i as usize];
        let round = header.round;
        host.ring_bytes += payload.len() as u64;
        if host.has(Fault::MuteInReduce(round)) {
            return;
        }
        if host.has(Fault::WrongRound(round)) {
            header.round += 1;
        }
        if host.has(Fault::Truncate(round)) {
            payload.truncate(payload.len() / 2);
        }
        let bytes = payload.len() as u64;
        let event = if host.has(Fault::BadSeal(round)) {
            member::Event::LinkOffence {
                from: peer(i),
                offence: Offence::BadSeal,
            }
        } else {
            member::Event::Segment {
                from: peer(i),
                header,
                payload,
            }
        };
        self.link(i, to, bytes, event);
    }

    fn apply(&mut self, i: u32, manifest: Hash32, mean: &[f32]) {
        let Some(m) = self.manifests.get(&manifest) else {
            return;
        };
        let mut held = host::apply(m.parent, mean);
        held.closed = m.round.0 + 1;
        if self.hosts[i as usize].has(Fault::OtherState(m.round.0)) {
            held.state = hash(&[b"other", &held.state.0]);
        } else {
            self.states.insert(held.state, held.clone());
        }
        let event = member::Event::Applied {
            manifest,
            state: held.state,
            checkpoint: held.checkpoint,
        };
        self.member_in(APPLY_MS, i, event);
    }

    fn orchestrator_event(&mut self, event: orchestrator::Event) {
        let mut actions = Vec::new();
        self.orchestrator.handle(self.now, event, &mut actions);
        self.orchestrator_actions(actions);
    }

    fn orchestrator_actions(&mut self, actions: Vec<orchestrator::Action>) {
        use orchestrator::Action;
        for action in actions {
            match action {
                Action::Publish(body) => {
                    if let Some(m) = signed(&orchestrator_peer(), body, Vec::new()) {
                        if let Body::Manifest(manifest) = &m.body {
                            self.manifests
                                .insert(crate::cbor::object_hash(&m.encoded), manifest.clone());
                        }
                        self.gossip(None, &m);
                    }
                }
                Action::Prepare => {
                    self.push(
                        10,
                        Due::Orchestrator(Box::new(orchestrator::Event::Prepared(host::zero()))),
                    );
                }
                Action::CheckDelta {
                    roster, member, cid, ..
                } => {
                    let outcome = host::inspect(&self.deltas, &cid, self.samples);
                    let event = orchestrator::Event::DeltaChecked {
                        roster,
                        member,
                        cid,
                        outcome,
                    };
                    self.push(50, Due::Orchestrator(Box::new(event)));
                }
                Action::Close { body, attests } => self.close(body, attests),
                Action::Penalise { offence, .. } => *self.offences.entry(offence.label()).or_default() += 1,
                Action::Notice(text) => self.trace.add(self.now, &text),
                Action::Finished(_) => self.finished_at = Some(self.now),
            }
        }
    }

    fn close(&mut self, mut body: crate::message::Close, attests: Vec<Verified>) {
        if let Some(m) = self.manifests.get(&body.manifest) {
            self.sums_exact &= self.replayed(m) == Some(body.state);
            self.closes.push(ClosedRound {
                round: body.round.0,
                view: body.view.0,
                summed: m.entries.iter().filter_map(|e| index_of(&e.member)).collect(),
                signers: attests.len(),
            });
        }
        body.attests = attests.iter().map(|a| a.envelope.clone().into()).collect();
        if let Some(m) = signed(&orchestrator_peer(), Body::Close(body), attests) {
            self.gossip(None, &m);
        }
    }

    /// The state that the manifest's committed deltas give.
    fn replayed(&self, manifest: &Manifest) -> Option<Hash32> {
        let parts: Option<Vec<Part>> = manifest
            .entries
            .iter()
            .map(|e| {
                self.deltas.get(&e.cid).map(|d| Part {
                    delta: d.3.clone(),
                    weight: e.weight,
                })
            })
            .collect();
        let mean = replay(&parts?, self.spec.wire, self.segment)?;
        Some(host::apply(manifest.parent, &mean).state)
    }

    /// To everyone, the sender included.
    fn gossip(&mut self, from: Option<u32>, m: &Verified) {
        for i in 0..self.hosts.len() as u32 {
            let delay = if from == Some(i) { 0 } else { self.delay() };
            self.member_in(delay, i, member::Event::Message(Box::new(m.clone())));
        }
        if from.is_some() {
            let delay = self.delay();
            self.push(
                delay,
                Due::Orchestrator(Box::new(orchestrator::Event::Message(Box::new(m.clone())))),
            );
        }
    }

    /// Over a sealed link: FIFO, at the uplink's bandwidth.
    fn link(&mut self, from: u32, to: &PeerBytes, bytes: u64, event: member::Event) {
        let Some(to) = index_of(to) else { return };
        let free = self.uplinks[from as usize].max(self.now);
        let sent = free.plus(bytes / self.links.bytes_per_ms.max(1));
        self.uplinks[from as usize] = sent;
        let last = self.arrivals.get(&(from, to)).copied().unwrap_or_default();
        let arrives = sent.plus(self.delay()).max(last);
        self.arrivals.insert((from, to), arrives);
        self.push(arrives.since(self.now), Due::Member(to, Box::new(event)));
    }

    fn delay(&mut self) -> u64 {
        self.links.latency_ms + self.rng.random_range(0..=self.links.jitter_ms)
    }

    fn member_in(&mut self, ms: u64, i: u32, event: member::Event) {
        self.push(ms, Due::Member(i, Box::new(event)));
    }

    fn push(&mut self, ms: u64, due: Due) {
        self.serial += 1;
        self.queue.insert((self.now.plus(ms), self.serial), due);
    }

    pub(super) fn outcome(&self) -> Outcome {
        let mut offences = self.offences.clone();
        for h in &self.hosts {
            for (label, n) in &h.offences {
                *offences.entry(label).or_default() += n;
            }
        }
        Outcome {
            closed: self.orchestrator.held().closed,
            states: self
                .hosts
                .iter()
                .map(|h| h.machine.held().filter(|_| h.alive).map(|held| held.state))
                .collect(),
            closes: self.closes.clone(),
            ring_bytes: self.hosts.iter().map(|h| h.ring_bytes).collect(),
            virtual_ms: self.finished_at.unwrap_or(self.now).0,
            trace: self.trace.hash(),
            sums_exact: self.sums_exact,
            offences,
        }
    }
}

fn label(event: &member::Event) -> String {
    match event {
        member::Event::Message(m) => format!("{:?} from {}", m.body.kind(), m.sender),
        member::Event::Segment { from, header, .. } => format!("segment from {from} {header:?}"),
        member::Event::Synced(_) => "synced".into(),
        member::Event::FetchFailed(_) => "fetch failed".into(),
        member::Event::Trained { .. } => "trained".into(),
        member::Event::TrainFailed { .. } => "training failed".into(),
        member::Event::CommitBuilt { .. } => "commit built".into(),
        member::Event::Replica { from, .. } => format!("replica from {from}"),
        member::Event::LinkOffence { from, .. } => format!("link offence by {from}"),
        member::Event::PeerLost(p) => format!("{p} lost"),
        member::Event::Applied { .. } => "applied".into(),
        member::Event::Tick => "tick".into(),
    }
}
